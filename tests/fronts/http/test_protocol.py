"""HTTP/1.1 itself: how requests may arrive, in what order they are answered, and what is no request at all."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

import pytest

from tests.fronts.http.rig import Front, on_both_loops, over_http, soon

BODY: Final = b'{"messages":[{"payload":"hello"}]}'
PUBLISH: Final = (
    b"POST /v1/queues/mail/messages HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n" % len(BODY)
) + BODY
CHUNKED: Final = (
    b"POST /v1/queues/mail/messages HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


def chunks(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (*parts, b""))


async def published(front: Front, queue: str = "mail") -> int:
    return (await front.broker.stats(queue)).published


# How a request may arrive --------------------------------------------------------------------------------


@over_http()
async def test_a_request_may_be_split_at_every_byte(front: Front) -> None:
    await front.broker.declare_queue("mail")
    wire = await front.connect(limit=2**20)
    for place in range(1, len(PUBLISH)):
        await wire.send(PUBLISH[:place])
        await asyncio.sleep(0)
        await wire.send(PUBLISH[place:])
        assert (await wire.reply()).json()["results"][0]["offset"] == place - 1
    assert await published(front) == len(PUBLISH) - 1


@over_http()
async def test_a_request_may_come_byte_by_byte(front: Front) -> None:
    await front.broker.declare_queue("mail")
    for request in (PUBLISH, CHUNKED + chunks(BODY[:5], BODY[5:])):
        wire = await front.connect()
        for index in range(len(request)):
            await wire.send(request[index : index + 1])
            await asyncio.sleep(0)
        assert (await wire.reply()).status == 200
    assert await published(front) == 2


@on_both_loops
@over_http()
async def test_requests_that_come_together_are_answered_in_order(front: Front, loop: str) -> None:
    await front.broker.declare_queue("mail")
    count = 300
    requests = []
    for number in range(count):
        body = json.dumps({"messages": [{"payload": str(number)}]}).encode()
        requests.append(
            b"POST /v1/queues/mail/messages HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
            b"X-Request-Id: number-%d\r\nContent-Length: %d\r\n\r\n%s" % (number, len(body), body)
        )
    wire = await front.connect()
    await wire.send(b"".join(requests))
    for number in range(count):
        reply = await wire.reply()
        assert reply.headers["x-request-id"] == f"number-{number}"
        assert reply.json()["results"][0]["offset"] == number
    page = await front.broker.browse("mail", max=count)
    assert [int(one.payload) for one in page.messages] == list(range(count))


@over_http()
async def test_a_fast_answer_waits_for_the_slow_one_before_it(front: Front) -> None:
    await front.broker.declare_queue("mail")
    claim = b'{"wait":20}'
    wire = await front.connect()
    await wire.send(
        b"POST /v1/queues/mail/claim HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s"
        b"GET /healthz HTTP/1.1\r\nHost: t\r\n\r\n" % (len(claim), claim)
    )
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(wire.reader.read(1), 0.1)
    await front.publish("mail", "at last")
    assert (await wire.reply()).json()["messages"][0]["payload"] == "at last"
    assert (await wire.reply()).json() == {"status": "alive"}


@over_http()
async def test_chunked_bodies(front: Front) -> None:
    await front.broker.declare_queue("mail")
    for body in (chunks(BODY), chunks(*(BODY[index : index + 1] for index in range(len(BODY))))):
        assert (await front.say(CHUNKED + body)).status == 200
    with_extension = b"%x;name=value\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
    assert (await front.say(CHUNKED + with_extension)).status == 200
    assert await published(front) == 3


@over_http(token="secret")
async def test_what_stands_behind_a_chunked_body_is_no_header(front: Front) -> None:
    await front.broker.declare_queue("mail")
    trailer = b"%x\r\n%s\r\n0\r\nAuthorization: Bearer secret\r\n\r\n" % (len(BODY), BODY)
    assert (await front.say(CHUNKED + trailer)).code == "unauthorized"
    assert await published(front) == 0


@on_both_loops
@over_http()
async def test_a_client_that_asks_before_it_sends_its_body_is_told_to(front: Front, loop: str) -> None:
    await front.broker.declare_queue("mail")
    wire = await front.connect()
    head = PUBLISH[: -len(BODY) - 2] + b"Expect: 100-continue\r\n\r\n"
    await wire.send(head)
    assert (await wire.reply()).status == 100
    await wire.send(BODY)
    assert (await wire.reply()).status == 200


@over_http()
async def test_to_continue_is_said_after_the_answers_before_it(front: Front) -> None:
    await front.broker.declare_queue("mail")
    wire = await front.connect()
    claim = b'{"wait":20}'
    await wire.send(
        b"POST /v1/queues/mail/claim HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s"
        % (len(claim), claim)
        + PUBLISH[: -len(BODY) - 2]
        + b"Expect: 100-continue\r\n\r\n"
    )
    await front.publish("mail", "first")
    assert (await wire.reply()).json()["messages"][0]["payload"] == "first"
    assert (await wire.reply()).status == 100
    await wire.send(BODY)
    assert (await wire.reply()).json()["results"][0]["offset"] == 1


@over_http(max_body_bytes=1_000)
async def test_a_body_that_is_too_large_is_refused_before_it_is_sent(front: Front) -> None:
    wire = await front.connect()
    await wire.send(
        b"POST /v1/queues/mail/messages HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
        b"Content-Length: 1001\r\nExpect: 100-continue\r\n\r\n"
    )
    assert (await wire.reply()).code == "too_large"
    assert await wire.is_closed()


# Keeping and closing -------------------------------------------------------------------------------------


@on_both_loops
@over_http()
async def test_a_connection_is_kept_until_somebody_wants_it_closed(front: Front, loop: str) -> None:
    wire = await front.connect()
    for _ in range(3):
        await wire.send(b"GET /healthz HTTP/1.1\r\nHost: t\r\n\r\n")
        assert "connection" not in (await wire.reply()).headers
    await wire.send(b"GET /healthz HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
    assert (await wire.reply()).headers["connection"] == "close"
    assert await wire.is_closed()


@over_http()
async def test_http_1_0(front: Front) -> None:
    wire = await front.connect()
    await wire.send(b"GET /healthz HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    assert (await wire.reply()).headers["connection"] == "keep-alive"
    await wire.send(b"GET /healthz HTTP/1.0\r\n\r\n")
    reply = await wire.reply()
    assert (reply.status, reply.headers["connection"]) == (200, "close")
    assert await wire.is_closed()


@over_http()
async def test_http_1_0_knows_no_chunks(front: Front) -> None:
    await front.broker.declare_queue("mail")
    await front.publish("mail", "bad")
    await front.broker.reject(await front.broker.claim("mail"), error="no")
    wire = await front.connect()
    await wire.send(b"GET /v1/queues/mail/groups/default/dead/export HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    reply = await wire.reply()
    assert "transfer-encoding" not in reply.headers
    assert reply.headers["connection"] == "close"
    assert json.loads(reply.body)["message"]["payload"] == "bad"


@over_http()
async def test_head_is_get_without_its_body(front: Front) -> None:
    wire = await front.connect()
    for path in (b"/healthz", b"/openapi.json", b"/v1/events"):
        await wire.send(b"GET %s HTTP/1.1\r\nHost: t\r\n\r\n" % path if path != b"/v1/events" else b"")
        full = await wire.reply() if path != b"/v1/events" else None
        await wire.send(b"HEAD %s HTTP/1.1\r\nHost: t\r\n\r\n" % path)
        head = await wire.reply(is_head=True)
        assert head.status == 200
        if full is not None:
            assert head.headers["content-length"] == full.headers["content-length"]
            assert head.headers["content-type"] == full.headers["content-type"]


@over_http()
async def test_the_request_s_id_comes_back_where_it_is_sane(front: Front) -> None:
    reply = await front.call("GET", "/healthz", headers={"X-Request-Id": "abc-1"})
    assert reply.headers["x-request-id"] == "abc-1"
    ids = set()
    for odd in ("", "x" * 129, "two words", "caf\xe9"):
        reply = await front.say(b"GET /nowhere HTTP/1.1\r\nHost: t\r\nX-Request-Id: %s\r\n\r\n" % odd.encode("latin-1"))
        assert reply.headers["x-request-id"] not in ("", odd)
        ids.add(reply.headers["x-request-id"])
    assert len(ids) == 4


@over_http()
async def test_the_target_may_be_absolute(front: Front) -> None:
    assert (await front.say(b"GET http://127.0.0.1/healthz HTTP/1.1\r\nHost: t\r\n\r\n")).status == 200
    assert (await front.say(b"GET http://127.0.0.1 HTTP/1.1\r\nHost: t\r\n\r\n")).code == "no_such_path"
    assert (await front.say(b"OPTIONS * HTTP/1.1\r\nHost: t\r\n\r\n")).code == "malformed"


@pytest.mark.parametrize("wish", [b"h2c", b"websocket"])
@over_http()
async def test_a_wish_for_another_protocol_is_passed_over(front: Front, wish: bytes) -> None:
    """As HTTP lets a server do: Java's client asks for h2c with its first request."""
    await front.broker.declare_queue("mail")
    wire = await front.connect()
    wished = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: %s\r\nHTTP2-Settings: AAMAAABk\r\n" % wish
    await wire.send(b"GET /healthz HTTP/1.1\r\nHost: t\r\n" + wished + b"\r\n" + PUBLISH)
    assert (await wire.reply()).json() == {"status": "alive"}
    assert (await wire.reply()).status == 200
    assert await published(front) == 1


