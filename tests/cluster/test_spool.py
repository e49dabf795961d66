"""Three servers, a database that is killed under them, and one of them too: what was answered is there once."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from penstock import Client, Message, PenstockError
from penstock.client.transport.channel import Retry
from tests.cli.servers import LISTENS, Server, until
from tests.cluster.rig import Nodes, end, two_nodes
from tests.databases import mariadb
from tests.databases.postgres import PostgresServer, is_there, synchronous_pair

pytestmark = pytest.mark.skipif(not is_there(), reason="there is no PostgreSQL")
QUEUES = ("q0", "q1", "q2", "q3", "q4", "q5")


class Publisher:
    """Publishes through one server to queues, or to an exchange, without names; nothing is repeated."""

    def __init__(self, name: str, server: Server, targets: Sequence[str] = QUEUES) -> None:
        self._name = name
        self._targets = targets
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
                queue = self._targets[self.count % len(self._targets)]
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


class Trouble:
    """A database that is killed, and how it comes back."""

    def __init__(self, url: str, go: Callable[[], None], come: Callable[[], None]) -> None:
        self.url = url
        self.go = go
        self.come = come


def restarted_postgres(stack: ExitStack) -> Trouble:
    database = PostgresServer()
    stack.callback(database.close)
    return Trouble(f"{database.url}?schema=spooled", partial(database.stop, signal.SIGKILL), database.start)


def restarted_mariadb(stack: ExitStack) -> Trouble:
    if not mariadb.is_there():
        pytest.skip(mariadb.MISSING)
    database = mariadb.MariadbServer()
    stack.callback(database.close)
    return Trouble(f"{database.url}/spooled", partial(database.stop, signal.SIGKILL), database.start)


def failed_over_postgres(stack: ExitStack) -> Trouble:
    """The servers are told both; the second has everything that the first has answered."""
    first, second, url = synchronous_pair(stack)
    return Trouble(f"{url}&schema=spooled", partial(first.stop, signal.SIGKILL), second.promote)


@pytest.mark.parametrize("trouble", [restarted_postgres, restarted_mariadb, failed_over_postgres])
def test_what_was_answered_is_there_once(tmp_path: Path, trouble: Callable[[ExitStack], Trouble]) -> None:
    with ExitStack() as stack:
        database = trouble(stack)
        nodes = Nodes(tmp_path, stack, (), database.url)
        servers = [nodes.start() for _ in range(3)]
        nodes.until_balanced(*servers)
        with Client(servers[0].url) as client:
            for queue in QUEUES:
                client.declare_queue(queue, keep_done_ms=3_600_000)
            client.declare_exchange("fan", kind="fanout")
            for queue in QUEUES[:3]:
                client.bind("fan", queue)
        publishers = [Publisher(f"p{index}", server) for index, server in enumerate(servers)]
        # Of their own: what is decided and waits for other owners is waited for, some seconds long.
        routed = [Publisher(f"r{index}", server, ["fan"]) for index, server in enumerate(servers)]
        for one in (*publishers, *routed):
            stack.callback(one.stop)
        until(lambda: all(one.confirmed.total() > 50 for one in (*publishers, *routed)), "everybody publishes")
        database.go()
        until(lambda: all(one.buffered > 30 for one in publishers), "everybody is buffered")
        servers[2].signal(signal.SIGKILL)  # with what it holds
        publishers[2].stop()
        routed[2].stop()
        assert segments(tmp_path, 2)
        database.come()
        third = nodes.start_again(2)
        again = Publisher("again", third)
        stack.callback(again.stop)
        everybody = [*publishers, *routed, again]
        until(lambda: not any(messages(server) for server in (*servers[:2], third)), "what was buffered is published")
        goals = {one: one.count + 30 for one in (*publishers[:2], again)}
        until(lambda: all(one.count >= goal for one, goal in goals.items()), "publishing goes on")
        for one in everybody:
            one.stop()
        until(lambda: not any(messages(server) for server in (*servers[:2], third)), "the spools are empty")
        check(servers[0], everybody)


def test_servers_of_one_command_replay_what_one_held_when_it_was_killed(tmp_path: Path) -> None:
    """It is started again, in vain as long as the database is away, and finds its own spool among theirs."""
    with ExitStack() as stack:
        database = PostgresServer()
        stack.callback(database.close)
        options = ("--port", "0", "--nodes", "2", "--store", f"{database.url}?schema=commanded")
        parent = Server(tmp_path, options, {})
        stack.callback(end, parent)
        until(lambda: len(urls_of(parent)) == 2, "both listen")
        urls = urls_of(parent)
        with Client(urls[0], retry=Retry(attempts=1)) as one, Client(urls[1], retry=Retry(attempts=1)) as other:
            one.declare_queue("work", keep_done_ms=3_600_000)
            for client, partition in ((one, "one"), (other, "other")):
                client.publish("work", Message(b"0", partition=partition))
            processes = dict(two_nodes(urls[0], tmp_path))
            database.stop(signal.SIGKILL)
            for number in range(1, 20):
                for client, partition in ((one, "one"), (other, "other")):
                    assert client.publish("work", Message(b"%d" % number, partition=partition)).buffered
            os.kill(processes[urls[1]], signal.SIGKILL)
            until(lambda: "started again" in "".join(parent.errors), "it is started again")
            database.start()
            until(lambda: len(urls_of(parent)) == 3, "it listens again")
            found: dict[str, list[int]] = {}
            while sum(map(len, found.values())) < 40:
                for received in one.claim("work", max=100, wait=20, ack=True):
                    found.setdefault(received.message.partition or "", []).append(int(received.payload))
        assert found == {"one": list(range(20)), "other": list(range(20))}
        spools = tmp_path / "data" / "spool"
        until(lambda: not list(spools.glob("*/*.spool")), "the spools are empty")
        assert sorted(path.name for path in spools.iterdir()) == ["any-0", "any-1"]
        assert parent.stop() == 0


def urls_of(parent: Server) -> list[str]:
    return [found[1] for line in list(parent.output) if (found := LISTENS.search(line))]


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
