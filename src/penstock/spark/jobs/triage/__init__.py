"""`triage`: dead letters grouped by cause. The job is in `job.py`."""
