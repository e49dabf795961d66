"""`verify`: the lake compared with the broker. The job is in `job.py`."""
