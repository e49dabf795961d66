"""Scans over HTTP: a lane's log by offset, as it is stored or as Arrow, whole and in parts, and what is refused."""

from __future__ import annotations

import asyncio
import struct
import sys
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pytest

from penstock import Message
from penstock.api.results import Scan, ScanState
from penstock.arrow import MESSAGE_SCHEMA, record_batches, schema_of
from penstock.batch import encode
from penstock.model.events import decode_delivery
from penstock.node.clock import SystemClock
from penstock.store.sqlite.engine import SqliteStore
from penstock.wire.http.shapes import ARROW_TYPE, BATCHES_TYPE, NEXT_OFFSET_HEADER
from tests.fronts.http.rig import Front, Reply, front_on, over_http, soon
from tests.nodes import node_of

ARROW: Final = {"Accept": ARROW_TYPE}
BATCHES: Final = {"Accept": BATCHES_TYPE}


async def filled(front: Front, *sizes: int, queue: str = "log", **options: Any) -> list[Message]:
    """A queue that keeps its log, with batches of these sizes; its messages."""
    await front.broker.declare_queue(queue, retain_messages=1_000_000, **options)
    held: list[Message] = []
    for size in sizes:
        batch = [
            Message(b"payload %d" % number, partition=f"p{number % 3}", headers={"n": number})
            for number in range(len(held), len(held) + size)
        ]
        await front.broker.publish_batch(queue, encode(batch))
        held += batch
    return held


async def reply_of(front: Front, lane: int = 0, queue: str = "log", **query: Any) -> Reply:
    headers = query.pop("headers", BATCHES)
    return await front.call("GET", f"/v1/queues/{queue}/lanes/{lane}/scan", headers=headers, **query)


async def scan(front: Front, start: int = 0, end: int = 1_000_000, **query: Any) -> Scan:
    reply = await reply_of(front, start=start, end=end, **query)
    assert (reply.status, reply.headers["content-type"]) == (200, BATCHES_TYPE), reply
    return msgspec.msgpack.decode(reply.body, type=Scan)


def spans(found: Scan) -> list[tuple[int, int]]:
    return [(part.offset, part.end) for part in found.slices]


# Batches as they are stored ------------------------------------------------------------------------------


@over_http(engine="sqlite")
async def test_a_whole_log_in_one_answer(front: Front) -> None:
    held = await filled(front, 3, 1, 5)
    found = await scan(front)
    assert (found.queue, found.lane, found.first, found.end, found.next_offset) == ("log", 0, 0, 9, 9)
    assert spans(found) == [(0, 3), (3, 4), (4, 9)]
    assert [part.base for part in found.slices] == [0, 3, 4]
    assert [(one.offset, one.message) for one in found.messages()] == list(enumerate(held))
    assert found.slices[0].meta == encode(held[:3]).meta, "not as it was stored"
    assert found.slices[0].body == encode(held[:3]).body, "not as it was stored"
    assert all(part.rows is None and part.states is None for part in found.slices)


@over_http(engine="sqlite")
@pytest.mark.parametrize(("start", "end"), [(0, 9), (2, 3), (1, 8), (3, 4), (5, 6), (8, 9), (4, 100)])
async def test_parts_are_cut_by_place_and_not_encoded_anew(front: Front, start: int, end: int) -> None:
    held = await filled(front, 3, 1, 5)
    found = await scan(front, start, end)
    last = min(end, 9)
    assert [one.offset for one in found.messages()] == list(range(start, last))
    assert [one.message for one in found.messages()] == held[start:last]
    assert found.next_offset == last
    assert {part.count for part in found.slices} <= {3, 1, 5}


@over_http(engine="sqlite")
async def test_what_is_in_the_store_and_what_is_in_memory_are_the_same(front: Front) -> None:
    await filled(front, 10, 10, 10)
    from_memory = await scan(front)
    lane = node_of(front.broker).catalog.queues["default", "log"].lanes[0]
    for base in (0, 10, 20):
        assert node_of(front.broker).cache.has(lane, base)
        node_of(front.broker).cache.forget(lane, base)
    assert await scan(front) == from_memory
    assert await scan(front, payload=0) == await scan(front, payload="false")


