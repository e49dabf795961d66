"""`penstock pipeline …`: the jobs on Spark from the command line."""
