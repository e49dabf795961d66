"""The AMQP front without sockets: messages both ways, filters after queue names, arguments, what is settled."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.api.results import Lease
from penstock.core.filters import parse
from penstock.fronts.amqp091 import deaths
from penstock.fronts.amqp091.arguments import queue_options, span_ms
from penstock.fronts.amqp091.errors import ChannelFault
from penstock.fronts.amqp091.mapping import Reader, outgoing, routing_key, with_headers
from penstock.fronts.amqp091.names import address_of, filter_of, namespace_of
from penstock.fronts.amqp091.settling import ConsumerKey, Held, Settling, runs
from penstock.fronts.amqp091.streams import Start, start_of
from penstock.model import Message, check_message
from penstock.model.errors import InvalidArgument
from penstock.wire.amqp091 import tables
from penstock.wire.amqp091.properties import NONE, Properties, build
from tests.unit.wire.amqp091.client import values_of

# Messages ------------------------------------------------------------------------------------------------

SHORT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    | st.binary(max_size=20)
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.integers(-128, 127).map(tables.Int8)
    | st.integers(0, 255).map(tables.UInt8)
    | st.integers(-(2**15), 2**15 - 1).map(tables.Int16)
    | st.integers(0, 2**16 - 1).map(tables.UInt16)
    | st.integers(-(2**31), 2**31 - 1).map(tables.Int32)
    | st.integers(0, 2**32 - 1).map(tables.UInt32)
    | st.integers(-(2**63), 2**63 - 1).map(tables.Long)
    | st.floats(width=32).map(tables.Float32)
    | st.integers(0, 2**64 - 1).map(tables.Timestamp)
    | st.builds(decimal.Decimal, st.integers(-(2**31), 2**31 - 1)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SHORT, inner, max_size=3),
    max_leaves=8,
)
PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        "content_type": SHORT,
        "content_encoding": SHORT,
        "headers": st.dictionaries(SHORT, VALUES, max_size=5),
        "delivery_mode": st.integers(0, 255),
        "priority": st.integers(0, 255),
        "correlation_id": SHORT,
        "reply_to": SHORT,
        "expiration": st.integers(0, 10**9).map(str),
        "message_id": SHORT,
        "timestamp": st.integers(0, 2**64 - 1),
        "message_type": SHORT,
        "app_id": SHORT,
        "cluster_id": SHORT,
    },
)


@given(SHORT, SHORT, PROPERTIES)
def test_what_came_by_amqp_goes_out_bit_by_bit(exchange: str, key: str, properties: dict[str, Any]) -> None:
    raw = build(**properties)
    message = Reader().message(exchange.encode(), key, raw, b"body")
    check_message(message)
    assert outgoing(message, 0) == (exchange.encode(), raw)
    assert routing_key(message.key) == key.encode()
    assert message.priority == properties.get("priority", 0)
    assert message.ttl_ms == (int(properties["expiration"]) if "expiration" in properties else None)


@given(st.binary(max_size=60))
def test_whatever_a_header_named_amqp_holds_nothing_breaks(raw: bytes) -> None:
    exchange, properties = outgoing(Message(b"", headers={"amqp": raw}), 1_000)
    assert len(exchange) <= 255
    values_of(Properties(properties))


@given(st.dictionaries(SHORT, VALUES, max_size=4))
def test_headers_are_added_and_the_others_stay(table: dict[str, Any]) -> None:
    raw = build(headers=table, app_id="a")
    found = Properties(with_headers(raw, {"x-stream-offset": 5}))
    assert found.app_id == "a"
    expected = tables.encode_table({**{name: one for name, one in table.items() if name != "x-stream-offset"}})
    rest = {name: one for name, one in (found.headers or {}).items() if name != "x-stream-offset"}
    assert (found.headers or {})["x-stream-offset"] == 5
    assert tables.encode_table(rest) == expected
    assert Properties(with_headers(NONE, {"n": 1})).headers == {"n": 1}


def test_a_message_of_another_protocol_keeps_what_amqp_can_say() -> None:
    headers = {
        "amqp-reply-to": "there",
        "amqp-type": 5,
        "amqp-timestamp": dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
        "amqp-delivery-mode": 1,
        "time": dt.datetime(2021, 1, 1, tzinfo=dt.UTC),
        "ü" * 200: "too long a name",
        "mqtt": b"\x01",
        "list": [1, None],
    }
    message = Message(b"", headers=headers, content_type="x" * 255, correlation_id="ü" * 200, ttl_ms=5)
    found = Properties(outgoing(message, 1_600_000_000_000).properties)
    assert (found.reply_to, found.delivery_mode, found.content_type) == ("there", 1, "x" * 255)
    assert (found.correlation_id, found.expiration, found.timestamp) == (None, "5", 1_577_836_800)
    assert found.headers == {"amqp-type": 5, "time": 1_609_459_200, "list": [1, None]}
    assert routing_key("ü" * 200) == ("ü" * 127).encode()


def death(queue: str, reason: str, target: str = "exchange:dead", key: str | None = "k") -> dict[str, Any]:
    return {
        "queue": queue,
        "group": "default",
        "reason": reason,
        "error": "",
        "attempts": 1,
        "time": 5_000,
        "key": key,
        "target": target,
    }


def told(history: list[Any], **properties: Any) -> tuple[str, dict[str, Any]]:
    message = Reader().message(b"first", "k", build(**properties), b"")
    found = outgoing(Message(b"", key="k", headers={**(message.headers or {}), "x-death": history}), 0)
    return found.exchange.decode(), Properties(found.properties).headers or {}


def test_deaths_are_counted_by_queue_and_reason_the_newest_first() -> None:
    history = [
        death("a", "rejected"),
        death("b", "expired", "exchange:back"),
        death("a", "rejected"),
        death("c", "overflow"),
    ]
    exchange, headers = told(history, headers={"own": 1})
    assert exchange == "dead"
    assert [(one["queue"], one["reason"], one["count"]) for one in headers["x-death"]] == [
        ("a", "rejected", 2),
        ("b", "expired", 1),
        ("c", "maxlen", 1),
    ]
    assert [one["exchange"] for one in headers["x-death"]] == ["dead", "dead", "first"]
    assert (headers["x-first-death-queue"], headers["x-last-death-queue"], headers["own"]) == ("c", "a", 1)
    assert headers["x-last-death-exchange"] == "dead"


def test_a_history_that_a_client_has_published_again_is_kept() -> None:
    before = [{"queue": "a", "reason": "rejected", "count": 3}, {"queue": "z", "reason": "expired", "count": 1}]
    _, headers = told([death("a", "rejected"), *before], headers={"x-death": before})
    assert [(one["queue"], one["count"]) for one in headers["x-death"]] == [("a", 4), ("z", 1)]
    for history in ([{"anything": 1}], "text", [1]):
        _, headers = told(history, headers={"own": 1})  # type: ignore[arg-type]
        assert headers == {"own": 1}
    assert deaths.REASONS["attempts"] == "delivery_limit"


# Names ---------------------------------------------------------------------------------------------------

LEVEL = st.sampled_from(["", "a", "b", "images", "%", "_", "it's", "\\", "x.y"])
KEY = st.lists(LEVEL, min_size=1, max_size=5).map("/".join)
FILTER = st.lists(LEVEL | st.just("+"), min_size=1, max_size=4).flatmap(
    lambda levels: st.sampled_from(["/".join(levels), "/".join([*levels, "#"])])
)


def matches(filter_text: str, key: str) -> bool:
    """The standard's words: + is one level, a last # the level before it and all below."""
    wanted, levels = filter_text.split("/"), key.split("/")
    for index, level in enumerate(wanted):
        if level == "#":
            return True
        if index >= len(levels) or level not in ("+", levels[index]):
            return False
    return len(wanted) == len(levels)


