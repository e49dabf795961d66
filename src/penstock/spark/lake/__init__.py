"""The lake: archived messages and delivery events as two Delta tables, `<lake>/messages` and `<lake>/events`.

Parquet files are written by executors with pyarrow, the Delta log by the driver through `deltalake`; Spark needs no jar
for it, and anything that reads Delta reads the lake. Start with `layout.py` (what is stored), then `table.py` (the log
and its marks), `writing.py` and `landing.py` (the way in), `reading.py` (the way out), `compaction.py`.

Nothing here asks a broker: what is known of it comes in as arguments.
"""
