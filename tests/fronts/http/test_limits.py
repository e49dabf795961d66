"""What a client can make the server hold: each limit at its value and one past it, and slow or stuck clients."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import struct
from typing import Any, Final

import pytest

from penstock import Message
from penstock.fronts import listening
from penstock.fronts.http import connection as connections
from tests.fronts.http.rig import Front, Wire, on_both_loops, over_http, soon, until

HEALTH: Final = b"GET /healthz HTTP/1.1\r\nHost: t\r\n\r\n"


def claim_request(queue: str = "mail", **fields: Any) -> bytes:
    body = json.dumps(fields).encode()
    return (
        b"POST /v1/queues/%s/claim HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (queue.encode(), len(body), body)
    )


def received_bytes(front: Front) -> int:
    """What the server holds of requests that nobody has looked at yet."""
    return sum(len(one._requests) for one in front.server.connections)


# Heads ---------------------------------------------------------------------------------------------------


def head_of(size: int) -> bytes:
    """A request whose line and headers have about so many bytes."""
    return b"GET /healthz HTTP/1.1\r\nHost: t\r\nX-Long: %s\r\n\r\n" % (b"x" * size)


@over_http(max_header_bytes=4_000)
async def test_headers_at_their_limit_and_past_it(front: Front) -> None:
    assert (await front.say(head_of(3_900))).status == 200
    for head in (head_of(4_000), head_of(100_000), head_of(10_000_000)[:50_000]):
        reply = await front.say(head)
        assert (reply.status, reply.code) == (431, "headers_too_large")
        assert "4000" in reply.message


@over_http(max_header_bytes=4_000)
async def test_a_target_that_is_too_long(front: Front) -> None:
    assert (await front.say(b"GET /%s HTTP/1.1\r\nHost: t\r\n\r\n" % (b"x" * 3_800))).status == 404
    assert (await front.say(b"GET /%s HTTP/1.1\r\nHost: t\r\n\r\n" % (b"x" * 4_000))).status == 431
    assert (await front.say(b"GET /%s" % (b"x" * 5_000))).status == 431


@over_http()
async def test_so_many_headers_and_no_more(front: Front) -> None:
    def request(count: int) -> bytes:
        return (
            b"GET /healthz HTTP/1.1\r\nHost: t\r\n" + b"".join(b"X-%d: y\r\n" % one for one in range(count)) + b"\r\n"
        )

    assert (await front.say(request(connections.HEADERS_MAX - 1))).status == 200
    assert (await front.say(request(connections.HEADERS_MAX))).status == 431
    assert (await front.say(request(100_000))).status == 431


@pytest.mark.parametrize("part", ["trailer", "extension"])
@over_http(max_header_bytes=4_000)
async def test_what_stands_around_chunks_is_bounded_too(front: Front, part: str) -> None:
    wire = await front.connect()
    start = b"0\r\nX-Trailer: " if part == "trailer" else b"3;extension="
    await wire.send(b"POST /v1/queues/q/claim HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n" + start)
    for _ in range(20):
        wire.writer.write(b"x" * 1_000)
        await asyncio.sleep(0)
    assert (await wire.reply()).status == 431
    assert await wire.is_closed()


# Bodies --------------------------------------------------------------------------------------------------


def publish(size: int) -> bytes:
    return b'{"messages":[{"payload":"%s"}]}' % (b"x" * (size - 29))


HEAD: Final = b"POST /v1/queues/mail/messages HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"


@over_http(max_body_bytes=100_000)
async def test_bodies_at_their_limit_and_past_it(front: Front) -> None:
    await front.broker.declare_queue("mail")
    for size, status in ((100_000, 200), (100_001, 413)):
        body = publish(size)
        assert len(body) == size
        by_length = await front.say(HEAD + b"Content-Length: %d\r\n\r\n%s" % (size, body))
        assert by_length.status == status
        chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (size, body)
        by_chunks = await front.say(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunked)
        assert by_chunks.status == status
        if status == 413:
            assert by_length.code == by_chunks.code == "too_large"
            assert "100000" in by_length.message
    assert (await front.broker.stats("mail")).published == 2


@over_http(max_body_bytes=100_000)
async def test_a_body_s_announced_size_is_refused_without_waiting_for_it(front: Front) -> None:
    wire = await front.connect()
    await wire.send(HEAD + b"Content-Length: 5000000000\r\n\r\n")
    assert (await wire.reply()).status == 413


@on_both_loops
@over_http(max_body_bytes=100_000)
async def test_a_client_that_goes_on_sending_hears_why_it_was_refused(front: Front, loop: str) -> None:
    """Closing with unread bytes would reset the connection, and the answer would be lost on its way."""
    wire = await front.connect()
    await wire.send(HEAD + b"Content-Length: 30000000\r\n\r\n")
    for _ in range(300):
        wire.writer.write(b"x" * 100_000)
        await soon(wire.writer.drain())
    assert (await wire.reply()).code == "too_large"
    wire.writer.write_eof()
    assert await wire.is_closed()
    await until(lambda: not front.server.connections)


@over_http(max_body_bytes=100_000, request_seconds=0.5)
async def test_a_client_that_never_stops_sending_is_closed_all_the_same(front: Front) -> None:
    wire = await front.connect()
    await wire.send(HEAD + b"Content-Length: 9000000000000\r\n\r\n")

    async def flood() -> None:
        while True:
            await wire.send(b"x" * 100_000)

    with pytest.raises(ConnectionError):
        await soon(flood())
    assert not front.server.connections


# Requests behind requests --------------------------------------------------------------------------------


@on_both_loops
@over_http()
async def test_a_client_that_floods_behind_a_slow_request_is_not_read_from(front: Front, loop: str) -> None:
    await front.broker.declare_queue("mail")
    wire = await front.connect()
    await wire.send(claim_request(wait=60) + HEALTH)
    sent = 0

    async def flood() -> None:
        nonlocal sent
        while True:
            wire.writer.write(HEALTH * 2_000)
            sent += len(HEALTH) * 2_000
            await asyncio.wait_for(wire.writer.drain(), 0.5)
            assert sent < 50_000_000, "the server takes it all"

    with pytest.raises(asyncio.TimeoutError):
        await flood()
    assert received_bytes(front) < 20_000
    assert await front.is_alive()
    wire.reset()


# Connections and waits -----------------------------------------------------------------------------------


@on_both_loops
@over_http(max_connections=5)
async def test_one_connection_too_many(front: Front, loop: str) -> None:
    wires = [await front.connect() for _ in range(5)]
    for wire in wires:
        await wire.send(HEALTH)
        assert (await wire.reply()).status == 200
    for is_talking in (False, True):
        extra = await front.connect()
        if is_talking:
            await extra.send(HEALTH)
        reply = await extra.reply()
        assert (reply.status, reply.code) == (503, "too_many_connections")
        assert reply.headers["retry-after"] == "1"
        assert await extra.is_closed()
        extra.close()
    for wire in wires:  # the others go on
        await wire.send(HEALTH)
        assert (await wire.reply()).status == 200
    wires[0].close()
    await until(lambda: len(front.server.connections) < 5)
    again = await front.connect()
    await again.send(HEALTH)
    assert (await again.reply()).status == 200


@on_both_loops
@over_http(max_connections=1)
async def test_far_too_many_connections_are_only_closed(front: Front, loop: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(listening, "REFUSED_MAX", 2)
    first = await front.connect()
    await first.send(HEALTH)
    assert (await first.reply()).status == 200
    told = [await front.connect() for _ in range(2)]
    for wire in told:  # they hear why, and stay until they have said goodbye themselves
        assert (await wire.reply()).status == 503
    assert await (await front.connect()).is_closed()
    await first.send(HEALTH)
    assert (await first.reply()).status == 200


@over_http(max_long_polls=3)
async def test_one_long_poll_too_many(front: Front) -> None:
    await front.broker.declare_queue("mail")
    await front.broker.declare_group("mail", "watch", kind="stream")
    wires = [await front.connect() for _ in range(3)]
    for wire in wires:
        await wire.send(claim_request(wait=60))
    await until(lambda: front.server.measures.long_polls == 3)
    reply = await front.call("POST", "/v1/queues/mail/claim", {"wait": 1})
    assert (reply.status, reply.code) == (429, "overloaded")
    assert reply.headers["retry-after"] == "1"
    assert (await front.call("POST", "/v1/queues/mail/groups/watch/read", {"wait": 1})).status == 429
    assert (await front.claim("mail"))["messages"] == []  # without a wait there is room
    wires[0].reset()
    await until(lambda: front.server.measures.long_polls == 2)
    assert (await front.call("POST", "/v1/queues/mail/claim", {"wait": 0.01})).status == 200
    assert front.server.measures.long_polls == 2


@over_http()
async def test_a_wait_that_is_refused_gives_its_place_back(front: Front) -> None:
    for path, status in (("/v1/queues/none/claim", 404), ("/v1/queues/none/groups/g/read", 404)):
        assert (await front.call("POST", path, {"wait": 5})).status == status
    assert (await front.call("POST", "/v1/queues/none/claim", {"wait": 1e9})).status in (400, 404)
    assert front.server.measures.long_polls == 0


# Slow and stuck clients ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "part",
    [
        b"G",
        b"GET /healthz HTTP/1.1\r\nHost: t\r\n",
        HEAD + b"Content-Length: 10\r\n\r\nabc",
        HEALTH + b"GET /healthz HT",
    ],
    ids=["method", "head", "body", "second request"],
)
@over_http(request_seconds=0.3, idle_seconds=60.0)
async def test_a_request_that_does_not_arrive_in_time(front: Front, part: bytes) -> None:
    wire = await front.connect()
    await wire.send(part)
    if part.startswith(HEALTH):
        assert (await wire.reply()).status == 200
    reply = await wire.reply()
    assert (reply.status, reply.code) == (408, "timeout")
    assert await wire.is_closed()


@over_http(request_seconds=0.5)
async def test_a_request_that_drips_is_not_kept_alive_by_dripping(front: Front) -> None:
    wire = await front.connect()

    async def drip() -> None:
        while True:
            await wire.send(b"x" if wire.writer.get_extra_info("peername") else b"")
            await asyncio.sleep(0.05)

    await wire.send(b"GET /healthz HTTP/1.1\r\nX: ")
    dripping = asyncio.create_task(drip())
    assert (await wire.reply()).status == 408
    dripping.cancel()


@over_http(request_seconds=0.3)
async def test_a_connection_that_says_nothing_is_closed(front: Front) -> None:
    assert await (await front.connect()).is_closed()


@over_http(idle_seconds=0.3)
async def test_a_connection_that_says_nothing_more_is_closed(front: Front) -> None:
    wire = await front.connect()
    await wire.send(HEALTH)
    assert (await wire.reply()).status == 200
    assert await wire.is_closed()


@over_http(idle_seconds=0.3, request_seconds=0.3)
async def test_a_long_poll_may_take_longer_than_a_request(front: Front) -> None:
    await front.broker.declare_queue("mail")
    wire = await front.connect()
    await wire.send(claim_request(wait=2.5))
    assert (await wire.reply()).json()["messages"] == []


async def stuck_claim(front: Front, megabytes: int) -> Wire:
    """A client that asks for a lot and does not take it."""
    wire = await front.connect(limit=1_024)
    wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
    sock = wire.writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    await wire.send(claim_request("large", max=megabytes))
    return wire


@pytest.mark.timeout(60)
@on_both_loops
@over_http(request_seconds=1.0)
async def test_a_client_that_does_not_take_its_answer_costs_others_nothing(front: Front, loop: str) -> None:
    await front.broker.declare_queue("large", max_attempts=0)
    await front.broker.declare_queue("mail")
    await front.broker.publish_many("large", [Message(b"x" * 1_000_000) for _ in range(12)])
    stuck = await stuck_claim(front, 12)
    await until(lambda: any(one._room is not None for one in front.server.connections))
    running = asyncio.get_running_loop()
    slowest = 0.0
    while front.server.measures.connections > 1:
        began = running.time()
        await soon(front.publish("mail", "x"))
        slowest = max(slowest, running.time() - began)
        await asyncio.sleep(0.01)
    assert slowest < 0.5
    stuck.close()


@over_http(request_seconds=1.0)
async def test_a_stream_is_made_no_faster_than_it_is_taken(front: Front) -> None:
    await front.broker.declare_queue("mail")
    await front.broker.publish_many("mail", [Message(b"x" * 10_000) for _ in range(2_000)])
    claim = await front.broker.claim("mail", max=2_000)
    await front.broker.reject(claim, error="no")
    wire = await front.connect(limit=1_024)
    await wire.send(b"GET /v1/queues/mail/groups/default/dead/export HTTP/1.1\r\nHost: t\r\n\r\n")
    await until(lambda: any(one._room is not None for one in front.server.connections))
    [stuck] = [one for one in front.server.connections if one._room is not None]
    assert stuck._transport.get_write_buffer_size() < 8_000_000  # one page of 500 at the most, not all 20 MB
    await until(lambda: front.server.measures.connections == 0)


# Many ----------------------------------------------------------------------------------------------------


def open_files() -> int:
    """Connections that may be opened here: each needs a file at both ends."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(10_000, (soft - 500) // 2)


@pytest.mark.timeout(120)
@over_http(idle_seconds=300.0, request_seconds=300.0)
async def test_thousands_of_idle_connections_are_cheap(front: Front) -> None:
    count = min(3_000, open_files())
    loop = asyncio.get_running_loop()
    sockets = []
    try:
        for _ in range(count):
            one = socket.socket()
            one.setblocking(False)
            await loop.sock_connect(one, ("127.0.0.1", front.server.port))
            sockets.append(one)
        await until(lambda: front.server.measures.connections == count)
        began = loop.time()
        front.server._sweeper.cancel()  # type: ignore[union-attr]
        front.server.sweep()
        assert loop.time() - began < 0.1
        began = loop.time()
        for _ in range(20):
            assert await front.is_alive()
        assert (loop.time() - began) / 20 < 0.1
    finally:
        for one in sockets:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.close()
    await until(lambda: front.server.measures.connections <= 1)
