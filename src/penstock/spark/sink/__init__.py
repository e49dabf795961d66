"""Writing queues with Spark: `df.write` and `writeStream`, exactly once."""
