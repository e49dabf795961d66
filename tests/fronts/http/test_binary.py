"""Encoded batches over HTTP: stored as they came, sent as they are stored, and the same messages as in JSON."""

from __future__ import annotations

import base64
import datetime as dt
import os
from random import Random
from typing import Any, Final

import msgspec
import pytest

from penstock import Message
from penstock.api.results import Receipt
from penstock.batch import EncodedBatch, decode, encode, to_bytes
from penstock.model.typed_headers import json_headers, plain_headers
from penstock.wire.http.large_bodies import LARGE_BODY_BYTES, claim_parts, read_parts
from penstock.wire.http.shapes import (
    BATCH_TYPE,
    BATCHES_TYPE,
    EncodedClaim,
    EncodedRead,
    EncodedSlice,
    MessageBody,
    message_body,
)
from tests.fronts.http.rig import Front, on_both_loops, over_http, until

BATCH: Final = {"Content-Type": BATCH_TYPE}
BATCHES: Final = {"Accept": BATCHES_TYPE}
TIME: Final = dt.datetime(2026, 1, 31, 12, 0, 0, 123_456, tzinfo=dt.UTC)


def various(count: int) -> list[Message]:
    """Messages with every kind of metadata, some with none."""
    random = Random(count)
    headers: list[dict[str, Any] | None] = [
        None,
        {},
        {"bytes": b"\x00\xff", "time": TIME, "none": None, "deep": [{"a": [b"", TIME, {"$base64": "no"}]}]},
        {"$time": "just a name", "object": {"$object": {"x": 1}}, "text": "\u2713", "number": 1.5},
    ]
    return [
        Message(
            random.randbytes(random.randrange(200)) if number % 3 else f"text {number} \u2713".encode(),
            partition=f"p{number % 4}" if number % 2 else None,
            key="k" if number % 5 == 0 else None,
            headers=headers[number % 4],
            priority=number % 256,
            ttl_ms=10_000_000 + number if number % 7 == 0 else None,
            not_before_ms=number,
            dedup_id=f"d{number}" if number % 6 == 0 else None,
            content_type="text/plain" if number % 3 == 0 else None,
            correlation_id=f"c{number}" if number % 4 == 0 else None,
            trace_id="t" if number % 8 == 0 else None,
        )
        for number in range(count)
    ]


def of_json(body: dict[str, Any]) -> Message:
    """A received message's JSON as the message that was published."""
    fields = {name: value for name, value in body.items() if name in MessageBody.__struct_fields__}
    return msgspec.convert(fields, MessageBody).message()


def of_slices(slices: list[EncodedSlice]) -> list[tuple[int, int, Message]]:
    found = []
    for part in slices:
        messages = decode(EncodedBatch(part.count, part.meta, part.body))
        assert len(messages) == part.count
        found += [(part.offset + index, part.attempt, message) for index, message in enumerate(messages)]
    return found


async def put(front: Front, messages: list[Message], path: str = "/v1/queues/mail/messages", **query: Any) -> Any:
    return await front.ok("POST", path, to_bytes(encode(messages)), headers=BATCH, **query)


# In ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["memory", "sqlite"])
def test_a_batch_is_stored_as_it_came(engine: str) -> None:
    messages = various(500)

    @over_http(engine=engine)
    async def scenario(front: Front) -> None:
        await front.broker.declare_queue("mail")
        answer = await put(front, messages)
        assert answer == {"count": 500, "parts": [{"queue": "mail", "lane": 0, "offset": 0, "count": 500}]}
        page = await front.broker.browse("mail", max=500)
        assert [one.message for one in page.messages] == messages

    scenario()


@over_http()
async def test_a_batch_over_lanes_with_duplicates(front: Front) -> None:
    await front.broker.declare_queue("mail", lanes=3)
    messages = [Message(b"%d" % one, partition=f"p{one}", dedup_id=f"d{one}") for one in range(30)]
    await put(front, messages[:10])
    answer = await put(front, messages)
    places = [place for part in answer["parts"] for place in part["indexes"]]
    assert sorted(places) == list(range(30))
    duplicates = [part["indexes"][int(position)] for part in answer["parts"] for position in part.get("duplicates", {})]
    assert sorted(duplicates) == list(range(10))
    assert (await front.broker.stats("mail")).published == 30
    named = [await put(front, [Message(b"x")] * 3, publish_id="once") for _ in range(2)]
    assert named[0]["parts"][0]["offset"] == named[1]["parts"][0]["offset"] or named[1]["parts"][0]["duplicates"]
    assert (await front.broker.stats("mail")).published == 33