# What is no request --------------------------------------------------------------------------------------

MALFORMED: Final[dict[str, bytes]] = {
    "both lengths": PUBLISH.replace(b"Content-Type", b"Transfer-Encoding: chunked\r\nContent-Type"),
    "both lengths, the other way": CHUNKED[:-2] + b"Content-Length: 3\r\n\r\n" + chunks(BODY),
    "two equal lengths": PUBLISH.replace(b"Host: test", b"Content-Length: %d" % len(BODY)),
    "two lengths": PUBLISH.replace(b"Host: test", b"Content-Length: 3"),
    "a list of lengths": b"POST /v1/queues/mail/messages HTTP/1.1\r\nContent-Length: 3, 3\r\n\r\nabc",
    "a length with a sign": b"POST /v1/queues/mail/messages HTTP/1.1\r\nContent-Length: +3\r\n\r\nabc",
    "a negative length": b"POST /v1/queues/mail/messages HTTP/1.1\r\nContent-Length: -3\r\n\r\nabc",
    "a length past 64 bits": b"POST /v1/queues HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\nabc",
    "chunks inside a compression": CHUNKED.replace(b"chunked", b"gzip, chunked") + chunks(BODY),
    "chunks not at the end": CHUNKED.replace(b"chunked", b"chunked, identity") + chunks(BODY),
    "something like chunks": CHUNKED.replace(b"chunked", b"xchunked") + chunks(BODY),
    "chunks twice": CHUNKED.replace(b"Host: test", b"Transfer-Encoding: chunked") + chunks(BODY),
    "chunks in HTTP/1.0": CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0") + chunks(BODY),
    "a chunk of negative size": CHUNKED + b"-1\r\n" + BODY,
    "a chunk size past 64 bits": CHUNKED + b"fffffffffffffffff\r\n" + BODY,
    "a chunk that ends with a bare line feed": CHUNKED + b"%x\n%s\r\n0\r\n\r\n" % (len(BODY), BODY),
    "a chunk longer than it says": CHUNKED + b"3\r\n%s\r\n0\r\n\r\n" % BODY,
    "bare line feeds": PUBLISH.replace(b"\r\n", b"\n"),
    "a bare carriage return": PUBLISH.replace(b"Host: test", b"Host: te\rst"),
    "a folded header": PUBLISH.replace(b"Host: test", b"Host: te\r\n st"),
    "whitespace before a colon": PUBLISH.replace(b"Host:", b"Host :"),
    "whitespace before the first header": PUBLISH.replace(b"Host:", b" Host:"),
    "a header without a name": PUBLISH.replace(b"Host:", b":"),
    "a header without a colon": PUBLISH.replace(b"Host: test", b"Host"),
    "NUL in a header": PUBLISH.replace(b"Host: test", b"Host: te\0st"),
    "NUL in the target": PUBLISH.replace(b"mail", b"ma\0il"),
    "bytes past ASCII in the target": PUBLISH.replace(b"mail", b"ma\xffil"),
    "no target": b"GET HTTP/1.1\r\nHost: t\r\n\r\n",
    "a target that is no path": b"GET healthz HTTP/1.1\r\nHost: t\r\n\r\n",
    "a method that nobody knows": b"FROBNICATE / HTTP/1.1\r\nHost: t\r\n\r\n",
    "a tunnel": b"CONNECT example.org:443 HTTP/1.1\r\nHost: t\r\n\r\n",
    "a body with a wish for another protocol": PUBLISH.replace(b"Host:",
    b"Connection: Upgrade\r\nUpgrade: h2c\r\nHost:"),
    "chunks with a wish for another protocol": CHUNKED.replace(b"Host:",
    b"Connection: Upgrade\r\nUpgrade: h2c\r\nHost:")
    + chunks(BODY),
    "HTTP/0.9": b"GET /healthz\r\n\r\n",
    "HTTP/2 by prior knowledge": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/3.0": b"GET /healthz HTTP/3.0\r\nHost: t\r\n\r\n",
    "TLS": bytes.fromhex("16030100c8010000c403036a") + bytes(range(180)),
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n",
    "noise": bytes(range(255, 127, -1)) * 4,
    "nothing but NUL": bytes(1_000),
    "two hosts": b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "no host": b"GET /healthz HTTP/1.1\r\n\r\n",
}  # fmt: skip


