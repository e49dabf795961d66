"""Reading queues with Spark: `spark.read` and `readStream`."""
