"""`route`: what a queue would have got from history. The job is in `job.py`."""
