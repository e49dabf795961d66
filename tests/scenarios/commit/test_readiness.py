"""Whether the broker says that it can commit exactly when it can: stores that fail, stall, fill up and change hands."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack

import pytest

from penstock import Fenced, Message, Unavailable
from penstock.api.ticket import in_task
from penstock.embedded import open_store
from penstock.model.rows import Commit
from penstock.node.broker import LocalBroker
from penstock.node.clock import SystemClock
from penstock.node.observe import readiness
from penstock.store.memory.engine import MemoryStore
from penstock.store.sqlite.engine import SqliteStore
from tests.crash.faults import files_at_most
from tests.nodes import node_of
from tests.scenarios.rig import Home, play, soon, turns, until


class MoodyStore(MemoryStore):
    """Takes commits, refuses them, or lets them wait, as told; remembers how many there were."""

    def __init__(self) -> None:
        super().__init__()
        self.error: Exception | None = None
        self.gate: asyncio.Event | None = None
        self.commits: list[Commit] = []

    @in_task
    async def apply(self, commit: Commit) -> None:
        self.commits.append(commit)
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        await super().apply(commit)


def on_moody(scenario: Callable[[LocalBroker, MoodyStore], Awaitable[None]]) -> None:
    async def main() -> None:
        store = MoodyStore()
        broker = await open_store(store, SystemClock())
        await broker.declare_queue("q")
        store.commits.clear()
        try:
            await asyncio.wait_for(scenario(broker, store), 60)
        finally:
            store.error = None
            if store.gate is not None:
                store.gate.set()
            await broker.close()

    asyncio.run(main())


def forget_answer(broker: LocalBroker) -> None:
    """As if the time that an answer is shared for had passed."""
    node_of(broker).readiness._answered_at = None


def test_a_broker_that_can_commit_is_ready(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await soon(broker.check_ready())
        await broker.declare_queue("q")
        await broker.publish("q", Message(b"x"))
        forget_answer(broker)
        await soon(broker.check_ready())
        assert (await broker.stats("q")).messages == 1

    play(home, scenario)


def test_the_question_is_a_fenced_commit_and_many_ask_it_together() -> None:
    async def scenario(broker: LocalBroker, store: MoodyStore) -> None:
        await asyncio.gather(*(broker.check_ready() for _ in range(50)))
        await broker.check_ready()
        assert [commit.epochs for commit in store.commits] == [{0: 1}]
        forget_answer(broker)
        await broker.check_ready()
        assert len(store.commits) == 2

    on_moody(scenario)


def test_an_answer_is_shared_for_its_time_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: LocalBroker, store: MoodyStore) -> None:
        monkeypatch.setattr(readiness, "SHARED_S", 3_600.0)
        await broker.check_ready()
        store.error = Unavailable("the disk is gone")
        await broker.check_ready()
        monkeypatch.setattr(readiness, "SHARED_S", 0.0)
        with pytest.raises(Unavailable, match="not ready: the disk is gone"):
            await broker.check_ready()

    on_moody(scenario)


def test_a_store_that_fails_is_not_ready_and_is_again_when_it_recovers() -> None:
    async def scenario(broker: LocalBroker, store: MoodyStore) -> None:
        store.error = Unavailable("no space left on device")
        for _ in range(2):  # the second is the first one's answer
            with pytest.raises(Unavailable, match="not ready: no space left on device"):
                await broker.check_ready()
        assert len(store.commits) == 1
        store.error = RuntimeError("a bug in an engine")
        forget_answer(broker)
        with pytest.raises(Unavailable, match="unexpected way"):
            await broker.check_ready()
        store.error = None
        forget_answer(broker)
        await broker.check_ready()

    on_moody(scenario)


def test_a_probe_that_fails_takes_nobody_along() -> None:
    """Work that came while it was under way is committed after it, as if nothing had been."""

    async def scenario(broker: LocalBroker, store: MoodyStore) -> None:
        store.gate = asyncio.Event()
        store.error = Unavailable("for a moment")
        asked = asyncio.create_task(broker.check_ready())
        await until(lambda: len(store.commits) == 1)
        publish = asyncio.create_task(broker.publish("q", Message(b"x")))
        await turns()
        real = store.apply

        @in_task
        async def only_the_first_fails(commit: Commit) -> None:
            store.error = None
            await real(commit)

        store.apply = only_the_first_fails  # type: ignore[method-assign]
        store.gate.set()
        with pytest.raises(Unavailable, match="for a moment"):
            await soon(asked)
        assert (await soon(publish)).offset == 0

    on_moody(scenario)


def test_a_store_that_stalls_is_told_apart_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "READY_WITHIN_S", 0.05)

    async def scenario(broker: LocalBroker, store: MoodyStore) -> None:
        store.gate = asyncio.Event()
        for _ in range(3):
            with pytest.raises(Unavailable, match=r"stalls; a commit is under way for \d"):
                await soon(broker.check_ready())
        assert len(store.commits) == 1  # one question, however often it is asked
        store.gate.set()
        await until(lambda: node_of(broker).readiness._probe is None)
        await soon(broker.check_ready())

    on_moody(scenario)


def test_a_publish_that_stalls_is_a_stall_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "READY_WITHIN_S", 0.05)

    async def scenario(broker: LocalBroker, store: MoodyStore) -> None:
        store.gate = asyncio.Event()
        publish = asyncio.create_task(broker.publish("q", Message(b"x")))
        await until(lambda: len(store.commits) == 1)
        with pytest.raises(Unavailable, match="stalls"):
            await soon(broker.check_ready())
        store.gate.set()
        await soon(publish)

    on_moody(scenario)


def test_a_commit_with_rows_answers_the_question_as_well() -> None:
    async def scenario(broker: LocalBroker, store: MoodyStore) -> None:
        asked = asyncio.create_task(broker.check_ready())
        await asyncio.sleep(0)  # its commit has not begun
        await broker.publish("q", Message(b"x"))
        await asked
        assert len(store.commits) == 1
        assert store.commits[0].lanes

    on_moody(scenario)


def test_ephemeral_queues_go_on_while_the_store_is_away() -> None:
    async def scenario(broker: LocalBroker, store: MoodyStore) -> None:
        await broker.declare_queue("e", ephemeral=True)
        store.error = Unavailable("away")
        asked = asyncio.create_task(broker.check_ready())
        published = await soon(broker.publish("e", Message(b"x")))
        assert published.offset == 0
        with pytest.raises(Unavailable, match="away"):
            await soon(asked)

    on_moody(scenario)


def test_a_broker_that_lost_its_store_to_another_is_not_ready(home: Home) -> None:
    async def scenario(home: Home) -> None:
        store = await home.store()
        broker = await open_store(store, SystemClock())
        await broker.check_ready()
        await store.acquire(range(64), "another")
        forget_answer(broker)
        with pytest.raises(Fenced, match="not ready"):
            await soon(broker.check_ready())
        with pytest.raises(Fenced):  # and it knows it for good
            node_of(broker).lifecycle.check_open()
        with pytest.raises(Fenced, match="not ready"):
            await soon(broker.check_ready())
        await broker.close()

    play(home, scenario)


def test_a_closed_broker_is_not_ready(memory_home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.check_ready()
        await broker.close()
        with pytest.raises(Unavailable, match="closed"):
            await broker.check_ready()

    play(memory_home, scenario)


def test_closing_ends_a_question_that_is_under_way() -> None:
    async def scenario(broker: LocalBroker, store: MoodyStore) -> None:
        store.gate = asyncio.Event()
        asked = asyncio.create_task(broker.check_ready())
        await until(lambda: len(store.commits) == 1)
        closing = asyncio.create_task(broker.close())
        await turns()
        store.gate.set()
        await soon(closing)
        await soon(asked)

    on_moody(scenario)


def test_an_empty_commit_reaches_the_file(file_home: Home) -> None:
    """Every one is a record of the log, and leaves no row."""

    async def scenario(home: Home) -> None:
        assert home.path is not None
        store = await SqliteStore.open(home.path)
        epochs = await store.acquire(range(64), "me")
        ends = [store._log._log.end]
        for _ in range(3):
            await store.apply(Commit(epochs={0: epochs[0]}))
            ends.append(store._log._log.end)
        assert ends == sorted(set(ends))
        assert await store.acquire([5], "me") == {5: epochs[5] + 1}
        await store.close()

    play(file_home, scenario)


def test_a_disk_without_room_shows(file_home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.check_ready()
        with ExitStack() as limits:
            limits.enter_context(files_at_most(50))
            forget_answer(broker)
            with pytest.raises(Unavailable, match="File too large"):
                await soon(broker.check_ready())
        forget_answer(broker)
        await soon(broker.check_ready())

    play(file_home, scenario)