@over_http(engine="sqlite")
async def test_an_answer_is_bounded_and_goes_on(front: Front) -> None:
    held = await filled(front, *[10] * 20)
    seen: list[Message] = []
    start = answers = 0
    while start < len(held):
        found = await scan(front, start, max_bytes=800)
        assert found.slices[0].offset == start
        assert sum(part.size for part in found.slices[:-1]) < 800
        seen += [one.message for one in found.messages()]
        start, answers = found.next_offset, answers + 1
    assert seen == held
    assert 4 < answers < 20
    assert len((await scan(front, max_bytes=1)).slices) == 1, "one batch is always given"


@over_http()
async def test_nothing_where_nothing_is_yet(front: Front) -> None:
    await filled(front, 3)
    for start, end in ((3, 10), (2, 2), (7, 3), (50, 60)):
        found = await scan(front, start, end)
        assert (found.slices, found.next_offset, found.end) == ([], start, 3)


@over_http(engine="sqlite")
async def test_payloads_and_metadata_stay_where_nobody_wants_them(front: Front) -> None:
    await filled(front, 4, 4)
    cases: list[tuple[dict[str, Any], bool, bool]] = [
        ({"payload": 0}, True, False),
        ({"columns": "offset,payload"}, False, True),
        ({"columns": "offset,published_at"}, False, False),
        ({"columns": "partition"}, True, False),
        ({"columns": ""}, False, False),
        ({"payload": 0, "columns": "typed_headers"}, True, False),
    ]
    for query, meta, body in cases:
        found = await scan(front, **query)
        assert [(part.meta is not None, part.body is not None) for part in found.slices] == [(meta, body)] * 2, query
        assert spans(found) == [(0, 4), (4, 8)]


@over_http(engine="sqlite")
async def test_lanes_are_apart(front: Front) -> None:
    await front.broker.declare_queue("log", lanes=3, retain_messages=1_000)
    for number in range(30):
        await front.broker.publish("log", Message(b"%d" % number, partition=f"p{number}"))
    seen = [one.message.payload for lane in range(3) for one in (await scan(front, lane=lane)).messages()]
    assert sorted(map(int, seen)) == list(range(30))


# Conditions and groups -----------------------------------------------------------------------------------


@over_http(engine="sqlite")
async def test_a_condition_chooses_places(front: Front) -> None:
    held = await filled(front, 4, 4, 4)
    found = await scan(front, 1, 11, where="n IN (0, 1, 2, 3, 9, 11)")
    assert [
        None if part.rows is None else struct.unpack(f"<{len(part.rows) // 4}I", part.rows) for part in found.slices
    ] == [None, (), (1,)]
    assert (found.slices[1].meta, found.slices[1].body) == (None, None), "nobody wants it"
    assert [one.message for one in found.messages()] == [*held[1:4], held[9]]
    assert (spans(found), found.next_offset) == ([(1, 4), (4, 8), (8, 11)], 11)


@over_http(engine="sqlite")
async def test_a_condition_needs_no_column_to_be_asked_for(front: Front) -> None:
    await filled(front, 6)
    found = await scan(front, where="$partition = 'p1'", columns="offset")
    assert (found.slices[0].meta, list(found.slices[0].places())) == (None, [1, 4])


@over_http(engine="sqlite")
async def test_what_a_condition_passes_over_is_bounded_too(front: Front) -> None:
    """Or an answer without rows would take as long as the whole log."""
    await filled(front, *[10] * 20)
    found = await scan(front, where="n < 0", max_bytes=1)
    assert (spans(found), list(found.messages())) == ([(0, 10)], [])
    assert 20 < (await scan(front, where="n < 0", max_bytes=800)).next_offset < 200


@over_http(engine="sqlite")
async def test_a_condition_on_more_than_is_looked_at_in_one_go(front: Front) -> None:
    await filled(front, 2_500)
    found = await scan(front, where="n >= 1999 AND n < 2002", payload=0)
    assert list(found.slices[0].places()) == [1999, 2000, 2001]


