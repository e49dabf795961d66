"""A client belongs to the event loop in which it was first used; in another one it says so, at once."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import AsyncClient, InvalidArgument, Message
from tests.clients.http.rig import ServerProcess, run

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""Connections of a loop that has ended cannot be closed any more; Python says so when it finds them."""


@pytest.fixture(autouse=True)
def _find_what_is_left() -> Iterator[None]:
    yield
    gc.collect()  # now, and not in a test that has nothing to do with it


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path / "queue.db")
    process.start()
    yield process
    process.stop()


CALLS: list[Callable[[AsyncClient], Coroutine[Any, Any, Any]]] = [
    lambda client: client.publish("q", Message(b"x")),
    lambda client: client.publish_many("q", [Message(b"x")] * 3),
    lambda client: client.claim("q"),
    lambda client: client.stats("q"),
]


@pytest.mark.parametrize("call", CALLS)
def test_another_loop_is_refused_and_told_what_to_do(
    server: ServerProcess, call: Callable[[AsyncClient], Coroutine[Any, Any, Any]]
) -> None:
    client = AsyncClient(server.url)

    async def first() -> None:
        await client.declare_queue("q")
        await asyncio.gather(*(client.publish("q", Message(b"%d" % number)) for number in range(20)))

    run(first())
    with pytest.raises(InvalidArgument, match=r"another event loop.*penstock\.Client"):
        run(call(client))


def test_publishes_that_were_left_waiting_in_a_loop_that_ended_hold_up_nobody(server: ServerProcess) -> None:
    client = AsyncClient(server.url)

    async def first() -> None:
        await client.declare_queue("q")
        tasks = [asyncio.ensure_future(client.publish("q", Message(b"%d" % number))) for number in range(20)]
        await asyncio.sleep(0)
        assert not tasks[-1].done()  # and the loop ends with it

    run(first())
    with pytest.raises(InvalidArgument, match="another event loop"):
        run(client.publish("q", Message(b"x")))
