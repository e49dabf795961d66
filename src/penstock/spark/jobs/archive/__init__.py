"""`archive`: queues and delivery events into the lake, exactly once. The job is in `job.py`."""