@given(FILTER, KEY)
def test_a_filter_is_what_mqtt_says(text: str, key: str) -> None:
    found = filter_of(text)
    expected = matches(text, key)
    if found is None:
        assert text in ("", "#")
        return
    assert found.matches(key) is expected
    condition = parse(found.condition or "").matches(Message(b"", key=key))
    assert condition or not expected, "a group's condition leaves nothing out"
    if found.is_exact:
        assert condition is expected


def test_names() -> None:
    assert namespace_of("/") == "default"
    assert namespace_of("other") == "other"
    assert address_of("$queue/orders/a/b") == ("orders", "a/b")
    assert address_of("orders/a") == ("orders/a", "")
    for text in ("a/#/b", "a#", "+a", "a+/b"):
        with pytest.raises(InvalidArgument, match="is no filter"):
            filter_of(text)


# Arguments -----------------------------------------------------------------------------------------------


def options(durable: bool = True, **arguments: Any) -> dict[str, Any]:
    given = {name.replace("_", "-"): value for name, value in arguments.items()}
    return queue_options(durable=durable, exclusive=False, auto_delete=False, arguments=given, keeps_transient=False)


def test_arguments_become_options() -> None:
    assert options()["max_attempts"] == 0
    assert options(x_queue_type="quorum")["max_attempts"] == 21
    assert options(x_queue_type="quorum", x_delivery_limit=-1)["max_attempts"] == 0
    assert options(x_delivery_limit=0)["max_attempts"] == 1
    assert options(durable=False)["ephemeral"] is True
    assert options(x_max_length=1)["overflow"] == "drop_oldest"
    dead = options(x_dead_letter_exchange="", x_max_length=1)
    assert (dead["dead_letter_to"], dead["overflow"], dead["expired"]) == ("exchange:", "dead_letter_oldest", "dead")
    assert dead["dead_kept"] is False
    keyed = options(x_dead_letter_exchange="x", x_dead_letter_routing_key="k/l")
    assert keyed["dead_letter_to"] == "exchange:x/k/l"
    assert span_ms("x-max-age", "7D") == 7 * 86_400_000
    with pytest.raises(ChannelFault, match="slash"):
        options(x_dead_letter_exchange="a/b")
    kept = queue_options(durable=False, exclusive=False, auto_delete=False, arguments={}, keeps_transient=True)
    assert kept["ephemeral"] is False


