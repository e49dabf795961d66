"""`stats`: what happened in each queue and group, minute by minute. The job is in `job.py`."""