@pytest.mark.parametrize("what", MALFORMED)
@over_http()
async def test_what_is_no_request_is_answered_and_the_connection_closed(front: Front, what: str) -> None:
    """Nothing of what follows on the connection is looked at: two parsers must not see two requests in one."""
    await front.broker.declare_queue("mail")
    wire = await front.connect()
    await wire.send(MALFORMED[what] + b"\r\n" + PUBLISH)
    reply = await wire.reply()
    assert (reply.status, reply.code) == (400, "malformed")
    assert reply.headers["connection"] == "close"
    assert await wire.is_closed()
    assert await published(front) == 0
    assert await front.is_alive()


@over_http()
async def test_what_came_before_noise_is_answered_first(front: Front) -> None:
    await front.broker.declare_queue("mail")
    wire = await front.connect()
    await wire.send(PUBLISH + PUBLISH + b"\0\0\0\0" + PUBLISH)
    replies = [await wire.reply() for _ in range(3)]
    assert [reply.status for reply in replies] == [200, 200, 400]
    assert await wire.is_closed()
    assert await published(front) == 2


@over_http()
async def test_random_damage_never_hurts_the_server(front: Front) -> None:
    """Requests with a byte changed, cut or doubled anywhere: each is answered or closed."""
    from random import Random

    random = Random(20_260)
    await front.broker.declare_queue("mail")

    async def try_one(request: bytes) -> None:
        wire = await front.connect()
        await wire.send(request)
        wire.writer.write_eof()
        try:
            answer = await soon(wire.reader.read())
        except ConnectionError:
            answer = b""
        assert not answer or answer.startswith(b"HTTP/1.1 ")
        assert b"HTTP/1.1 500" not in answer
        wire.close()

    for request in (PUBLISH, CHUNKED + chunks(BODY[:7], BODY[7:])):
        for _ in range(250):
            place = random.randrange(len(request))
            change = random.choice([b"", bytes([random.randrange(256)]), request[place : place + 9] * 2])
            await try_one(request[:place] + change + request[place + random.randrange(3) :])
    assert await front.is_alive()


@over_http(log_requests=True)
async def test_each_request_is_logged_once_with_its_status(front: Front, caplog: Any) -> None:
    with caplog.at_level("INFO", "penstock.http"):
        await front.call("GET", "/healthz")
        await front.call("GET", "/v1/queues/none")
    records = [(record.getMessage(), record.status) for record in caplog.records if hasattr(record, "status")]
    assert records == [("GET /healthz", 200), ("GET /v1/queues/{queue}", 404)]