def test_where_a_stream_is_read_from() -> None:
    for value, expected in (
        ("first", Start("first")),
        ("last", Start("last")),
        ("next", Start("last")),
        (5, Start(offset=5)),
        (tables.Long(5), Start(offset=5)),
        ("offset=7", Start(offset=7)),
        ("timestamp=9", Start(time_ms=9)),
        (tables.Timestamp(3), Start(time_ms=3_000)),
        ("1h", Start(time_ms=6_400_000)),
    ):
        assert start_of(value, 10_000_000) == expected
    for wrong in (-1, True, "x", "offset=", None, 1.5, ""):
        with pytest.raises(ChannelFault, match="x-stream-offset"):
            start_of(wrong, 0)


# Settling ------------------------------------------------------------------------------------------------


def test_offsets_in_runs() -> None:
    assert runs([]) == []
    assert runs([5]) == [(5, 6)]
    assert runs([3, 1, 2, 7, 9, 8]) == [(1, 4), (7, 10)]


def test_verdicts_of_a_lease_are_gathered() -> None:
    settling = Settling(None)  # type: ignore[arg-type]
    held = Held(settling, Lease(1, 1, 1), ConsumerKey("q", "g", "c"), None, 5, 0.0)
    settling.held.add(held)
    for tag in range(1, 6):
        settling.unacked[tag] = (held, 9 + tag)
    settling.settle(2, True, "ack")
    settling.settle(4, False, "nack")
    settling.settle(3, False, "reject")
    said = [(one.action, one.start, one.end, one.delay_ms) for one in held.take()]
    assert said == [("ack", 10, 12, None), ("nack", 13, 14, 0), ("reject", 12, 13, None)]
    settling.settle(5, False, "ack")
    assert [(one.action, one.start) for one in held.take()] == [("ack", None)], "the last of a lease ends it whole"
    with pytest.raises(ChannelFault, match="unknown delivery tag 5"):
        settling.settle(5, False, "ack")
    taken = settling.unacked.copy()
    assert taken == {}
