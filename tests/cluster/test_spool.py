"""Three servers, a database that is killed under them, and one of them too: what was answered is there once."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock import Client, Message, PenstockError
from penstock.client.channel import Retry
from tests.cli.servers import Server, until
from tests.cluster.rig import Nodes
from tests.databases.postgres import PostgresServer, is_there

pytestmark = pytest.mark.skipif(not is_there(), reason="there is no PostgreSQL")
QUEUES = ("q0", "q1", "q2", "q3", "q4", "q5")


class Publisher:
    """Publishes through one server to every queue and to all of them at once, without names; nothing is repeated."""

    def __init__(self, name: str, server: Server) -> None:
        self._name = name
        self._url = server.url
        self._is_over = threading.Event()
        self.confirmed: Counter[tuple[str, str]] = Counter()
        self.perhaps: set[tuple[str, str]] = set()
        self.buffered = 0
        self.count = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with Client(self._url, retry=Retry(attempts=1)) as client:
            while not self._is_over.is_set():
                queue = (*QUEUES, "fan")[self.count % (len(QUEUES) + 1)]
                text = f"{self._name}-{self.count}"
                homes = QUEUES[:3] if queue == "fan" else (queue,)
                self.count += 1
                try:
                    message = Message(text.encode())
                    if queue == "fan":
                        buffered = client.publish_to("fan", message).buffered
                    else:
                        buffered = client.publish(queue, message).buffered
                except PenstockError:
                    self.perhaps.update((home, text) for home in homes)
                    self._is_over.wait(0.05)
                else:
                    self.buffered += buffered
                    self.confirmed.update((home, text) for home in homes)

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()


def test_what_was_answered_is_there_once(tmp_path: Path) -> None:
    database = PostgresServer()
    with ExitStack() as stack:
        stack.callback(database.close)
        nodes = Nodes(tmp_path, stack, (), f"{database.url}?schema=spooled")
        servers = [nodes.start() for _ in range(3)]
        nodes.until_balanced(*servers)
        with Client(servers[0].url) as client:
            for queue in QUEUES:
                client.declare_queue(queue, keep_done_ms=3_600_000)
            client.declare_exchange("fan", kind="fanout")
            for queue in QUEUES[:3]:
                client.bind("fan", queue)
        publishers = [Publisher(f"p{index}", server) for index, server in enumerate(servers)]
        for one in publishers:
            stack.callback(one.stop)
        until(lambda: all(one.confirmed.total() > 50 for one in publishers), "everybody publishes")
        database.stop(signal.SIGKILL)
        until(lambda: all(one.buffered > 30 for one in publishers), "everybody is buffered")
        servers[2].signal(signal.SIGKILL)  # with what it holds
        publishers[2].stop()
        assert segments(tmp_path, 2)
        database.start()
        third = nodes.start_again(2)
        again = Publisher("again", third)
        stack.callback(again.stop)
        everybody = [*publishers, again]
        until(lambda: not any(messages(server) for server in (*servers[:2], third)), "what was buffered is published")
        goals = {one: one.count + 30 for one in (*publishers[:2], again)}
        until(lambda: all(one.count >= goal for one, goal in goals.items()), "publishing goes on")
        for one in everybody:
            one.stop()
        until(lambda: not any(messages(server) for server in (*servers[:2], third)), "the spools are empty")
        check(servers[0], everybody)


def check(server: Server, publishers: list[Publisher]) -> None:
    confirmed = {place for one in publishers for place in one.confirmed}
    perhaps = {place for one in publishers for place in one.perhaps}
    deadline = time.monotonic() + 20
    while True:  # what another node was sent is there a moment after the spool is empty
        found: Counter[tuple[str, str]] = Counter()
        with Client(server.url) as client:
            for queue in QUEUES:
                start = 0
                while (page := client.scan(queue, 0, start, 1 << 40)).next_offset > start:
                    found.update((queue, one.payload.decode()) for one in page.messages())
                    start = page.next_offset
        if confirmed <= found.keys() or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    assert confirmed - found.keys() == set()
    assert [place for place, count in found.items() if count > 1] == []
    assert found.keys() - confirmed - perhaps == set()


def segments(folder: Path, index: int) -> list[Path]:
    return list((folder / f"server-{index}").glob("data/spool/*/*.spool"))


def messages(server: Server) -> int:
    """In its spool, or 1 while the store is away for it."""
    status, answer = server.request("GET", "/readyz")
    if status != 200 or answer["status"] != "ready":
        return 1
    name = "penstock_spool_messages "
    found = next(line for line in server.text("/metrics").splitlines() if line.startswith(name))
    return int(float(found.removeprefix(name)))
