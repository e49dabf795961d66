"""Nodes and connections: addresses, reuse, the limit, stale connections, nodes that are away."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest

from penstock import AsyncClient, Closed, InvalidArgument, Retry, Unavailable
from penstock.client.transport import pool as pools
from penstock.client.transport.pool import Address, NodePool, Nodes, addresses_of
from tests.clients.http.rig import Asked, ToldServer, answer, run, until

QUEUE = {"name": "q", "options": {"lanes": 2}}


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("http://a:1", (False, "a", 1, "")),
        ("a:1", (False, "a", 1, "")),
        ("a", (False, "a", 7333, "")),
        ("https://a", (True, "a", 443, "")),
        (" http://[::1]:80/under/here/ ", (False, "::1", 80, "/under/here")),
    ],
)
def test_addresses(url: str, place: tuple[Any, ...]) -> None:
    address = Address(url)
    assert (address.is_secure, address.host, address.port, address.prefix) == place


@pytest.mark.parametrize(
    "url", ["", " ", "ftp://a", "http://", "http://a:99999", "http://a:b", "http://u:p@a", "http://a?x=1", 7, None]
)
def test_addresses_that_are_none(url: Any) -> None:
    with pytest.raises(InvalidArgument, match="a node's URL"):
        Address(url)


def test_several_addresses() -> None:
    assert [address.label for address in addresses_of("http://a:1,b:2")] == ["a:1", "b:2"]
    assert [address.label for address in addresses_of(["a:1", "http://[::1]:2"])] == ["a:1", "[::1]:2"]
    with pytest.raises(InvalidArgument, match="at least one"):
        addresses_of([])


def test_connections_are_used_again() -> None:
    async def main() -> None:
        async with ToldServer(lambda _: answer(QUEUE)) as server, AsyncClient(server.url) as client:
            for _ in range(10):
                assert await client.queue_options("q") == {"lanes": 2}
            assert server.connections == 1
            assert server.asked[0].target == "/v1/queues/q?namespace=default"
            assert server.asked[0].headers["host"] == f"127.0.0.1:{server.port}"

    run(main())


def test_the_limit_on_connections_is_kept_and_everybody_gets_a_turn() -> None:
    async def main() -> None:
        at_once = most = 0

        async def slowly(_: Asked) -> bytes:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0.005)
            at_once -= 1
            return answer(QUEUE)

        async with ToldServer(slowly) as server, AsyncClient(server.url, connections=3) as client:
            await asyncio.gather(*(client.queue_options("q") for _ in range(30)))
            assert (most, server.connections, len(server.asked)) == (3, 3, 30)

    run(main())


def test_one_who_stops_waiting_for_a_connection_passes_the_turn_on() -> None:
    async def main() -> None:
        gate = asyncio.Event()

        async def held(_: Asked) -> bytes:
            await gate.wait()
            return answer(QUEUE)

        async with ToldServer(held) as server, AsyncClient(server.url, connections=1) as client:
            first = asyncio.ensure_future(client.queue_options("q"))
            await until(lambda: len(server.asked) == 1)
            waiting = [asyncio.ensure_future(client.queue_options("q")) for _ in range(3)]
            await asyncio.sleep(0)
            waiting[0].cancel()
            gate.set()
            assert await first == await waiting[1] == await waiting[2] == {"lanes": 2}
            assert waiting[0].cancelled()

    run(main())


def test_a_connection_that_the_server_closed_while_idle_is_replaced_at_once() -> None:
    async def main() -> None:
        def once_a_connection(asked: Asked) -> bytes | None:
            same = [one for one in server.asked if one.connection == asked.connection]
            return answer(QUEUE) if len(same) == 1 else None

        retry = Retry(attempts=1)
        async with ToldServer(once_a_connection) as server, AsyncClient(server.url, retry=retry) as client:
            for _ in range(5):
                await client.queue_options("q")
            assert server.connections == 5

    run(main())


def test_an_old_idle_connection_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    made = pools.NodePool.__init__
    monkeypatch.setattr(made, "__kwdefaults__", {**(made.__kwdefaults__ or {}), "idle_s_max": 0.0})

    async def main() -> None:
        async with ToldServer(lambda _: answer(QUEUE)) as server, AsyncClient(server.url) as client:
            await client.queue_options("q")
            await client.queue_options("q")
            assert server.connections == 2

    run(main())


def test_nodes_take_turns_and_one_that_is_away_is_put_aside() -> None:
    async def main() -> None:
        async with ToldServer(lambda _: answer(QUEUE)) as away:
            pass
        async with ToldServer(lambda _: answer(QUEUE)) as one, ToldServer(lambda _: answer(QUEUE)) as two:
            async with AsyncClient([one.url, away.url, two.url]) as client:
                for _ in range(20):
                    await client.queue_options("q")
            assert len(one.asked) + len(two.asked) == 20
            assert min(len(one.asked), len(two.asked)) >= 5

    run(main())


def test_the_pause_of_a_node_grows_and_ends_with_an_answer() -> None:
    async def main() -> None:
        pool = NodePool(Address("a:1"), tls=None, connections_max=1, connect_timeout_s=1)
        other = NodePool(Address("b:1"), tls=None, connections_max=1, connect_timeout_s=1)
        nodes = Nodes([pool, other])
        began = asyncio.get_running_loop().time()
        pauses = []
        for _ in range(12):
            pool.failed()
            pauses.append(pool.ready_at - began)
        assert 0.05 <= pauses[0] <= 0.2
        assert 5 <= pauses[-1] <= 10.5
        assert [nodes.pick() for _ in range(3)] == [other] * 3
        assert nodes.has_another()
        other.failed()
        assert not nodes.has_another()
        assert nodes.pick() is other  # whose pause ends first
        pool.answered()
        assert pool.ready_at == 0.0

    run(main())


def test_a_closed_client_refuses_and_ends_what_waits() -> None:
    async def main() -> None:
        async def never(_: Asked) -> bytes:
            await asyncio.sleep(60)
            return b""

        async with ToldServer(never) as server:
            client = AsyncClient(server.url, connections=1)
            calls = [asyncio.ensure_future(client.queue_options("q")) for _ in range(2)]
            await until(lambda: len(server.asked) == 1)
            await client.close()
            for call in calls:
                with pytest.raises((Closed, Unavailable)):
                    await call
            with pytest.raises(Closed):
                await client.queue_options("q")

    run(main())


CERTIFICATE = Path(__file__).with_name("self_signed_for_127.0.0.1.pem")
"""For tests only, with its key: nobody trusts it unless told to."""


def test_tls_speaks_only_to_whom_it_trusts() -> None:
    async def main() -> None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(CERTIFICATE)
        trusting = ssl.create_default_context(cafile=str(CERTIFICATE))
        async with ToldServer(lambda _: answer(QUEUE), tls) as server:
            url = f"https://127.0.0.1:{server.port}"
            async with AsyncClient(url, retry=Retry(attempts=1)) as client:
                with pytest.raises(Unavailable, match=r"no connection to .*certificate"):
                    await client.queue_options("q")
            assert server.asked == []
            async with AsyncClient(url, tls=trusting) as client:
                assert await client.queue_options("q") == {"lanes": 2}

    run(main())
