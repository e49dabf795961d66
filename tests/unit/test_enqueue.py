"""What `penstock.enqueue` refuses before it says anything to a database, and what it would say."""

from __future__ import annotations

import datetime as dt
import json
import sqlite3
from typing import Any

import pytest

from penstock import Message
from penstock.enqueue import _document, enqueue, enqueue_many
from penstock.model.errors import InvalidArgument, MessageTooLarge


class Connection:
    """Looks like one of psycopg's, and notes what it is told."""

    __module__ = "psycopg"

    def __init__(self) -> None:
        self.told: list[tuple[str, list[str]]] = []

    def execute(self, statement: str, values: list[str]) -> None:
        self.told.append((statement, values))


class AsyncConnection:
    __module__ = "psycopg"


def test_messages_are_one_bound_value_of_one_statement() -> None:
    connection = Connection()
    assert enqueue_many(connection, "mail", [b"a", Message(b"\x00b", partition="p", ttl_ms=0)], schema="mine") == 2
    [(statement, [document])] = connection.told
    assert statement == "SELECT mine.publish_many(CAST(%s AS json))"
    assert json.loads(document) == [
        {"namespace": "default", "queue": "mail", "payload_base64": "YQ=="},
        {"namespace": "default", "queue": "mail", "payload_base64": "AGI=", "partition": "p", "ttl_ms": 0},
    ]


def test_no_messages_are_no_statement() -> None:
    connection = Connection()
    assert enqueue_many(connection, "mail", []) == 0
    assert connection.told == []


def test_headers_are_typed() -> None:
    headers = {"raw": b"\x00", "at": dt.datetime(2024, 1, 2, tzinfo=dt.UTC), "$time": {"$time": "mine"}}
    [message] = json.loads(_document([Message(b"", headers=headers)], None, "orders", False, "büro"))
    message["headers"] = json.loads(message["headers"])
    assert message == {
        "namespace": "büro",
        "exchange": "orders",
        "mandatory": False,
        "payload_base64": "",
        "headers": {
            "raw": {"$base64": "AA=="},
            "at": {"$time": "2024-01-02T00:00:00+00:00"},
            "$time": {"$object": {"$time": "mine"}},
        },
    }


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"schema": 'x"; DROP TABLE orders'}, "cannot be a schema's name"),
        ({"schema": "Capital"}, "cannot be a schema's name"),
        ({"queue": None}, "one of queue and exchange to be published to, not neither"),
        ({"exchange": "orders"}, "not both"),
        ({"queue": ""}, "a queue's name has 0 characters"),
        ({"namespace": "a\nb"}, "control character"),
        ({"message": "text"}, "encode text with .encode()"),
        ({"message": Message(b""), "priority": 1}, "priority cannot be given beside a Message"),
        ({"priority": 256}, "priority is 256; it must be 0 to 255"),
        ({"delay_ms": -1}, "delay_ms is -1"),
        ({"colour": "red"}, "unexpected|Unexpected"),
        ({"partition": "a\0b"}, "partition 'a.x00b' has a NUL character"),
        ({"headers": {"x": float("nan")}}, "NaN or infinite"),
        ({"headers": {"x": object()}}, "has a value of type object"),
        ({"connection": AsyncConnection()}, "is for asyncio: await enqueue_async"),
        ({"connection": sqlite3.connect(":memory:")}, "sqlite3.Connection is no connection that can be enqueued on"),
        ({"connection": None}, "builtins.NoneType is no connection"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_sent(options: dict[str, Any], text: str) -> None:
    connection = Connection()
    arguments: dict[str, Any] = {"connection": connection, "queue": "mail", "message": b"x"} | options
    with pytest.raises(InvalidArgument, match=text):
        enqueue(**arguments)
    assert connection.told == []


def test_too_much_at_once_is_refused() -> None:
    with pytest.raises(MessageTooLarge, match="67108865 bytes in one call; the limit is 67108864"):
        enqueue(Connection(), "mail", bytes(64 * 1024 * 1024 + 1))
    with pytest.raises(MessageTooLarge, match="in one call; the limit is 67108864"):
        enqueue_many(Connection(), "mail", [bytes(16 * 1024 * 1024)] * 5)
    with pytest.raises(MessageTooLarge, match="100001 messages in one call"):
        enqueue_many(Connection(), "mail", [b""] * 100_001)