@over_http()
async def test_a_batch_to_an_exchange(front: Front) -> None:
    for queue in ("eu", "all"):
        await front.broker.declare_queue(queue)
    await front.broker.declare_exchange("orders", kind="topic")
    await front.broker.bind("orders", "eu", "eu.#")
    await front.broker.bind("orders", "all", "#")
    messages = [Message(b"%d" % one, key="eu.x" if one % 2 else "us.x") for one in range(10)]
    answer = await put(front, messages, "/v1/exchanges/orders/messages")
    counts = {part["queue"]: part["count"] for part in answer["parts"]}
    assert counts == {"eu": 5, "all": 10}
    assert answer["count"] == 10
    stored = (await front.broker.browse("eu")).messages
    assert [one.payload for one in stored] == [b"1", b"3", b"5", b"7", b"9"]
    reply = await front.call(
        "POST", "/v1/exchanges/orders/messages", to_bytes(encode(messages)), headers=BATCH, mandatory="1"
    )
    assert reply.status == 200
    await front.broker.unbind("orders", "all", "#")
    reply = await front.call(
        "POST", "/v1/exchanges/orders/messages", to_bytes(encode(messages)), headers=BATCH, mandatory="true"
    )
    assert (reply.status, reply.code) == (422, "unroutable")


@over_http()
async def test_bytes_that_are_no_batch(front: Front) -> None:
    await front.broker.declare_queue("mail")
    good = to_bytes(encode(various(50)))
    random = Random(7)
    bad = [b"", b"PBAT", b"\0" * 100, good[:-1], good + b"\0", good[: len(good) // 2], good[4:], b'{"messages":[{}]}']
    for _ in range(300):
        damaged = bytearray(good)
        for _ in range(random.randrange(1, 4)):
            damaged[random.randrange(len(good))] ^= 1 << random.randrange(8)
        bad.append(bytes(damaged))
    published = 0
    for body in bad:
        reply = await front.call("POST", "/v1/queues/mail/messages", body, headers=BATCH)
        assert reply.status in (200, 400), reply
        if reply.status == 200:  # a bit of a text or payload makes another text or payload
            published += 50
            assert body[: len(good)] != good
        else:
            assert reply.code in ("invalid_batch", "invalid_argument"), reply
    assert (await front.broker.stats("mail")).published <= published
    assert await front.is_alive()
    for body in bad[:8]:
        assert (await front.call("POST", "/v1/queues/mail/messages", body, headers=BATCH)).status == 400


@over_http()
async def test_a_batch_that_is_too_large_or_whose_messages_are(front: Front) -> None:
    await front.broker.declare_queue("mail", max_message_bytes=1_000, max_length=100)
    await front.broker.declare_group("mail", "default")
    reply = await front.call(
        "POST", "/v1/queues/mail/messages", to_bytes(encode([Message(b"x" * 1_001)])), headers=BATCH
    )
    assert (reply.status, reply.code) == (413, "too_large")
    many = to_bytes(encode([Message(b"x")] * 101))
    assert (await front.call("POST", "/v1/queues/mail/messages", many, headers=BATCH)).status == 429


# Out -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["memory", "sqlite"])
def test_a_claim_gives_the_same_in_both_forms(engine: str) -> None:
    messages = various(400)

    @over_http(engine=engine)
    async def scenario(front: Front) -> None:
        await front.broker.declare_queue("mail")
        for group in ("json", "binary"):
            await front.broker.declare_group("mail", group)
        await put(front, messages[:250])
        await front.broker.publish_many("mail", messages[250:])
        for most in (1, 7, 300, 1_000):  # pieces of a batch, over the end of one, the rest
            as_json = await front.claim("mail", group="json", max=most)
            reply = await front.call("POST", "/v1/queues/mail/claim", {"group": "binary", "max": most}, headers=BATCHES)
            assert reply.headers["content-type"] == BATCHES_TYPE
            claim = msgspec.msgpack.decode(reply.body, type=EncodedClaim)
            expected = [(one["offset"], one["attempt"], of_json(one)) for one in as_json["messages"]]
            assert of_slices(claim.slices) == expected
            assert [message for _, _, message in expected] == messages[expected[0][0] : expected[-1][0] + 1]
            assert (claim.queue, claim.lane) == ("mail", 0)
            assert claim.lease is not None
            await front.ok("POST", f"/v1/leases/{claim.lease}/settle", {"verdicts": [{"action": "ack"}]})
        reply = await front.call("POST", "/v1/queues/mail/claim", {"group": "binary"}, headers=BATCHES)
        assert msgspec.msgpack.decode(reply.body, type=EncodedClaim) == EncodedClaim("mail", 0, None, 0, [])

    scenario()


@over_http()
async def test_a_claim_with_holes_and_attempts(front: Front) -> None:
    await front.broker.declare_queue("mail", backoff_ms=0, max_attempts=0)
    await put(front, [Message(b"%d" % one) for one in range(100)])
    first = await front.claim("mail", max=100)
    keep = [one for one in range(100) if one % 3 == 0]
    again = [one for one in range(100) if one % 3 == 1]
    rest = [one for one in range(100) if one % 3 == 2]
    verdicts = [
        {"action": "ack", "offsets": keep},
        {"action": "nack", "offsets": again, "delay": 0},
        {"action": "release", "offsets": rest},
    ]
    await front.ok("POST", f"/v1/leases/{first['lease']}/settle", {"verdicts": verdicts})
    reply = await front.call("POST", "/v1/queues/mail/claim", {"max": 100}, headers=BATCHES)
    found = of_slices(msgspec.msgpack.decode(reply.body, type=EncodedClaim).slices)
    assert [(offset, attempt, message.payload) for offset, attempt, message in found] == [
        (one, 2 if one % 3 == 1 else 1, b"%d" % one) for one in range(100) if one % 3
    ]


@over_http(engine="sqlite")
async def test_reads_give_the_same_in_both_forms(front: Front) -> None:
    messages = various(300)
    await front.broker.declare_queue("mail", primary_group="default", retain_messages=10_000)
    await front.broker.declare_group("mail", "default")
    await put(front, messages)
    await front.broker.ack(await front.broker.claim("mail", max=100))
    for group in ("json", "binary"):
        await front.broker.declare_group("mail", group, kind="stream")
    for most in (40, 1_000):
        as_json = await front.ok("POST", "/v1/queues/mail/groups/json/read", {"max": most})
        reply = await front.call("POST", "/v1/queues/mail/groups/binary/read", {"max": most}, headers=BATCHES)
        check_read(as_json, msgspec.msgpack.decode(reply.body, type=EncodedRead))
    for query in ({"offset": 0, "max": 1}, {"offset": 33, "max": 99}, {"offset": 300}, {"time_ms": 0, "max": 1_000}):
        as_json = await front.ok("GET", "/v1/queues/mail/log", **query)
        reply = await front.call("GET", "/v1/queues/mail/log", headers=BATCHES, **query)
        check_read(as_json, msgspec.msgpack.decode(reply.body, type=EncodedRead))


def check_read(as_json: Any, read: EncodedRead) -> None:
    found = of_slices(read.slices)
    assert [(offset, message) for offset, _, message in found] == [
        (one["offset"], of_json(one)) for one in as_json["messages"]
    ]
    assert (read.queue, read.lane, read.next_offset) == (as_json["queue"], as_json["lane"], as_json["next_offset"])
    assert read.primary_committed == as_json.get("primary_committed")
    assert (read.done or []) == [one["done"] for one in as_json["messages"]]


def publish_of(messages: list[Message]) -> bytes:
    """A publish as a client writes it that sends the same headers every time."""
    body = to_bytes(encode(messages))
    head = b"POST /v1/queues/mail/messages HTTP/1.1\r\nhost: t\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
    return head % (BATCH_TYPE.encode(), len(body)) + body


@on_both_loops
@over_http(request_seconds=0.2)
async def test_a_large_body_that_does_not_go_on_is_not_waited_for(front: Front, loop: str) -> None:
    await front.broker.declare_queue("mail")
    large = publish_of([Message(os.urandom(LARGE_BODY_BYTES))] * 3)
    for cut in (len(large) // 2, len(large) - 1):
        wire = await front.connect()
        await wire.send(publish_of([Message(b"small")]))
        assert (await wire.reply()).status == 200
        await wire.send(large[:cut])
        reply = await wire.reply()
        assert (reply.status, reply.code) == (408, "timeout")
        await wire.send(large[cut:])  # too late
        assert await wire.is_closed()
    assert (await front.broker.stats("mail")).published == 2


@on_both_loops
@over_http()
async def test_a_large_body_that_breaks_off_is_none(front: Front, loop: str) -> None:
    await front.broker.declare_queue("mail")
    large = publish_of([Message(os.urandom(LARGE_BODY_BYTES))] * 3)
    for is_reset in (False, True):
        wire = await front.connect()
        await wire.send(publish_of([Message(b"small")]))
        assert (await wire.reply()).status == 200
        await wire.send(large[:-1])
        if is_reset:
            wire.reset()
        else:
            wire.writer.write_eof()
            assert await wire.is_closed()
    await until(lambda: not front.server.connections)
    assert (await front.broker.stats("mail")).published == 2


@on_both_loops
@over_http()
async def test_large_batches_come_and_go_as_they_are(front: Front, loop: str) -> None:
    """Large enough to arrive, and to be sent, in parts: by a head that is known and by one that is not."""
    await front.broker.declare_queue("mail", retain_messages=10_000)
    await front.broker.declare_group("mail", "default")
    await front.broker.declare_group("mail", "stream", kind="stream")
    sent: list[Message] = []
    wire = await front.connect()
    for number in range(4):
        batch = [Message(os.urandom(9_000 + one), key=f"{number}") for one in range(70)]
        assert len(to_bytes(encode(batch))) > 8 * LARGE_BODY_BYTES
        await wire.send(publish_of(batch))
        assert (await wire.reply()).json()["count"] == 70
        sent += batch
    assert front.server.heads._known
    reply = await front.call("POST", "/v1/queues/mail/groups/stream/read", {"max": 1_000}, headers=BATCHES)
    read = msgspec.msgpack.decode(reply.body, type=EncodedRead)
    assert [message for _, _, message in of_slices(read.slices)] == sent
    assert (read.queue, read.next_offset, read.done) == ("mail", len(sent), None)
    assert len(read.slices) == 4
    for most in (70, 100, 110):  # one batch, parts of two
        reply = await front.call("POST", "/v1/queues/mail/claim", {"max": most}, headers=BATCHES)
        claim = msgspec.msgpack.decode(reply.body, type=EncodedClaim)
        assert [message for _, _, message in of_slices(claim.slices)] == sent[:most]
        assert int(reply.headers["content-length"]) == len(reply.body) > 8 * LARGE_BODY_BYTES
        await front.ok("POST", f"/v1/leases/{claim.lease}/settle", {"verdicts": [{"action": "ack"}]})
        del sent[:most]
    assert not sent


@pytest.mark.parametrize("sizes", [[], [1], [LARGE_BODY_BYTES], [1, 3 * LARGE_BODY_BYTES], [LARGE_BODY_BYTES] * 20])
@pytest.mark.parametrize("done", [None, [], [True, False]])
def test_an_answer_in_parts_is_the_answer(sizes: list[int], done: list[bool] | None) -> None:
    slices = [EncodedSlice(2**40 + one, 17, 3, 5, b"meta", os.urandom(one)) for one in sizes]
    claim = EncodedClaim("queue", 7, "1-2-3", 2**41, slices)
    assert msgspec.msgpack.decode(b"".join(claim_parts(claim)), type=EncodedClaim) == claim
    read = EncodedRead("queue", 7, 2**40, None, slices, done)
    assert msgspec.msgpack.decode(b"".join(read_parts(read)), type=EncodedRead) == read
    for parts in (claim_parts(claim), read_parts(read)):
        are_as_they_are = [any(part is one.body for part in parts) for one in slices]
        assert are_as_they_are == [sum(sizes) >= LARGE_BODY_BYTES] * len(slices)


@over_http()
async def test_the_form_is_json_unless_it_is_asked_for_by_name(front: Front) -> None:
    await front.broker.declare_queue("mail")
    for accept in ("*/*", "application/json", "text/html, */*;q=0.1", ""):
        reply = await front.call("POST", "/v1/queues/mail/claim", {}, headers={"Accept": accept})
        assert reply.headers["content-type"] == "application/json"
    for accept in (BATCHES_TYPE, f"application/json;q=0.5, {BATCHES_TYPE}", BATCHES_TYPE.upper()):
        reply = await front.call("POST", "/v1/queues/mail/claim", {}, headers={"Accept": accept})
        assert reply.headers["content-type"] == BATCHES_TYPE
    twice = f"Accept: application/json\r\nAccept: {BATCHES_TYPE}\r\n".encode()
    reply = await front.say(
        b"POST /v1/queues/mail/claim HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n" + twice + b"\r\n"
    )
    assert reply.headers["content-type"] == BATCHES_TYPE
    refused = await front.call("POST", "/v1/queues/none/claim", {}, headers=BATCHES)
    assert refused.code == "not_found"  # errors are JSON always


# The shapes by themselves --------------------------------------------------------------------------------


def test_typed_headers_survive_json() -> None:
    for message in various(40):
        again = msgspec.json.decode(msgspec.json.encode(message_body(message)), type=MessageBody).message()
        assert again == message
    tricky = {
        "a": {"$base64": "x"},
        "b": {"$object": {"$time": "y"}},
        "c": [{"$time": 5}, {"$base64": "a", "b": 1}],
        "d": {"$object": 1},
    }
    assert plain_headers(msgspec.json.decode(msgspec.json.encode(json_headers(tricky)))) == tricky


def test_a_payload_that_is_no_text_is_sent_in_base64() -> None:
    body = msgspec.json.decode(msgspec.json.encode(message_body(Message(b"\xff\x00"))))
    assert base64.b64decode(body["payload_base64"]) == b"\xff\x00"
    assert "payload" not in body


def test_an_empty_receipt_has_no_parts() -> None:
    from penstock.fronts.http.handlers.bodies import parts_answer

    assert msgspec.json.decode(parts_answer(Receipt(0, [])).body) == {"count": 0, "parts": []}
