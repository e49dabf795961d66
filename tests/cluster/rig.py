"""Several servers on one database: child processes on free ports, each stopped, paused and killed by its own id."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.cli.servers import Server, until
from tests.cli.servers import penstock as command
from tests.databases import postgres


class Nodes:
    """Servers on one store."""

    def __init__(self, folder: Path, stack: ExitStack, options: tuple[str, ...], store: str) -> None:
        self._folder = folder
        self._stack = stack
        self._options = options
        self.store = store
        self.all: list[Server] = []

    def start(self, *options: str, **variables: str) -> Server:
        """One more server; returns when it is a member."""
        folder = self._folder / f"server-{len(self.all)}"
        folder.mkdir()
        server = self._start(folder, options, variables)
        self.all.append(server)
        return server.wait_ready()

    def start_again(self, index: int) -> Server:
        """A server that has died, in its folder."""
        self.all[index] = self._start(self._folder / f"server-{index}", (), {})
        return self.all[index].wait_ready()

    def _start(self, folder: Path, options: tuple[str, ...], variables: dict[str, str]) -> Server:
        server = Server(folder, ("--port", "0", "--store", self.store, *self._options, *options), variables)
        self._stack.callback(end, server)
        return server

    def cluster(self, server: Server | None = None) -> dict[str, Any]:
        status, answer = (server or self.all[0]).request("GET", "/v1/cluster")
        assert status == 200, answer
        found: dict[str, Any] = answer
        return found

    def slots(self, server: Server | None = None) -> dict[str, int]:
        """How many slots each URL owns, as one server sees it."""
        return {node["url"]: node["slots"] for node in self.cluster(server)["nodes"] if node["is_live"]}

    def until_balanced(self, *servers: Server) -> None:
        share = -(-64 // len(servers))

        def is_balanced() -> bool:
            for server in servers:
                found = self.slots(server)
                if set(found) != {one.url for one in servers} or sum(found.values()) != 64:
                    return False
                if max(found.values()) > share:
                    return False
            return True

        until(is_balanced, "the servers share the slots")

    def owner_of(self, queue: str, asked: Server) -> Server:
        from penstock.model.rows import home_slot

        slot = home_slot("default", queue)
        found = self.cluster(asked)
        name = next(one["owner"] for one in found["slots"] if one["slot"] == slot)
        url = next(node["url"] for node in found["nodes"] if node["name"] == name)
        return next(server for server in self.all if server.process.poll() is None and server.url == url)

    def queue_of(self, server: Server, prefix: str = "q") -> str:
        """The name of a queue that this server owns."""
        for number in range(10_000):
            if self.owner_of(f"{prefix}{number}", server) is server:
                return f"{prefix}{number}"
        raise AssertionError("no name leads to this server")


def end(server: Server) -> None:
    if server.process.poll() is None:
        server.process.kill()
    server.end()


@contextmanager
def nodes(folder: Path, *options: str, store: str | None = None) -> Iterator[Nodes]:
    """Servers on a PostgreSQL schema of the folder's own, or on another store."""
    with ExitStack() as stack:
        yield Nodes(folder, stack, options, store or postgres.schema_url(folder))


def two_nodes(url: str, folder: Path) -> list[tuple[str, int]]:
    """(URL, process id) of each, once the one that is asked has heard of the other: with its next heartbeat."""
    found: list[tuple[str, int]] = []

    def are_known() -> bool:
        shown = command("cluster", "--url", url, "--json", folder=folder)
        assert shown.returncode == 0, shown.stderr
        nodes = json.loads(shown.stdout)["nodes"]
        found[:] = [(node["url"], int(node["name"].rpartition(":")[2])) for node in nodes]
        return len(found) == 2

    until(are_known, "both are known")
    return found
