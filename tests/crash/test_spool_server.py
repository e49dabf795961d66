"""A server on PostgreSQL that is killed while its spool is full: over HTTP and the client, to the last message."""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
import socket
from http.client import HTTPConnection
from pathlib import Path

import pytest

from penstock import Client, Message, Unavailable
from penstock.client.transport.channel import Retry
from penstock.node.spool.folder import DiskFolder
from tests.cli.servers import Server, penstock, running, until
from tests.databases.postgres import PostgresServer, is_there

pytestmark = pytest.mark.skipif(not is_there(), reason="there is no PostgreSQL")


def test_a_killed_server_replays_its_spool(tmp_path: Path) -> None:
    database = PostgresServer()
    store = ("--store", f"{database.url}?schema=killed")
    try:
        with running(tmp_path, *store) as server:
            fill(server, database)
            server.signal(signal.SIGKILL)
            server.end()
        database.start()
        with running(tmp_path, *store) as server, Client(server.url) as client:
            assert client.publish("work", Message(b"last")) is not None
            found: list[str] = []
            while len(found) < 14:
                claim = client.claim("work", max=100, wait=20)
                assert len(claim), found
                found += [one.payload.decode() for one in claim]
                client.ack(claim)
            assert found == ["stored", *map(str, range(10)), "json", "produced", "last"]
            until(lambda: measure(server, "penstock_spool_messages") == 0, "the spool is empty")
            assert server.request("GET", "/readyz") == (200, {"status": "ready"})
            assert server.stop() == 0
        assert sorted(path.name for path in (tmp_path / "data" / "spool" / "any-0").iterdir()) == ["lock"]
    finally:
        database.close()


def fill(server: Server, database: PostgresServer) -> None:
    with Client(server.url, retry=Retry(attempts=1)) as client:
        client.declare_queue("work")
        assert not client.publish("work", Message(b"stored")).buffered
        database.stop(signal.SIGKILL)
        for number in range(10):
            place = client.publish("work", Message(b"%d" % number))
            assert (place.buffered, place.queue, place.offset) == (True, "work", -1)
        status, answer = server.request("POST", "/v1/queues/work/messages", {"messages": [{"payload": "json"}]})
        buffered = {"count": 1, "status": "buffered", "results": [{"index": 0, "status": "buffered"}]}
        assert (status, answer) == (202, buffered)
        with client.producer("work") as producer:
            sent = producer.send(Message(b"produced"))
        [place] = sent.result()
        assert place.buffered
        with pytest.raises(Unavailable):
            client.claim("work")
        assert refusal(server, "/v1/queues/work/claim")[0] == 503
        assert int(refusal(server, "/v1/queues/work/claim")[1]) >= 1
        assert server.request("GET", "/readyz") == (200, {"status": "buffering"})
        assert measure(server, "penstock_spool_messages") == 12
        assert measure(server, "penstock_store_away") == 1


def refusal(server: Server, path: str, body: str = "{}") -> tuple[int, str, str]:
    """The status, after how many seconds to ask again, and why."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.headers.get("Retry-After", "0"), answer.read().decode()
    finally:
        connection.close()


def test_a_full_spool_refuses_with_the_reason(tmp_path: Path) -> None:
    database = PostgresServer()
    options = ("--store", f"{database.url}?schema=limited", "--set", "spool.bytes=1048576")
    body = json.dumps({"messages": [{"payload": secrets.token_hex(400_000)}]})  # chance cannot be made small
    try:
        with running(tmp_path, *options) as server, Client(server.url) as client:
            client.declare_queue("work")
            database.stop(signal.SIGKILL)
            answers = [refusal(server, "/v1/queues/work/messages", body) for _ in range(8)]
            buffered = [status for status, _, _ in answers].count(202)
            assert [status for status, _, _ in answers] == [202] * buffered + [503] * (8 - buffered)
            assert 0 < buffered < 8
            assert int(answers[-1][1]) >= 1
            assert "spool.bytes is 1048576" in answers[-1][2]
            database.start()
            until(lambda: measure(server, "penstock_spool_messages") == 0, "the spool is empty")
            assert client.publish("work", Message(b"again")).offset == buffered
    finally:
        database.close()


def measure(server: Server, name: str) -> float:
    text = asyncio.run(scrape(server))
    return float(next(line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(f"{name} ")))


async def scrape(server: Server) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    data = await reader.read()
    writer.close()
    return data.decode()


def test_servers_that_are_started_in_one_place_do_not_share_a_spool(tmp_path: Path) -> None:
    database = PostgresServer()
    store = ("--store", f"{database.url}?schema=shared")
    try:
        with running(tmp_path, *store), running(tmp_path, *store) as second:
            spools = tmp_path / "data" / "spool"
            assert sorted(path.name for path in spools.iterdir()) == ["any-0", "any-1"]
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            DiskFolder.open(spools / str(port))
            refused = penstock("serve", "--port", str(port), *store, folder=tmp_path)
            assert refused.returncode == 1
            assert f"another process uses the spool's folder data/spool/{port}" in refused.stderr
            assert second.stop() == 0
    finally:
        database.close()
