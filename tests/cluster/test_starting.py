"""Starting several servers with one command, looking at them, and who may not join."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path

import pytest

import penstock
from penstock.model import Message
from penstock.model.errors import Unavailable
from tests.cli.servers import Server, until
from tests.cli.servers import penstock as command
from tests.cluster.rig import end, nodes, two_nodes
from tests.databases import postgres

STARTED = re.compile(r"listens on (http://\S+) ")


def urls_of(server: Server) -> list[str]:
    return [found[1] for line in list(server.output) if (found := STARTED.search(line))]


def test_one_command_starts_several_and_starts_one_again_that_dies(tmp_path: Path, store: str) -> None:
    parent = Server(tmp_path, ("--port", "0", "--nodes", "2", "--store", store), {})
    try:
        until(lambda: len(urls_of(parent)) == 2, "both listen")
        url = urls_of(parent)[0]
        victim = next(process for other, process in two_nodes(url, tmp_path) if other != url)
        os.kill(victim, signal.SIGKILL)
        until(lambda: len(urls_of(parent)) == 3, "a new one listens")
        table = command("cluster", "--url", url, "--slots", folder=tmp_path)
        assert table.returncode == 0, table.stderr
        assert "(this one)" in table.stdout
        assert "taken by" in table.stdout
        assert parent.stop() == 0
    finally:
        if parent.process.poll() is None:
            end(parent)


def test_servers_stop_with_the_command_that_started_them(tmp_path: Path) -> None:
    store = postgres.schema_url(tmp_path)
    parent = Server(tmp_path, ("--port", "0", "--nodes", "2", "--store", store), {})
    try:
        until(lambda: len(urls_of(parent)) == 2, "both listen")
        children = [process for _, process in two_nodes(urls_of(parent)[0], tmp_path)]
    finally:
        parent.process.kill()
    until(lambda: not any(_is_there(child) for child in children), "they have stopped")
    parent.end()


def _is_there(process: int) -> bool:
    try:
        return "penstock" in Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return False


def test_several_servers_on_a_file_are_refused(tmp_path: Path) -> None:
    done = command("serve", "--nodes", "2", folder=tmp_path)
    assert done.returncode == 1
    assert "a file is for one server" in done.stderr


def test_an_address_that_nobody_can_use_is_refused(tmp_path: Path) -> None:
    store = postgres.schema_url(tmp_path)
    done = command("serve", "--store", store, "--host", "0.0.0.0", "--port", "0", "--insecure", folder=tmp_path)
    assert done.returncode == 1
    assert "--advertise" in done.stderr


def test_a_single_server_says_so(tmp_path: Path) -> None:
    server = Server(tmp_path, ("--port", "0"), {}).wait_ready()
    try:
        shown = command("cluster", "--url", server.url, folder=tmp_path)
        assert shown.stdout == "A single server has the store for itself.\n"
        assert server.stop() == 0
    finally:
        if server.process.poll() is None:
            end(server)


def test_a_program_and_servers_do_not_share_a_store(tmp_path: Path, store: str) -> None:
    with nodes(tmp_path, store=store) as cluster:
        server = cluster.start()

        async def refused() -> None:
            with pytest.raises(Unavailable, match=f"in use by .*:{server.process.pid}"):
                await penstock.open(cluster.store)

        asyncio.run(refused())
        assert server.stop() == 0

        async def embedded() -> None:
            async with await penstock.open(cluster.store) as broker:
                await broker.declare_queue("mine", lanes=3)
                await broker.publish("mine", Message(b"m"))
                claim = await broker.claim("mine", ack=True)
                assert claim.payloads() == [b"m"]
                done = await asyncio.to_thread(
                    command, "serve", "--store", cluster.store, "--port", "0", folder=tmp_path
                )
                assert done.returncode == 1
                assert f":{os.getpid()}" in done.stderr
                await broker.publish("mine", Message(b"still"))

        asyncio.run(embedded())
        again = cluster.start()
        status, claim = again.request("POST", "/v1/queues/mine/claim", {"wait": 2})
        assert (status, [message["payload"] for message in claim["messages"]]) == (200, ["still"])
