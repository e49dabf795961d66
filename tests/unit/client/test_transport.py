"""The client's connection, without a server."""

from __future__ import annotations

import asyncio

import pytest

from penstock.client.transport import connection
from penstock.client.transport.connection import Answer


def test_an_answer_to_a_caller_that_a_signal_has_cancelled_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python runs the handler of Ctrl+C between any two steps: also between a look at the future and its result."""

    async def scenario() -> None:
        one = connection.Connection()
        waiting: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        one._answer = waiting

        def interrupted(*_: object) -> Answer:
            waiting.cancel()
            return Answer(200, {}, b"")

        monkeypatch.setattr(connection, "read_known", interrupted)
        one.data_received(b"HTTP/1.1 200 OK\r\n\r\n")
        assert waiting.cancelled()

    asyncio.run(scenario())
