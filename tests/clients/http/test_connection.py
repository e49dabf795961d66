"""One connection: answers in any pieces, keep-alive, ends, limits and nonsense."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from penstock.client.transport import connection as connections
from penstock.client.transport.connection import (
    HEAD_BYTES_MAX,
    Answer,
    AnswerTimeout,
    BadAnswer,
    ConnectFailed,
    Connection,
    ConnectionLost,
    connect,
    read_known,
)
from penstock.wire.http.large_bodies import LARGE_BODY_BYTES
from tests.clients.http.rig import ToldServer, answer, run

PLAIN = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 7\r\n\r\n{"a":1}'
CHUNKED = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Name: v\r\n\r\n3\r\n{"a\r\n4\r\n":1}\r\n0\r\n\r\n'
PENSTOCK = (
    b'HTTP/1.1 200 OK\r\nX-Request-Id: 0a1b-7\r\nContent-Type: application/json\r\nContent-Length: 7\r\n\r\n{"a":1}'
)
EMPTY = b"HTTP/1.1 204 No Content\r\nX-Request-Id: 7\r\n\r\n"
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN


class Transport(asyncio.Transport):
    """A transport that the test plays."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_ended = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def abort(self) -> None:
        self.is_ended = True

    def close(self) -> None:
        self.is_ended = True


def made(body_bytes_max: int = 1_000) -> tuple[Connection, Transport]:
    connection, transport = Connection(body_bytes_max), Transport()
    connection.connection_made(transport)
    return connection, transport


async def asked(connection: Connection, feed: Callable[[], None], timeout_s: float = 30.0) -> connections.Answer:
    """A request, and what `feed` gives the connection once it is under way."""
    request = asyncio.ensure_future(connection.request(b"GET / HTTP/1.1\r\n\r\n", b"", timeout_s))
    await asyncio.sleep(0)
    feed()
    return await request


ANSWERS = {"plain": PLAIN, "penstock": PENSTOCK, "chunked": CHUNKED, "empty": EMPTY, "continued": CONTINUED}


