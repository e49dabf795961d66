"""Makes `format("penstock")` known to Spark without a registration call.

Spark imports every top-level module named `pyspark_…` when a Python format is first asked for, and registers its
`DefaultSource`. The name is therefore Spark's choice, and nothing else belongs here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from penstock.spark.source.source import PenstockSource as DefaultSource
else:
    try:
        from penstock.spark.source.source import PenstockSource as DefaultSource
    except ImportError as failure:
        # An error here would hide every other Python format from Spark, and the reason from the user.
        REASON: Final = str(failure)

        class DefaultSource(DataSource):
            """Stands in where a package is missing, to say so."""

            def __init__(self, options: dict[str, str]) -> None:
                super().__init__(options)
                raise ImportError(
                    f'format("penstock") cannot be used by this Python: {REASON}. '
                    "Install what it needs, on the driver and on the executors:  pip install 'penstock[spark]'"
                )

            @classmethod
            def name(cls) -> str:
                return "penstock"


__all__ = ["DefaultSource"]
