"""The pipeline's jobs: small modules on the public source and sink, each run as `penstock pipeline <job>`.

A job is a module with a `<Name>Options` struct and `run(spark, options, progress) -> Summary`. What they share is in
`frame.py`, the row that `penstock pipeline status` shows of each in `status.py`. Neither imports Spark, and nothing is
imported here: the command line looks at both before it knows whether Spark is installed.
"""