@over_http(engine="sqlite")
async def test_what_a_group_makes_of_each(front: Front) -> None:
    await filled(front, 4, 4, 4)
    broker = front.broker
    claim = await broker.claim("log", max=6)
    await broker.ack(claim, [0, 1])
    await broker.reject(claim, [2], error="bad")
    await broker.postpone(claim, 100.0, [4])
    found = await scan(front, group="default")
    assert [part.states for part in found.slices] == [
        [ScanState(2, 3, "dead", 1, "rejected"), ScanState(3, 4, "leased", 1)],
        [ScanState(4, 5, "waiting", 0), ScanState(5, 6, "leased", 1), ScanState(6, 8, "ready", 0)],
        [ScanState(8, 12, "ready", 0)],
    ]
    assert [part.states for part in (await scan(front, 5, 7, group="default")).slices] == [
        [ScanState(5, 6, "leased", 1), ScanState(6, 7, "ready", 0)]
    ]


@over_http(engine="sqlite")
async def test_what_a_stream_group_makes_of_each(front: Front) -> None:
    await filled(front, 4, 4)
    await front.broker.declare_group("log", "audit", kind="stream")
    await front.broker.commit("log", "audit", 5)
    found = await scan(front, group="audit")
    assert [part.states for part in found.slices] == [[], [ScanState(5, 8, "ready", 0)]]


# Arrow ---------------------------------------------------------------------------------------------------


@over_http(engine="sqlite")
async def test_the_same_rows_as_an_arrow_stream(front: Front) -> None:
    await filled(front, 10, 10, 10)
    expected = pa.Table.from_batches(record_batches(await scan(front), MESSAGE_SCHEMA.names))
    reply = await reply_of(front, start=0, end=30, headers=ARROW)
    assert (reply.status, reply.headers["content-type"]) == (200, ARROW_TYPE)
    assert reply.headers[NEXT_OFFSET_HEADER.lower()] == "30"
    table = pa.ipc.open_stream(reply.body).read_all()
    assert table.schema.metadata == {
        b"penstock.queue": b"log",
        b"penstock.lane": b"0",
        b"penstock.next_offset": b"30",
    }
    assert table.replace_schema_metadata() == expected


@over_http(engine="sqlite")
async def test_arrow_with_columns_a_condition_and_a_group(front: Front) -> None:
    await filled(front, 10)
    await front.broker.claim("log", max=2)
    reply = await reply_of(
        front, start=0, end=10, headers=ARROW, columns="state,offset", where="n < 3", group="default"
    )
    table = pa.ipc.open_stream(reply.body).read_all()
    assert table.replace_schema_metadata().schema == schema_of(["state", "offset"])
    assert table.to_pylist() == [
        {"state": "leased", "offset": 0},
        {"state": "leased", "offset": 1},
        {"state": "ready", "offset": 2},
    ]


@over_http(engine="sqlite")
async def test_arrow_in_parts_and_without_rows(front: Front) -> None:
    await filled(front, 10, 10)
    reply = await reply_of(front, start=0, end=20, headers=ARROW, max_bytes=1)
    assert (pa.ipc.open_stream(reply.body).read_all().num_rows, reply.headers[NEXT_OFFSET_HEADER.lower()]) == (10, "10")
    reply = await reply_of(front, start=20, end=30, headers=ARROW)
    assert (pa.ipc.open_stream(reply.body).read_all().num_rows, reply.headers[NEXT_OFFSET_HEADER.lower()]) == (0, "20")
    reply = await reply_of(front, start=0, end=20, headers=ARROW, payload=0)
    assert "payload" not in pa.ipc.open_stream(reply.body).schema.names