@pytest.mark.parametrize("whole", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_may_come_in_any_pieces(whole: bytes) -> None:
    async def main() -> None:
        for size in range(1, len(whole) + 1):
            connection, transport = made()
            for _ in range(2):  # and the connection can be used again

                def feed(connection: Connection = connection, size: int = size) -> None:
                    for start in range(0, len(whole), size):
                        connection.data_received(whole[start : start + size])

                got = await asked(connection, feed)
                assert got.body == (b"" if whole is EMPTY else b'{"a":1}')
                assert got.status == (204 if whole is EMPTY else 200)
                assert connection.is_reusable
                assert (b"x-name" in got.headers) == (whole is CHUNKED)
            assert transport.written == b"GET / HTTP/1.1\r\n\r\n" * 2
            assert connection.used == 2

    run(main())


def test_a_server_that_wants_to_close_is_not_asked_again() -> None:
    async def main() -> None:
        connection, transport = made()
        said = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"
        got = await asked(connection, lambda: connection.data_received(said))
        assert (got.body, connection.is_reusable, transport.is_ended) == (b"ok", False, True)
        with pytest.raises(ConnectFailed, match="closed the connection after its last answer"):
            await connection.request(b"", b"", 1)

    run(main())


@pytest.mark.parametrize("cut", range(len(PLAIN)))
def test_a_connection_that_ends_early_says_whether_the_answer_had_begun(cut: int) -> None:
    async def main() -> None:
        connection, _ = made()

        def feed() -> None:
            if cut:
                connection.data_received(PLAIN[:cut])
            connection.connection_lost(None)

        with pytest.raises(ConnectionLost, match="the server closed the connection") as caught:
            await asked(connection, feed)
        assert (caught.value.answer_begun, caught.value.was_idle) == (cut > 0, False)

    run(main())


def test_a_reused_connection_that_ends_says_that_it_was_idle() -> None:
    async def main() -> None:
        connection, _ = made()
        await asked(connection, lambda: connection.data_received(PLAIN))
        with pytest.raises(ConnectionLost, match="broke: gone") as caught:
            await asked(connection, lambda: connection.connection_lost(ConnectionResetError("gone")))
        assert caught.value.was_idle

    run(main())


@pytest.mark.parametrize(
    "data", [b"nonsense\r\n\r\n", b"\x00\xff" * 20, b"HTTP/1.1 abc\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", PLAIN + PLAIN]
)
def test_what_is_no_answer_ends_the_connection(data: bytes) -> None:
    async def main() -> None:
        connection, transport = made()
        if data == PLAIN + PLAIN:  # the first is the answer, the second answers nothing
            assert (await asked(connection, lambda: connection.data_received(data))).body == b'{"a":1}'
        else:
            with pytest.raises(BadAnswer, match="is not HTTP"):
                await asked(connection, lambda: connection.data_received(data))
        assert transport.is_ended
        assert not connection.is_reusable

    run(main())


def test_bytes_without_a_request_end_the_connection() -> None:
    async def main() -> None:
        connection, transport = made()
        connection.data_received(PLAIN)
        assert transport.is_ended
        assert not connection.is_reusable

    run(main())


def test_a_body_may_be_as_large_as_the_limit_and_no_larger() -> None:
    async def main() -> None:
        for chunked in (False, True):
            for size in (1_000, 1_001):
                connection, _ = made(1_000)
                body = b"x" * size
                if chunked:
                    said = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (size, body)
                else:
                    said = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (size, body)
                if size == 1_000:
                    assert (await asked(connection, lambda c=connection, s=said: c.data_received(s))).body == body  # type: ignore[misc]
                else:
                    with pytest.raises(BadAnswer, match="limit"):
                        await asked(connection, lambda c=connection, s=said: c.data_received(s))  # type: ignore[misc]

    run(main())


def test_a_head_has_a_limit() -> None:
    async def main() -> None:
        connection, _ = made()

        def feed() -> None:
            connection.data_received(b"HTTP/1.1 200 OK\r\n")
            for _ in range(HEAD_BYTES_MAX // 1_000 + 1):
                connection.data_received(b"X-Y: " + b"z" * 1_000 + b"\r\n")

        with pytest.raises(BadAnswer, match="head of the answer"):
            await asked(connection, feed)

    run(main())


def test_no_answer_in_time() -> None:
    async def main() -> None:
        connection, transport = made()
        with pytest.raises(AnswerTimeout, match=r"no answer in 0\.01 seconds"):
            await asked(connection, lambda: None, 0.01)
        assert transport.is_ended

    run(main())


def test_a_cancelled_request_ends_the_connection() -> None:
    async def main() -> None:
        connection, transport = made()
        request = asyncio.ensure_future(connection.request(b"GET / HTTP/1.1\r\n\r\n", b"", 30))
        await asyncio.sleep(0)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert transport.is_ended
        assert not connection.is_reusable

    run(main())


def test_connecting_to_nobody() -> None:
    async def main() -> None:
        async with ToldServer(lambda _: answer({})) as server:
            pass
        with pytest.raises(ConnectFailed, match=f"no connection to 127.0.0.1:{server.port}"):
            await connect("127.0.0.1", server.port, None, 5)

    run(main())


def test_a_large_body_arrives_whole() -> None:
    async def main() -> None:
        async with ToldServer(lambda asked: answer(len(asked.body))) as server:
            connection = await connect("127.0.0.1", server.port, None, 5)
            body = bytes(range(256)) * 40_000
            head = b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body)
            assert (await connection.request(head, body, 30)).body == str(len(body)).encode()
            assert server.asked[0].body == body
            connection.close()

    run(main())


@pytest.mark.parametrize("whole", [
    PENSTOCK,
    EMPTY,
    PENSTOCK.replace(b"200 OK", b"202 Accepted"),
    PENSTOCK.replace(b"application/json", b"application/vnd.penstock.batches+msgpack"),
    PENSTOCK.replace(b"7\r\n\r\n", b"007\r\n\r\n"),
    PENSTOCK[:-7].replace(b"Length: 7", b"Length: 0"),
])  # fmt: skip
def test_an_answer_that_came_whole_is_what_the_parser_makes_of_it(whole: bytes) -> None:
    async def main() -> None:
        connection, _ = made()

        def feed_bytes() -> None:
            for place in range(len(whole)):
                connection.data_received(whole[place : place + 1])

        parsed = await asked(connection, feed_bytes)
        assert read_known(whole, 1_000) == parsed
        assert await asked(connection, lambda: connection.data_received(whole)) == parsed
        assert connection.is_reusable

    run(main())


@pytest.mark.parametrize("data", [
    PENSTOCK[:-1],
    PENSTOCK + b"x",
    PENSTOCK.replace(b"1.1", b"1.0"),
    PENSTOCK.replace(b"200 OK", b"500 Internal Server Error"),
    PENSTOCK.replace(b"\r\nContent-Type", b"\r\nConnection: close\r\nContent-Type"),
    PENSTOCK.replace(b"\r\n\r\n", b"\r\nContent-Length: 7\r\n\r\n"),
    PENSTOCK.replace(b"\r\n", b"\n"),
    PENSTOCK.replace(b"Length: 7", b"Length: -7"),
    PENSTOCK.replace(b"200 OK", b"204 No Content"),
    PENSTOCK.replace(b"200 OK", b"100 Continue"),
    EMPTY + b"x",
    EMPTY.replace(b"204 No Content", b"200 OK"),
    b"",
])  # fmt: skip
def test_whatever_else_comes_is_for_the_parser(data: bytes) -> None:
    assert read_known(PENSTOCK, 7) is not None
    assert read_known(PENSTOCK, 6) is None
    assert read_known(data, 1_000) is None


LARGE = bytes(range(256)) * (LARGE_BODY_BYTES // 256)
LARGE_ANSWER = PENSTOCK[:-7].replace(b"Length: 7", b"Length: %d" % len(LARGE)) + LARGE
LARGE_HEAD_BYTES = len(LARGE_ANSWER) - len(LARGE)


@pytest.mark.parametrize("first", [LARGE_HEAD_BYTES, LARGE_HEAD_BYTES + 1, len(LARGE_ANSWER) - 1])
@pytest.mark.parametrize("step", [5_000, len(LARGE_ANSWER)])
def test_a_large_answer_in_parts_is_what_the_parser_makes_of_it(first: int, step: int) -> None:
    async def main() -> None:
        connection, _ = made(len(LARGE))

        def feed(*datas: bytes) -> None:
            for data in datas:
                assert not connection.is_reusable
                connection.data_received(data)

        parsed = await asked(connection, lambda: feed(LARGE_ANSWER[:40], LARGE_ANSWER[40:]))
        rest = [LARGE_ANSWER[place : place + step] for place in range(first, len(LARGE_ANSWER), step)]
        for _ in range(2):
            assert await asked(connection, lambda: feed(LARGE_ANSWER[:first], *rest)) == parsed
            assert connection.is_reusable
        assert parsed.body == LARGE
        assert await asked(connection, lambda: connection.data_received(PENSTOCK)) == read_known(PENSTOCK, 1_000)
        await asked(connection, lambda: feed(LARGE_ANSWER[:first], *rest))
        with pytest.raises(ConnectionLost) as lost:
            await asked(connection, lambda: connection.connection_lost(None))
        assert not lost.value.answer_begun

    run(main())


def test_what_follows_a_large_answer_ends_the_connection() -> None:
    async def main() -> None:
        connection, transport = made(len(LARGE))

        def feed() -> None:
            connection.data_received(LARGE_ANSWER[:1_000])
            connection.data_received(LARGE_ANSWER[1_000:] + b"H")

        assert (await asked(connection, feed)).body == LARGE
        assert transport.is_ended
        assert not connection.is_reusable

    run(main())


def test_a_large_answer_that_breaks_off_had_begun() -> None:
    async def main() -> None:
        connection, _ = made(len(LARGE))

        def feed() -> None:
            connection.data_received(LARGE_ANSWER[:1_000])
            connection.data_received(LARGE_ANSWER[1_000:2_000])
            connection.connection_lost(None)

        with pytest.raises(ConnectionLost) as lost:
            await asked(connection, feed)
        assert lost.value.answer_begun

    run(main())


def test_a_large_answer_that_stays_away_is_waited_for_no_longer_than_another() -> None:
    async def main() -> None:
        connection, transport = made(len(LARGE))
        with pytest.raises(AnswerTimeout) as late:
            await asked(connection, lambda: connection.data_received(LARGE_ANSWER[:1_000]), 0.01)
        assert late.value.answer_begun
        assert transport.is_ended

    run(main())


def test_the_beginning_of_what_is_not_large_or_too_large_is_for_the_parser() -> None:
    small = PENSTOCK[:-7].replace(b"Length: 7", b"Length: %d" % (len(LARGE) - 1)) + LARGE[:-1]
    assert read_known(small[:-1], len(LARGE)) is None
    assert read_known(LARGE_ANSWER[:-1], len(LARGE) - 1) is None
    assert read_known(LARGE_ANSWER[:-1], len(LARGE)) is not None
    assert read_known(LARGE_ANSWER.replace(b"200 OK", b"500 No")[:-1], len(LARGE)) is None


def test_each_request_has_its_own_time_though_the_timer_goes_on() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        for before_s, timeout_s in ((0.05, 0.2), (30.0, 0.05)):  # set for an earlier time, and for a later one
            connection, _ = made()
            await asked(connection, lambda: connection.data_received(PENSTOCK), before_s)  # noqa: B023
            began = loop.time()
            with pytest.raises(AnswerTimeout, match=f"no answer in {timeout_s:g} seconds"):
                await connection.request(b"", b"", timeout_s)
            assert timeout_s - 0.005 <= loop.time() - began < timeout_s + 5
            assert connection._timer is None
        connection, _ = made()
        await asked(connection, lambda: connection.data_received(PENSTOCK), 0.02)
        await asyncio.sleep(0.05)
        assert connection.is_reusable  # nobody waits: there is nothing to fail
        await asked(connection, lambda: connection.data_received(PENSTOCK), 30.0)
        assert connection._timer is not None
        connection.close()
        assert connection._timer is None

    run(main())


def test_an_answer_to_a_caller_that_a_signal_has_cancelled_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python runs the handler of Ctrl+C between any two steps: also between a look at the future and its result."""

    async def scenario() -> None:
        one = Connection()
        waiting: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        one._answer = waiting

        def interrupted(*_: object) -> Answer:
            waiting.cancel()
            return Answer(200, {}, b"")

        monkeypatch.setattr(connections, "read_known", interrupted)
        one.data_received(b"HTTP/1.1 200 OK\r\n\r\n")
        assert waiting.cancelled()

    asyncio.run(scenario())
