"""`compact`: small files of the lake become large ones. The job is in `job.py`."""