@over_http()
async def test_a_server_without_pyarrow_says_so(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    await filled(front, 1)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for name in [name for name in sys.modules if name.startswith("penstock.arrow")]:
        monkeypatch.delitem(sys.modules, name)
    reply = await reply_of(front, start=0, end=1, headers=ARROW)
    assert (reply.status, reply.code) == (406, "not_acceptable")
    assert "pip install 'penstock[spark]'" in reply.message
    assert (await scan(front)).end == 1


@over_http()
async def test_which_form_is_given(front: Front) -> None:
    await filled(front, 1)
    for headers in ({}, {"Accept": "*/*"}, {"Accept": "application/*;q=0.5"}, BATCHES):
        assert (await reply_of(front, start=0, end=1, headers=headers)).headers["content-type"] == BATCHES_TYPE
    reply = await reply_of(front, start=0, end=1, headers={"Accept": "application/json"})
    assert (reply.status, reply.code) == (406, "not_acceptable")


# What is refused -----------------------------------------------------------------------------------------


@over_http(engine="sqlite")
async def test_what_was_let_go_is_gone(front: Front) -> None:
    for _ in range(2):
        await front.broker.declare_queue("log")
        await front.broker.publish_batch("log", encode([Message(b"x")] * 4))
    await front.broker.ack(await front.broker.claim("log", max=4))  # the only group is done with them
    assert (await lanes_of(front))[0]["first"] == 4
    for path in ("scan", "extent"):
        reply = await front.call("GET", f"/v1/queues/log/lanes/0/{path}?start=3" + "&end=9" * (path == "scan"))
        assert (reply.status, reply.code) == (410, "offset_gone")
        assert "offset 3 of queue 'log' is gone; its lane 0 begins at 4" in reply.message
    assert (await scan(front, 4)).first == 4


@over_http()
@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("log/lanes/0/scan?start=0", 400, "end"),
        ("log/lanes/0/scan?start=-1&end=2", 400, "start is -1"),
        ("log/lanes/0/scan?start=0&end=2&max_bytes=0", 400, "max_bytes is 0"),
        ("log/lanes/0/scan?start=0&end=2&max_bytes=67108865", 400, "max_bytes is 67108865"),
        ("log/lanes/0/scan?start=0&end=2&payload=maybe", 400, "payload"),
        ("log/lanes/0/scan?start=0&end=2&columns=offset,headrs", 400, "did you mean headers?"),
        ("log/lanes/0/scan?start=0&end=2&columns=offset,offset", 400, "twice"),
        ("log/lanes/0/scan?start=0&end=2&columns=state", 400, "say which one with group"),
        ("log/lanes/0/scan?start=0&end=2&columns=payload&payload=0", 400, "leave out one of them"),
        ("log/lanes/0/scan?start=0&end=2&where=n%20%3D%3D", 400, "column"),
        ("log/lanes/0/scan?start=0&end=2&group=nobody", 404, "nobody"),
        ("log/lanes/1/scan?start=0&end=2", 400, "only lane 0"),
        ("log/lanes/x/scan?start=0&end=2", 400, "the path's lane is 'x'"),
        ("none/lanes/0/scan?start=0&end=2", 404, "none"),
        ("none/lanes", 404, "none"),
        ("log/lanes?time_ms=-1", 400, "time_ms is -1"),
        ("log/lanes/0/extent", 400, "start"),
        ("log/lanes/0/extent?start=0&max_rows=0", 400, "max_rows is 0"),
        ("log/lanes/0/extent?start=0&max_bytes=0", 400, "max_bytes is 0"),
    ],
)
async def test_wrong_questions(front: Front, path: str, status: int, words: str) -> None:
    await filled(front, 2)
    reply = await front.call("GET", f"/v1/queues/{path}")
    assert reply.status == status, reply
    assert words in reply.message


def run(work: Any) -> None:
    asyncio.run(work)


# Lanes and extents ---------------------------------------------------------------------------------------


