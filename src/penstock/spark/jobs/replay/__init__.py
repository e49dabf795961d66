"""`replay`: messages of the lake and of the log back into a queue. The job is in `job.py`."""
