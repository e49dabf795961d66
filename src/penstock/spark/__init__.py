"""Penstock's queues as Spark tables: `spark.read.format("penstock")` and the jobs built on it.

Nothing outside this package may import it when it is itself imported: who only publishes and consumes needs neither
pyspark nor pyarrow. Start reading in `spark/source/source.py`; a session comes from `spark_session`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.spark.java import Java, JavaMissing, find_java
from penstock.spark.session import package_archive, register, spark_session

if TYPE_CHECKING:
    from penstock.spark.events import delivery_events, event_rows
    from penstock.spark.filters.columns import filter_column
    from penstock.spark.lake.source import read_lake
    from penstock.spark.payloads import json_columns
    from penstock.spark.source.metrics import source_metrics

__all__ = [
    "Java",
    "JavaMissing",
    "delivery_events",
    "event_rows",
    "filter_column",
    "find_java",
    "json_columns",
    "package_archive",
    "read_lake",
    "register",
    "source_metrics",
    "spark_session",
]

_LATER = {
    "delivery_events": "events",
    "event_rows": "events",
    "filter_column": "filters.columns",
    "json_columns": "payloads",
    "read_lake": "lake.source",
    "source_metrics": "source.metrics",
}
"""What needs pyspark is imported when it is first wanted: Java can be looked for, and missed, without it."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
