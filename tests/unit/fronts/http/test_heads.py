"""Heads that are remembered: what is read by them is what llhttp reads, and nothing else is read by them."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.api.ticket import Ticket
from penstock.fronts.front import Shared
from penstock.fronts.http.connection import Connection
from penstock.fronts.http.heads import HEAD_KEPT_BYTES, HEADS_KEPT, Arriving, Heads
from penstock.fronts.http.options import HttpOptions
from penstock.fronts.http.request import Answer, Request
from penstock.wire.http.large_bodies import LARGE_BODY_BYTES

LARGE = bytes(range(256)) * (LARGE_BODY_BYTES // 256)
HEADERS = b"host: test\r\naccept: application/json\r\n"


def post(target: bytes = b"/v1/x?a=1", headers: bytes = HEADERS, body: bytes = b"body", line: bytes = b"") -> bytes:
    line = line or b"POST %b HTTP/1.1" % target
    return b"%b\r\n%bcontent-length: %d\r\n\r\n%b" % (line, headers, len(body), body)


class Taken:
    """A host and a transport that only take down what is asked."""

    stopping = False

    def __init__(self, heads: Heads, options: HttpOptions) -> None:
        self.heads, self.options = heads, options
        self.body_bytes_max = options.max_body_bytes or Shared().body_bytes
        self.requests: list[Request] = []

    def answer(self, connection: Connection, request: Request) -> Ticket[Answer]:
        self.requests.append(request)
        return Ticket()  # which nobody answers

    def __getattr__(self, name: str) -> Any:
        return lambda *_: 0.0


def connected(taken: Taken) -> Connection:
    connection = Connection(taken)  # type: ignore[arg-type]
    connection._transport = taken  # type: ignore[assignment]
    return connection


def received(heads: Heads, *datas: bytes) -> list[Request]:
    """The requests that a connection takes these bytes for, which came one behind the other."""
    taken = Taken(heads, HttpOptions())
    connection = connected(taken)
    for data in datas:
        connection.data_received(data)
        taken.requests += [request for request in connection._requests if isinstance(request, Request)]
        connection._requests.clear()
        connection._is_busy = False  # all are answered
    return taken.requests


def parsed(heads: Heads, data: bytes, options: HttpOptions | None = None) -> Request | None:
    """What a connection makes of these bytes."""
    taken = Taken(heads, options or HttpOptions())
    connection = connected(taken)
    try:
        connection.data_received(data)
    except RuntimeError:  # it would refuse, which takes a loop
        return None
    return taken.requests[0] if taken.requests else None


def fields(request: Request | Arriving | None) -> dict[str, object]:
    assert isinstance(request, Request)
    shown = [name for name in Request.__struct_fields__ if not name.startswith("_")]
    names = [*(name for name in shown if name != "parts"), "body", "body_bytes"]  # whatever parts it came in
    return {name: getattr(request, name) for name in names}


def fresh() -> Heads:
    return Heads(HttpOptions().max_header_bytes, Shared().body_bytes)


@pytest.mark.parametrize("headers", [HEADERS, b"Host: test\r\nConnection: keep-alive\r\n", b"host: t\r\nx: \r\n"])
def test_a_known_head_is_read_as_the_parser_reads_it(headers: bytes) -> None:
    heads = fresh()
    assert heads.read(post(headers=headers)) is None
    assert parsed(heads, post(headers=headers)) is not None
    for target in (b"/", b"/v1/queues/a%20b/messages?namespace=default&publish_id=a-1.b_c~"):
        for body in (b"", b"x", b"\r\n\r\ncontent-length: 3\r\n\r\n", bytes(range(256)) * 400):
            data = post(target, headers, body)
            by_head, by_parser = heads.read(data), parsed(fresh(), data)
            assert fields(by_head) == fields(by_parser)


@pytest.mark.parametrize("data", [
    post()[:-1],
    post() + b"P",
    post() + post(),
    post(headers=HEADERS + b"x: y\r\n"),
    post(headers=HEADERS.upper()),
    post(line=b"GET /v1/x HTTP/1.1"),
    post(line=b"POST /v1/x HTTP/1.0"),
    post(line=b"POST  /v1/x HTTP/1.1"),
    post(line=b"POST /v1/x  HTTP/1.1"),
    post(line=b"POST /v1/x HTTP/1.1 HTTP/1.1"),
    post(line=b"post /v1/x HTTP/1.1"),
    post(line=b"POST v1/x HTTP/1.1"),
    post(b"/v1/\x00"),
    post(b"/v1/#x"),
    post(b"/v1/\xc3\xa4"),
    post(b"/v1/x\ny"),
    b"\r\n" + post(),
    post().replace(b"\r\n", b"\n"),
    post().replace(b"content-length: 4", b"content-length: +4"),
    post().replace(b"content-length: 4", b"content-length: 4 "),
    post().replace(b"content-length: 4", b"content-length: 4\r\ncontent-length: 4"),
    post().replace(b"content-length: 4", b"transfer-encoding: chunked\r\ncontent-length: 4"),
    post().replace(b"content-length: 4", b"content-length: 0000000004"),
    b"",
])  # fmt: skip
def test_whatever_is_not_quite_the_same_is_left_to_the_parser(data: bytes) -> None:
    heads = fresh()
    assert parsed(heads, post()) is not None
    assert heads.read(post()) is not None
    assert heads.read(data) is None


@pytest.mark.parametrize("headers", [
    HEADERS + b"connection: close\r\n",
    HEADERS + b"Expect: 100-continue\r\n",
    HEADERS + b"connection: upgrade\r\nupgrade: x\r\n",
    HEADERS + b"X-Request-Id: a\r\n",
    HEADERS + b"traceparent: a\r\n",
    b"host: test\r\nx: %b\r\n" % (b"x" * HEAD_KEPT_BYTES),
])  # fmt: skip
def test_heads_that_say_more_or_never_come_again_are_not_remembered(headers: bytes) -> None:
    heads = fresh()
    parsed(heads, post(headers=headers))
    assert heads.read(post(headers=headers)) is None


def test_a_head_that_came_in_pieces_is_not_remembered() -> None:
    heads = fresh()
    taken = Taken(heads, HttpOptions())
    connection = connected(taken)
    data = post()
    for place in range(len(data)):
        connection.data_received(data[place : place + 1])
    assert len(taken.requests) == 1
    assert heads.read(data) is None


def test_the_limits_of_heads_and_bodies_are_the_parser_s() -> None:
    options = HttpOptions(max_header_bytes=300, max_body_bytes=100)
    for target, body in ((b"/" * 250, b""), (b"/" * 300, b""), (b"/", b"x" * 100), (b"/", b"x" * 101)):
        heads = Heads(options.max_header_bytes, options.max_body_bytes)
        parsed(heads, post(), options)
        by_parser = parsed(Heads(300, 100), post(target, body=body), options)
        by_head = heads.read(post(target, body=body))
        assert by_head is None or by_parser is not None
    heads = Heads(options.max_header_bytes, options.max_body_bytes)
    parsed(heads, post(), options)
    assert heads.read(post(body=b"x" * 100)) is not None
    assert heads.read(post(body=b"x" * 101)) is None


def test_so_many_heads_are_remembered_and_no_more() -> None:
    heads = fresh()
    for number in range(3 * HEADS_KEPT):
        data = post(headers=b"host: h%d\r\n" % number)
        parsed(heads, data)
        assert heads.read(data) is not None
        assert len(heads._known) <= HEADS_KEPT
    longest = b"\r\nhost: t\r\nx: "
    data = post(headers=longest[2:] + b"x" * (HEAD_KEPT_BYTES - len(longest) - len(b" HTTP/1.1")) + b"\r\n")
    parsed(heads, data)
    assert heads.read(data) is not None


# Large bodies --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [0, 1, 20, 40_000, LARGE_BODY_BYTES - 1])
@pytest.mark.parametrize("step", [7_000, LARGE_BODY_BYTES])
def test_a_large_body_behind_a_known_head_is_what_the_parser_makes_of_it(first: int, step: int) -> None:
    heads = fresh()
    parsed(heads, post())
    data = post(b"/v1/y", body=LARGE)
    first += len(data) - len(LARGE)
    assert isinstance(heads.read(data[:first]), Arriving)
    rest = [data[place : place + step] for place in range(first, len(data), step)]
    [by_head] = received(heads, data[:first], *rest)
    [by_parser] = received(fresh(), data[:first], *rest)
    assert fields(by_head) == fields(by_parser)
    assert by_head.body == LARGE


def test_what_follows_a_large_body_is_the_next_request() -> None:
    heads = fresh()
    parsed(heads, post())
    data = post(body=LARGE) + post(b"/next", body=b"next") + post(b"/last", body=LARGE)
    for place in (1_000, len(post(body=LARGE)) - 1, len(post(body=LARGE)), len(data) - 10):
        requests = received(heads, data[:place], data[place:])
        assert [(request.target, request.body) for request in requests] == [
            (b"/v1/x?a=1", LARGE),
            (b"/next", b"next"),
            (b"/last", LARGE),
        ]


def test_a_head_is_learnt_from_a_large_request_too() -> None:
    heads, data = fresh(), post(body=LARGE)
    received(heads, data[:9_000], data[9_000:60_000], data[60_000:])
    assert isinstance(heads.read(post()), Request)
    assert isinstance(heads.read(data[:9_000]), Arriving)


def test_a_head_is_not_learnt_from_the_request_before() -> None:
    """The same body, other headers: what one began with is not taken for the beginning of the other."""
    heads, other = fresh(), b"host: other\r\naccept: text/plain\r\n"
    first, second = post(body=LARGE), post(headers=other, body=LARGE)
    requests = received(heads, first[:9_000], first[9_000:] + second[:9_000], second[9_000:])
    assert [request.headers[b"host"] for request in requests] == [b"test", b"other"]
    known = heads.read(post())
    assert isinstance(known, Request)
    assert known.headers[b"host"] == b"test"
    assert heads.read(post(headers=other)) is None


def test_the_beginning_of_what_is_not_large_or_too_large_is_for_the_parser() -> None:
    heads = Heads(1_000, 2 * LARGE_BODY_BYTES)
    parsed(heads, post())
    assert heads.read(post(body=LARGE[:-1])[:-1]) is None
    assert heads.read(post(body=LARGE)[:-1]) is not None
    assert heads.read(post(body=2 * LARGE)[:-1]) is not None
    assert heads.read(post(body=2 * LARGE + b"x")[:-1]) is None
    assert heads.read(post(b"/" + b"x" * 1_000, body=LARGE)[:-1]) is None
    assert heads.read(post(headers=b"host: unknown\r\n", body=LARGE)[:-1]) is None
