"""Requests of many messages or verdicts: done in slices, with other work between them, and all or none all the same."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from binascii import b2a_base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from penstock import Message
from penstock.api.slices import PIECE_ITEMS, SLICE_ITEMS
from penstock.api.ticket import in_task
from penstock.core.dedup import FORGET_AT_ONCE
from penstock.core.seen import Seen
from penstock.fronts.http.handlers import bodies
from penstock.fronts.http.request import LONG_BODY_BYTES
from penstock.model.rows import Commit
from penstock.node.publish.parts import PART_MESSAGES
from penstock.store.memory.engine import MemoryStore
from penstock.wire.http import shapes
from penstock.wire.http.large_json import PiecewiseDecoder
from penstock.wire.http.shapes import MessageBody
from tests.fronts.http.rig import Front, over_http
from tests.scenarios.rig import turns, until

MANY = 9_500
"""More than two parts of a publish, and no whole number of slices."""


class Meter:
    """How many items were worked on within one turn of the event loop, at the most."""

    def __init__(self) -> None:
        self.total = self.most = 0
        self._seen = 0

    def counting(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            self.total += 1
            return work(*args, **options)

        return counted

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            task.cancel()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.most = max(self.most, self.total - self._seen)
            self._seen = self.total


async def published(front: Front, count: int, **query: Any) -> Any:
    await front.ok("PUT", "/v1/queues/q", {})
    listed = [{"payload": str(number)} for number in range(count)]
    return await front.ok("POST", "/v1/queues/q/messages", {"messages": listed}, **query)


@over_http()
async def test_a_publish_of_many_is_taken_in_slices(front: Front) -> None:
    meter = Meter()
    with patch.object(MessageBody, "message", meter.counting(MessageBody.message)):
        async with meter.running():
            answer = await published(front, MANY)
    assert (meter.total, meter.most) == (MANY, PIECE_ITEMS)
    assert [place["offset"] for place in answer["results"]] == list(range(MANY))
    assert [place["index"] for place in answer["results"]] == list(range(MANY))


@over_http()
async def test_a_publish_of_many_is_encoded_in_slices_and_stored_in_one_commit(front: Front) -> None:
    stored: list[list[int]] = []
    apply = MemoryStore.apply

    @in_task
    async def noted(store: MemoryStore, commit: Commit) -> None:
        rows = [row.count for change in commit.lanes for row in change.batches if row.count > 1]
        stored.extend([rows] if rows else [])
        await apply(store, commit)

    with patch.object(MemoryStore, "apply", noted):
        await published(front, MANY)
    assert stored == [[PART_MESSAGES, PART_MESSAGES, MANY - 2 * PART_MESSAGES]]


@over_http()
async def test_many_with_an_id_are_published_once(front: Front) -> None:
    first = await published(front, MANY, publish_id="once")
    assert [place["offset"] for place in first["results"]] == list(range(MANY))
    again = await published(front, MANY, publish_id="once")
    assert all(place["duplicate"] for place in again["results"])
    [place] = (await front.publish("q", "one"))["results"]
    assert place["offset"] == MANY


@over_http()
async def test_many_without_partitions_stay_in_one_lane(front: Front) -> None:
    await front.ok("PUT", "/v1/queues/q", {"lanes": 3})
    listed = [{"payload": str(number)} for number in range(MANY)]
    for _ in range(2):
        answer = await front.ok("POST", "/v1/queues/q/messages", {"messages": listed})
        assert len({place["lane"] for place in answer["results"]}) == 1
    await front.publish("q", "one")


@over_http()
async def test_a_claim_of_many_is_answered_in_slices(front: Front) -> None:
    await published(front, MANY)
    meter = Meter()
    with patch.object(bodies, "received_body", meter.counting(shapes.received_body)):
        async with meter.running():
            claim = await front.claim("q", max=MANY)
    assert (meter.total, meter.most) == (MANY, -(-PIECE_ITEMS // bodies.RECEIVED_ITEMS) * bodies.RECEIVED_ITEMS)
    assert [int(message["payload"]) for message in claim["messages"]] == list(range(MANY))
    assert [message["offset"] for message in claim["messages"]] == list(range(MANY))
    assert list(claim) == ["queue", "lane", "lease", "deadline_ms", "messages"]
    log = await front.ok("GET", "/v1/queues/q/log", max=MANY)
    assert [message["offset"] for message in log["messages"]] == list(range(MANY))
    assert log["next_offset"] == MANY


@over_http()
async def test_many_verdicts_are_taken_in_slices_and_carried_out_as_ranges(front: Front) -> None:
    await published(front, MANY)
    claim = await front.claim("q", max=MANY)
    verdicts = [{"action": "ack", "offsets": [offset]} for offset in range(MANY)]
    carried_out: list[int] = []
    claims = front.broker._services.claims
    original = claims.judge

    def noted(lane: Any, lease: Any, chosen: Any) -> Any:
        carried_out.append(len(chosen))
        return original(lane, lease, chosen)

    meter = Meter()
    with (
        patch.object(bodies, "_verdicts", meter.counting(bodies._verdicts)),
        patch.object(type(claims), "judge", lambda _, *args: noted(*args)),
    ):
        async with meter.running():
            await front.ok("POST", f"/v1/leases/{claim['lease']}/settle", {"verdicts": verdicts[::-1]})
    assert (meter.total, meter.most) == (MANY, PIECE_ITEMS)
    assert carried_out == [1]
    [group] = (await front.broker.stats("q")).groups
    assert (group.ready, group.leased) == (0, 0)


@over_http()
async def test_many_verdicts_are_all_or_none(front: Front) -> None:
    await published(front, MANY)
    claim = await front.claim("q", max=MANY)
    path = f"/v1/leases/{claim['lease']}/settle"
    actions = ("ack", "nack", "reject")
    verdicts: list[dict[str, Any]] = [{"action": actions[offset % 3], "offsets": [offset]} for offset in range(MANY)]
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"action": "ack", "offsets": [0]}, "invalid_argument"),
        ({"action": "ack", "start": 5, "end": 5}, "invalid_argument"),
        ({"action": "ack", "offsets": [MANY]}, "lease_lost"),
        ({"action": "ack"}, "invalid_argument"),
        ({"action": "ack", "error": "why"}, "invalid_argument"),
    ]
    for one, code in wrong:
        reply = await front.call("POST", path, {"verdicts": [*verdicts, one]})
        assert reply.code == code, one
        [group] = (await front.broker.stats("q")).groups
        assert group.leased == MANY
    await front.ok("POST", path, {"verdicts": verdicts})
    [group] = (await front.broker.stats("q")).groups
    assert (group.leased, group.dead) == (0, MANY // 3)


@over_http()
async def test_a_client_that_goes_away_ends_the_work_for_it(front: Front) -> None:
    await published(front, MANY)
    claim = await front.claim("q", max=MANY)
    meter, wire = Meter(), await front.connect()
    counted = meter.counting(bodies._verdicts)
    own: socket.socket = wire.writer.get_extra_info("socket")
    own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it goes, and does not only say less

    def once(body: Any) -> Any:
        wire.reset()
        return counted(body)

    items = ",".join(f'{{"action":"ack","offsets":[{offset}]}}' for offset in range(MANY))
    data = f'{{"verdicts":[{items}]}}'.encode()
    head = f"POST /v1/leases/{claim['lease']}/settle HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
    with patch.object(bodies, "_verdicts", once):
        await wire.send(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        await until(lambda: meter.total > 0 and len(front.server.connections) == 1)
    await turns()
    assert meter.total < MANY
    [group] = (await front.broker.stats("q")).groups
    assert group.leased == MANY


HUGE = [
    ("text", ('añ€😀"\\\n\x00' * 60_000).encode()),
    ("bytes", bytes(range(256)) * 3_000),
    ("bytes at the end", b"a" * 700_001 + b"\xff"),
    ("half a character at the end", b"a" * (2 * bodies.PIECE_BYTES - 1) + "é".encode()[:1]),
    ("a character over the edge", b"a" * (bodies.PIECE_BYTES - 1) + "é".encode() + b"b" * 10),
    ("none", b""),
    ("small", b'{"payload":""}'),
]


@over_http()
async def test_large_payloads_are_encoded_piece_by_piece(front: Front) -> None:
    await front.ok("PUT", "/v1/queues/q", {})
    for name, payload in HUGE:
        await front.broker.publish("q", Message(payload, key=name, headers={"payload": '"payload":""'}))
    meter = Meter()
    with (
        patch.object(bodies, "b2a_base64", meter.counting(b2a_base64)),
        patch.object(bodies, "encode_json", meter.counting(shapes.encode_json)),
    ):
        async with meter.running():
            claim = await front.claim("q", max=100)
    assert meter.most <= 4  # the outlines of a message and of the answer, and pieces before and after them
    assert meter.total >= sum(len(payload) // bodies.PIECE_BYTES for _, payload in HUGE)
    read = await front.ok("GET", "/v1/queues/q/log", max=100)
    for messages in (claim["messages"], read["messages"]):
        found = [msgspec.convert(one, shapes.ReceivedBody).received() for one in messages]
        assert [(one.message.key, one.message.payload) for one in found] == HUGE
        assert [one.message.headers for one in found] == [{"payload": '"payload":""'}] * len(HUGE)
        plain = [shapes.encode_json(shapes.received_body(one)) for one in found]
        assert [shapes.encode_json(one) for one in messages] == plain


@over_http()
async def test_large_payloads_tell_whether_the_primary_group_is_done(front: Front) -> None:
    await front.ok("PUT", "/v1/queues/q", {"stream": True, "primary_group": "first"})
    await front.ok("PUT", "/v1/queues/q/groups/first", {})
    for _, payload in HUGE:
        await front.broker.publish("q", Message(payload))
    claim = await front.claim("q", group="first", max=2)
    await front.ok("POST", f"/v1/leases/{claim['lease']}/settle", {"verdicts": [{"action": "ack"}]})
    read = await front.ok("GET", "/v1/queues/q/log", max=100)
    assert [one["done"] for one in read["messages"]] == [True, True, *[False] * (len(HUGE) - 2)]


OUTLINE = b'{"messages":[{"payload":""}]}'


def body_of(size: int) -> bytes:
    """A JSON publish whose payload has this many bytes."""
    return OUTLINE.replace(b'""', b'"%b"' % (b"x" * (size - len(OUTLINE))))


async def send_publish(front: Front, body: bytes, parts: int = 1) -> int:
    """The answer's status to a publish whose body is sent in parts."""
    wire = await front.connect()
    head = b"POST /v1/queues/q/messages HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
    await wire.send(head + b"Content-Length: %d\r\n\r\n" % len(body))
    step = -(-len(body) // parts)
    for start in range(0, len(body), step):
        await wire.send(body[start : start + step])
    return int((await wire.reader.readuntil(b"\r\n")).split()[1])


@over_http()
async def test_a_long_body_is_decoded_on_a_thread_and_a_shorter_one_at_once(front: Front) -> None:
    await front.ok("PUT", "/v1/queues/q", {})
    threads: list[threading.Thread] = []
    real = PiecewiseDecoder.decode

    def noted(decoder: PiecewiseDecoder[Any], data: Any) -> Any:
        threads.append(threading.current_thread())
        return real(decoder, data)

    with patch.object(PiecewiseDecoder, "decode", noted):
        for parts in (1, 5):
            assert await send_publish(front, body_of(LONG_BODY_BYTES - 1), parts) == 200
        assert not threads
        for parts in (1, 5):
            assert await send_publish(front, body_of(LONG_BODY_BYTES), parts) == 200
    assert threads
    assert threading.main_thread() not in threads
    claim = await front.broker.claim("q", max=10)
    sizes = [LONG_BODY_BYTES - 1, LONG_BODY_BYTES - 1, LONG_BODY_BYTES, LONG_BODY_BYTES]
    assert [len(payload) for payload in claim.payloads()] == [size - len(OUTLINE) for size in sizes]


@over_http()
async def test_others_are_answered_while_a_long_body_is_decoded(front: Front) -> None:
    await front.ok("PUT", "/v1/queues/q", {})
    may_end, has_begun = threading.Event(), threading.Event()
    real = PiecewiseDecoder.decode

    def held(decoder: PiecewiseDecoder[Any], data: Any) -> Any:
        has_begun.set()
        assert may_end.wait(60)
        return real(decoder, data)

    with patch.object(PiecewiseDecoder, "decode", held):
        publishing = asyncio.create_task(send_publish(front, body_of(LONG_BODY_BYTES)))
        await until(has_begun.is_set)
        await front.publish("q", "another")
        may_end.set()
        assert await publishing == 200
    assert (await front.broker.claim("q", max=10)).payloads()[0] == b"another"


@over_http()
async def test_a_long_body_that_is_wrong_is_refused_with_its_place(front: Front) -> None:
    await front.ok("PUT", "/v1/queues/q", {})
    listed: list[dict[str, Any]] = [{"payload": "x" * LONG_BODY_BYTES}, {"key": 5}]
    reply = await front.call("POST", "/v1/queues/q/messages", {"messages": listed})
    assert (reply.status, reply.code) == (400, "invalid_argument")
    assert "$.messages[1].key" in reply.message
    reply = await front.call("POST", "/v1/queues/q/messages", {"messages": listed[:1]}, wrong="1")
    assert (reply.status, reply.code) == (400, "invalid_argument")
    assert (await front.broker.stats("q")).messages == 0


async def published_ids(front: Front, first: int, count: int, **query: Any) -> list[dict[str, Any]]:
    listed = [{"payload": "x", "dedup_id": f"id {number}"} for number in range(first, first + count)]
    answer = await front.ok("POST", "/v1/queues/q/messages", {"messages": listed}, **query)
    results: list[dict[str, Any]] = answer["results"]
    return results


@pytest.mark.parametrize("query", [{}, {"publish_id": "once"}])
@over_http()
async def test_many_ids_are_looked_up_and_forgotten_in_slices(front: Front, query: dict[str, str]) -> None:
    await front.ok("PUT", "/v1/queues/q", {})
    with patch("penstock.core.dedup.IDS_IN_MEMORY_MAX", 100):
        assert not any(place["duplicate"] for place in await published_ids(front, 0, 2 * MANY))
        meter = Meter()
        with (
            patch.object(Seen, "may_hold", meter.counting(Seen.may_hold)),
            patch.object(Seen, "add", meter.counting(Seen.add)),
        ):
            async with meter.running():
                results = await published_ids(front, MANY, 2 * MANY, **query)
        assert meter.total > 3 * MANY
        assert meter.most <= FORGET_AT_ONCE + SLICE_ITEMS
        assert [place["offset"] for place in results] == list(range(MANY, 3 * MANY))
        assert [place["duplicate"] for place in results] == [True] * MANY + [False] * MANY
    assert (await front.broker.stats("q")).messages == 3 * MANY


@over_http()
async def test_ids_that_come_twice_in_one_request_are_stored_once_and_in_one_commit(front: Front) -> None:
    await front.ok("PUT", "/v1/queues/q", {})
    listed = [{"payload": "x", "dedup_id": f"id {number % 4_999}"} for number in range(MANY)]
    answer = await front.ok("POST", "/v1/queues/q/messages", {"messages": listed})
    assert [place["offset"] for place in answer["results"]] == [number % 4_999 for number in range(MANY)]
    assert (await front.broker.stats("q")).messages == 4_999
