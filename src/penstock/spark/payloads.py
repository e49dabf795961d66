"""Typed columns from payloads that are JSON, with Spark's own functions and no per-row Python.

orders = json_columns(spark.read.format("penstock")…load(), "id BIGINT, total DOUBLE")
orders.where("malformed IS NULL").groupBy("id").sum("total")
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StringType, StructField, StructType

from penstock.model.errors import InvalidArgument

_CORRUPT = "__malformed"


def json_columns(
    df: DataFrame,
    schema: StructType | str,
    column: str = "payload",
    *,
    prefix: str = "",
    malformed: str = "malformed",
) -> DataFrame:
    """The DataFrame with a column for each field of `schema` (Spark's types, or DDL text) in place of the payload.

    The column `malformed` (binary) holds the whole payload of a row that is not such a JSON object: no JSON, no UTF-8,
    another type in one of the fields. Its typed columns are null then, as far as they could not be read; no row is
    dropped. A row whose payload is null has nulls only. `prefix` goes before the fields' names where they would clash
    with columns that are there.
    """
    fields = schema if isinstance(schema, StructType) else DataType.fromDDL(schema)
    if not isinstance(fields, StructType):
        raise InvalidArgument(
            f"the schema must be the fields of an object, such as 'id BIGINT, name STRING': {schema!r}"
        )
    if column not in df.columns:
        raise InvalidArgument(f"there is no column {column!r} among {', '.join(df.columns)}; was includePayload false?")
    made = [prefix + name for name in fields.fieldNames()] + [malformed]
    others = [name for name in df.columns if name != column]
    if clash := sorted(set(made) & set(others)) or sorted({name for name in made if made.count(name) > 1}):
        raise InvalidArgument(f"there would be two columns {clash[0]!r}: give a prefix, or another name for malformed")
    parsed = "__parsed"
    wanted = StructType([*fields.fields, StructField(_CORRUPT, StringType())])
    # Text that is not UTF-8 would be mended with replacement characters, and pass.
    text = F.try_validate_utf8(F.col(column).cast("string"))
    value = F.from_json(text, wanted, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT})
    rows = df.withColumn(parsed, value)
    failed = F.col(column).isNotNull() & (F.col(parsed).isNull() | F.col(f"{parsed}.{_CORRUPT}").isNotNull())
    return rows.select(
        *(F.col(f"`{name}`") for name in others),
        *(F.col(parsed).getField(name).alias(prefix + name) for name in fields.fieldNames()),
        F.when(failed, F.col(column).cast("binary")).alias(malformed),
    )
