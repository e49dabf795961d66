"""What the SQL engines share."""