class SetClock(SystemClock):
    """The time is what a test says."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.now


def test_where_lanes_begin_and_end(tmp_path: Path) -> None:
    async def main() -> None:
        clock = SetClock()
        async with front_on(await SqliteStore.open(tmp_path / "x.db"), clock=clock) as front:
            await front.broker.declare_queue("log")
            assert await lanes_of(front) == [{"lane": 0, "first": 0, "end": 0, "bytes": 0}]
            sizes = []
            for number in range(5):
                clock.now += 1_000
                batch = encode([Message(b"x" * number)] * 3)
                sizes.append(batch.size)
                await front.broker.publish_batch("log", batch)
            assert await lanes_of(front) == [{"lane": 0, "first": 0, "end": 15, "bytes": sum(sizes)}]
            for time_ms, offset in [(0, 0), (clock.now - 1_000, 9), (clock.now - 999, 12), (clock.now + 1, 15)]:
                [place] = await lanes_of(front, time_ms=time_ms)
                assert place["at_time"] == offset, time_ms
            await front.broker.ack(await front.broker.claim("log", max=9))  # done for the only group: they go
            assert await lanes_of(front) == [{"lane": 0, "first": 9, "end": 15, "bytes": sum(sizes[3:])}]
            assert (await lanes_of(front, time_ms=0))[0]["at_time"] == 9
            await front.broker.ack(await front.broker.claim("log", max=9))
            assert await lanes_of(front) == [{"lane": 0, "first": 15, "end": 15, "bytes": 0}]

    run(main())


async def lanes_of(front: Front, **query: Any) -> list[dict[str, Any]]:
    places: list[dict[str, Any]] = (await front.ok("GET", "/v1/queues/log/lanes", **query))["lanes"]
    return places


@over_http(engine="sqlite")
async def test_a_queue_declared_anew_has_another_number(front: Front) -> None:
    await filled(front, 1)
    before = (await front.ok("GET", "/v1/queues/log/lanes"))["queue_id"]
    assert (await scan(front)).queue_id == before
    await front.broker.delete_queue("log")
    await filled(front, 1)
    after = (await front.ok("GET", "/v1/queues/log/lanes"))["queue_id"]
    assert (await scan(front)).queue_id == after != before


@over_http(engine="sqlite")
async def test_how_far_a_read_may_go(front: Front) -> None:
    held = await filled(front, *[10] * 50)
    sizes = [encode(held[at : at + 10]).size for at in range(0, 500, 10)]

    async def extent(**query: Any) -> tuple[int, int, int]:
        found = await front.ok("GET", "/v1/queues/log/lanes/0/extent", **query)
        return found["end"], found["rows"], found["bytes"]

    for forget in (False, True):
        if forget:  # what is in memory, and what must be read
            lane = node_of(front.broker).lanes.get(node_of(front.broker).catalog.queues["default", "log"].lanes[0])
            assert lane is not None
            lane.log.tail.clear()
        assert await extent(start=0) == (500, 500, sum(sizes))
        assert await extent(start=500) == (500, 0, 0)
        assert await extent(start=0, max_rows=25) == (25, 25, sum(sizes[:3]))
        assert await extent(start=7, max_bytes=1) == (10, 3, sizes[0]), "one batch at least"
        for count in (1, 2, 7, 49, 50):
            assert await extent(start=3, max_bytes=sum(sizes[:count])) == (
                count * 10,
                count * 10 - 3,
                sum(sizes[:count]),
            )
            if count > 1:
                assert await extent(start=3, max_bytes=sum(sizes[:count]) - 1) == (
                    (count - 1) * 10,
                    (count - 1) * 10 - 3,
                    sum(sizes[: count - 1]),
                )
        assert await extent(start=0, max_rows=12, max_bytes=sum(sizes[:5])) == (12, 12, sum(sizes[:2]))


@over_http(engine="sqlite")
async def test_the_events_of_deliveries_can_be_scanned(front: Front) -> None:
    await filled(front, 1)
    await front.broker.ack(await front.broker.claim("log"))
    found = await soon(front.ok("GET", "/v1/queues/%24events/lanes"))
    assert found["lanes"][0]["end"] > 0
    told = [decode_delivery(one.message.payload) for one in (await scan(front, queue="%24events")).messages()]
    assert {event.kind for delivery in told for event in delivery.events} >= {"claimed", "acked"}
