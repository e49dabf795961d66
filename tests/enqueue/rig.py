"""What the tests of transactional enqueue stand on: a schema of the shared PostgreSQL, and real servers on it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg

import penstock
from tests.cli.servers import Server, running
from tests.databases.postgres import schema_url

PATIENCE_S: Final = 60.0
_numbers: Final = itertools.count(1)


class Place:
    """A schema of its own, and the address of the database around it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = schema_url(f"{folder}/{next(_numbers)}")
        self.url, _, self.schema = self.store.partition("?schema=")

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        return psycopg.connect(self.url, **options)

    @contextmanager
    def served(self, store: str = "", **variables: Any) -> Iterator[tuple[Server, penstock.Client]]:
        """A real server in a process of its own, and a client of it."""
        with (
            running(self.folder, "--store", self.store + store, **variables) as server,
            penstock.Client(server.url) as client,
        ):
            yield server, client


def received(client: penstock.Client, queue: str, count: int) -> list[str]:
    """The payloads of the next messages, in the order in which they are handed out; so many of them at least."""
    found: list[str] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"only {len(found)} of {count} came: {found[-3:]}"
        claim = client.claim(queue, max=1_000, wait=1, ack=True)
        found += [one.payload.decode() for one in claim.messages]
    return found
