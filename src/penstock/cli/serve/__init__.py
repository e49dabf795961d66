"""`penstock serve`: from the configuration to a server that listens, and back."""
