"""Generated messages as rows of the source's columns, for tests that hold a Spark column to the broker's own answer."""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import msgspec
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import Row

from penstock.model import Message

COLUMNS: Final = (
    "number int, typed_headers map<string, struct<kind: string, text: string, integer: bigint, float: double>>, "
    "partition string, key string, priority int, content_type string, correlation_id string, trace_id string, "
    "dedup_id string"
)
PROPERTIES: Final = ("partition", "key", "priority", "content_type", "correlation_id", "trace_id", "dedup_id")

Drawn = TypeVar("Drawn")


def drawn(strategy: st.SearchStrategy[Drawn], count: int, start: int) -> list[Drawn]:
    """About so many values of a strategy, the same for the same `start`: for one Spark job over all of them."""
    found: list[Drawn] = []

    @seed(start)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(value: Drawn) -> None:
        found.append(value)

    collect()
    return found


def frame_of(spark: SparkSession, messages: Sequence[Message]) -> DataFrame:
    """The messages as the source gives them, with their place in the list as `number`."""
    return spark.createDataFrame([row_of(number, message) for number, message in enumerate(messages)], COLUMNS)


def row_of(number: int, message: Message) -> tuple[Any, ...]:
    headers = message.headers
    typed = None if headers is None else {name: typed_header(value) for name, value in headers.items()}
    return number, typed, *(getattr(message, name) for name in PROPERTIES)


def typed_header(value: Any) -> Row:
    """A header without loss, as the source's schema says; written here a second time, to compare with."""
    match value:
        case None:
            fields: tuple[Any, ...] = ("null", None, None, None)
        case bool():
            fields = ("boolean", None, int(value), None)
        case int():
            fields = ("integer", None, value, None)
        case float():
            fields = ("float", None, None, value)
        case str():
            fields = ("text", value, None, None)
        case bytes():
            fields = ("bytes", base64.b64encode(value).decode(), None, None)
        case dt.datetime():
            fields = ("time", value.astimezone(dt.UTC).isoformat(), None, None)
        case _:
            fields = ("nested", base64.b64encode(msgspec.msgpack.encode(value)).decode(), None, None)
    return Row("kind", "text", "integer", "float")(*fields)
