"""Tables of Spark's catalog: `CREATE TABLE t USING penstock OPTIONS (…)`, then `SELECT` and `INSERT INTO`.

Spark asks once which columns a new table has, with its options among properties of the catalog. When the table is read
or written later, it hands a Python source no options at all, but the columns, with their metadata. So the options are
kept there: in the metadata of the first column. What is said with the query itself (`WITH (…)`) comes on top.

Metadata travels with rows, into files too, so no token is kept. Next stop: `source/source.py`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Final

from pyspark.sql.types import StructField, StructType

from penstock.model.errors import InvalidArgument
from penstock.spark.option_texts import OptionTexts
from penstock.spark.sink import options as writing
from penstock.spark.source import options as reading

METADATA: Final = "penstock.options"
CATALOG: Final = "provider"
"""A property that only the catalog gives: options of a table come beside it, as `option.url` and so on."""
PREFIX: Final = "option."
TOKEN: Final = "PENSTOCK_TOKEN"

READS: Final = frozenset(reading.OPTIONS) - frozenset(reading.STREAM_ONLY)
STREAM_READS: Final = frozenset(reading.OPTIONS) - frozenset(reading.BATCH_ONLY)
WRITES: Final = frozenset(writing.OPTIONS) - frozenset(writing.STREAM_ONLY)
_REFUSED: Final = {
    "token": "Spark would keep it with the table's columns. Set PENSTOCK_TOKEN in the driver's environment, or give it "
    "with the query: SELECT … FROM t WITH (token = '…')",
    "sourcetoken": 'Spark would keep it with the table\'s columns; write with df.write.format("penstock") instead',
    "transactionid": "it names one write, so the second INSERT would publish nothing; say it with the query: "
    "INSERT INTO t WITH (transactionId = '…') …",
}


def table_options(given: Mapping[str, str]) -> dict[str, str] | None:
    """The options of a table that is being created, checked; None where no table is."""
    if given.get(CATALOG, "").lower() != "penstock":
        return None
    options = {name.removeprefix(PREFIX): value for name, value in given.items() if name.startswith(PREFIX)}
    for name, why in _REFUSED.items():
        if name in options:
            raise InvalidArgument(f"option {name} cannot be kept by a table: {why}")
    OptionTexts(options, {*reading.OPTIONS, *writing.OPTIONS}, "a penstock table")
    return options


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """The columns of a table, the first of which carries its options."""
    first, *others = schema.fields
    carrying = StructField(first.name, first.dataType, first.nullable, {METADATA: dict(options)})
    return StructType([carrying, *others])


def only(options: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    """Those of a table's options that are for one way to use it."""
    known = {name.lower() for name in names}
    return {name: value for name, value in options.items() if name.lower() in known}


def options_of(given: Mapping[str, str], schema: StructType, names: Collection[str]) -> Mapping[str, str]:
    """The options of a read or a write: what the query says and, of a table, what it was created with."""
    kept = schema.fields[0].metadata.get(METADATA) if schema.fields else None
    if kept is None:
        if given:
            return given
        raise InvalidArgument(
            "no options came with this query. Spark hands the OPTIONS of a table to a Python source only with columns "
            "that the source named itself: create the table without a list of columns (option columns chooses some), "
            "not AS SELECT, and write to it with INSERT INTO; or say them with the query: FROM t WITH (url = '…', …)"
        )
    found = only(kept, names) | {name.lower(): value for name, value in given.items()}
    if "token" not in found and TOKEN in os.environ:
        found["token"] = os.environ[TOKEN]
    return found
