"""One consumer group on one lane: what is leased, waiting and dead, and how claims and verdicts change it."""
