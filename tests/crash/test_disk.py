"""The disk is full, or fails: `Unavailable`, nothing lost, nothing half done, and work goes on without a restart."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock import Claim, Message, PenstockError, QueueStats, Unavailable
from penstock.node.broker import LocalBroker
from tests.crash.faults import FailingCommits, Moment, files_at_most, small_disk
from tests.local import open_local
from tests.nodes import node_of
from tests.scenarios.rig import Home, claim_all, group_stats, play, soon, texts, until

NOISE = random.Random(0).randbytes(50_000)
"""Bytes that do not become fewer when a batch is compressed."""


async def publish_until_full(broker: LocalBroker) -> tuple[list[str], PenstockError]:
    """What was confirmed before the disk was full, and the error."""
    confirmed: list[str] = []
    while True:
        name = f"m{len(confirmed)}"
        try:
            await broker.publish("q", Message(NOISE, key=name))
        except PenstockError as error:
            return confirmed, error
        confirmed.append(name)


async def keys(broker: LocalBroker) -> list[str | None]:
    found: list[str | None] = []
    while len(claim := await broker.claim("q", max=5)):
        found += [one.message.key for one in claim]
        await broker.ack(claim)
    return found


async def fill_and_go_on(broker: LocalBroker, make_room: Callable[[], None]) -> list[str]:
    """Fill the disk, fail for a while, get room, go on; what must be there."""
    confirmed, error = await publish_until_full(broker)
    assert isinstance(error, Unavailable)
    assert "No space left" in str(error) or "File too large" in str(error)
    assert len(confirmed) > 3
    for _ in range(3):
        with pytest.raises(Unavailable):
            await broker.publish_many("q", [Message(NOISE, key="never") for _ in range(40)])
    page = await broker.browse("q", max=1_000)
    assert [one.message.key for one in page.messages] == confirmed
    make_room()
    for number in range(3):
        await broker.publish("q", Message(NOISE, key=f"after{number}"))
    return [*confirmed, "after0", "after1", "after2"]


def test_a_full_disk_fails_publishes_clearly_and_room_brings_them_back(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 16 << 20) as disk:

        async def scenario(home: Home) -> None:
            broker = await home.open()
            await broker.declare_queue("q")
            await broker.claim("q")
            ballast = disk / "ballast"
            ballast.write_bytes(bytes(11 << 20))  # the log and the file need room for the same pages
            expected = await fill_and_go_on(broker, ballast.unlink)
            broker = await home.reopen(broker)
            assert await keys(broker) == expected

        play(Home(disk / "penstock.db"), scenario)


def test_a_disk_that_was_full_is_used_again_when_its_messages_are_done(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 16 << 20) as disk:

        async def scenario(home: Home) -> None:
            broker = await home.open()
            await broker.declare_queue("q")
            await broker.claim("q")
            ballast = disk / "ballast"
            ballast.write_bytes(bytes(11 << 20))
            confirmed, _ = await publish_until_full(broker)
            ballast.unlink()
            assert await keys(broker) == confirmed
            broker = await home.reopen(broker)
            again, error = await publish_until_full(broker)
            assert isinstance(error, Unavailable)
            assert len(again) > len(confirmed)
            assert (await broker.stats("q")).messages == len(again)

        play(Home(disk / "penstock.db"), scenario)


def test_writes_that_fail_in_the_file_system(tmp_path: Path) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.claim("q")
        with ExitStack() as limits:
            limits.enter_context(files_at_most(1_000_000))
            expected = await fill_and_go_on(broker, limits.close)
        broker = await home.reopen(broker)
        assert await keys(broker) == expected

    play(Home(tmp_path / "penstock.db"), scenario)


# One failing commit, at every operation and every moment -----------------------------------------------------

Operation = Callable[[LocalBroker, dict[str, Claim]], Awaitable[Any]]


async def in_transaction(broker: LocalBroker, held: dict[str, Claim]) -> None:
    async with broker.transaction() as transaction:
        transaction.ack(held["b"]).publish("a", Message(b"t1")).publish("c", Message(b"t2"))


OPERATIONS: dict[str, Operation] = {
    "publish": lambda broker, _: broker.publish("a", Message(b"p")),
    "publish many": lambda broker, _: broker.publish_many(
        "lanes", [Message(b"p", partition=str(n)) for n in range(50)]
    ),
    "publish to": lambda broker, _: broker.publish_to("x", Message(b"p")),
    "claim": lambda broker, _: broker.claim("a"),
    "claim and ack": lambda broker, _: broker.claim("a", ack=True),
    "ack": lambda broker, held: broker.ack(held["b"]),
    "nack": lambda broker, held: broker.nack(held["b"], delay=60),
    "reject": lambda broker, held: broker.reject(held["b"]),
    "release": lambda broker, held: broker.release(held["b"]),
    "transaction": in_transaction,
    "seek": lambda broker, _: broker.seek("a", to="last"),
    "redrive": lambda broker, _: broker.redrive("d"),
    "purge": lambda broker, _: broker.purge("a"),
    "purge dead": lambda broker, _: broker.purge_dead("d"),
    "declare queue": lambda broker, _: broker.declare_queue("new", max_length=5),
    "change queue": lambda broker, _: broker.declare_queue("a", lease_ms=77_000),
    "delete queue": lambda broker, _: broker.delete_queue("a"),
    "declare group": lambda broker, _: broker.declare_group("a", "new"),
    "delete group": lambda broker, _: broker.delete_group("a", "extra"),
    "declare exchange": lambda broker, _: broker.declare_exchange("new", kind="topic"),
    "delete exchange": lambda broker, _: broker.delete_exchange("x"),
    "bind": lambda broker, _: broker.bind("x", "c"),
    "unbind": lambda broker, _: broker.unbind("x", "a"),
    "pause": lambda broker, _: broker.pause("a"),
}


async def prepare(broker: LocalBroker) -> dict[str, Claim]:
    for queue in ("a", "b", "c", "d"):
        await broker.declare_queue(queue, lease_ms=3_600_000)
        await broker.declare_group(queue, "default")
    await broker.declare_queue("lanes", lanes=3)
    await broker.declare_group("a", "extra")
    await broker.declare_exchange("x", kind="fanout")
    await broker.bind("x", "a")
    await broker.bind("x", "b")
    for queue in ("a", "b", "d"):
        await broker.publish_many(queue, [Message(b"%d" % number) for number in range(3)])
    await broker.reject(await broker.claim("d", max=2))
    return {"b": await broker.claim("b", max=2)}


async def snapshot(broker: LocalBroker) -> dict[str, Any]:
    """All that can be seen from outside, but sizes."""

    def counted(stats: QueueStats) -> Any:
        return stats.messages, stats.published, stats.groups

    await node_of(broker).writer.known()
    names = sorted(set(await broker.queues()) - {"$events"})
    return {
        "queues": {name: (await broker.queues())[name] for name in names},
        "groups": {name: await broker.groups(name) for name in names},
        "stats": {name: counted(await broker.stats(name)) for name in names},
        "states": {name: [one.state for one in (await broker.browse(name)).messages] for name in names},
        "exchanges": node_of(broker).catalog.router("default").exchanges(),
        "bindings": {
            name: sorted(binding.target for binding in node_of(broker).catalog.router("default").bindings(name))
            for name in node_of(broker).catalog.router("default").exchanges()
        },
    }


@pytest.mark.parametrize("moment", ["before", "within", "after"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_whose_commit_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, moment: Moment
) -> None:
    """`Unavailable`; then all of it is in force or nothing, as the disk has it, also after a restart."""
    commits = FailingCommits(monkeypatch)
    operation = OPERATIONS[name]

    async def scenario(home: Home) -> None:
        broker = await home.open()
        held = await prepare(broker)
        untouched = await snapshot(broker)
        commits.fail(moment)
        with pytest.raises(Unavailable, match="Input/output error"):
            await soon(operation(broker, held))
        failed = await snapshot(broker)
        if moment != "after":
            assert failed == untouched
            await soon(operation(broker, held))
        else:
            assert failed != untouched
        done = await snapshot(broker)
        assert done != untouched
        broker = await home.reopen(broker)
        if name != "seek":
            assert await snapshot(broker) == done
        # And all the rest still works.
        await broker.publish("c", Message(b"last"))
        assert (await claim_all(broker, "c"))[-1] == "last"

    play(Home(tmp_path / "penstock.db"), scenario)


def test_polls_wait_through_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = FailingCommits(monkeypatch)

    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", lease_ms=50, max_attempts=0)
        await broker.declare_group("q", "s", kind="stream", auto_commit=False)
        poll = asyncio.create_task(broker.claim("q", wait=3_600))
        read = asyncio.create_task(broker.read("q", "s", wait=3_600))
        await until(lambda: node_of(broker).waiters.count == 1)
        moments: tuple[Moment, ...] = ("before", "within")
        for moment in moments:
            commits.fail(moment)
            with pytest.raises(Unavailable):
                await broker.publish("q", Message(b"never"))
        await soon(broker.publish("q", Message(b"m")))
        assert texts(await soon(poll)) == ["m"]
        # A reader looks with the commits of others, and may be told that one failed.
        found = await asyncio.gather(read, return_exceptions=True)
        assert isinstance(found[0], Unavailable) or texts(found[0]) == ["m"]
        # The commits of timers fail as well: the lease ends all the same, when the disk is back.
        commits.fail("before", 3)
        again: Claim | None = None
        while again is None:
            try:
                again = await soon(broker.claim("q", wait=3_600))
            except Unavailable:
                continue
        assert [one.payload for one in again] == [b"m"]

    play(Home(tmp_path / "penstock.db"), scenario)


def test_a_lease_ends_and_its_message_dies_though_the_first_tries_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody asks for the queue meanwhile: the node itself comes back to what it could not write."""
    commits = FailingCommits(monkeypatch)

    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("graves")
        await broker.declare_queue("q", lease_ms=30, max_attempts=1, dead_letter_to="queue:graves")
        await broker.publish("q", Message(b"m"))
        await broker.claim("q")
        commits.fail("within", 2)

        async def copied() -> bool:
            return (await broker.stats("graves")).published == 1

        await until(copied)
        assert commits.left == 0
        assert (await group_stats(broker, "q")).dead == 1

    play(Home(tmp_path / "penstock.db"), scenario)


def test_a_publish_of_unknown_outcome_can_be_repeated_under_its_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = FailingCommits(monkeypatch)

    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        moments: tuple[Moment, ...] = ("before", "within", "after")
        for number, moment in enumerate(moments):
            commits.fail(moment)
            message = Message(b"%d" % number, dedup_id=moment)
            with pytest.raises(Unavailable):
                await broker.publish("q", message)
            assert (await broker.publish("q", message)).duplicate is (moment == "after")
        broker = await home.reopen(broker)
        assert await claim_all(broker, "q") == ["0", "1", "2"]

    play(Home(tmp_path / "penstock.db"), scenario)


def test_what_was_behind_a_failed_commit_is_told_so_and_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = FailingCommits(monkeypatch)

    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        confirmed: list[str] = []
        refused: list[str] = []
        is_over = False

        async def produce(name: str) -> None:
            number = 0
            while not is_over:
                id, number = f"{name}{number}", number + 1
                try:
                    await broker.publish("q", Message(id.encode()))
                except Unavailable:
                    refused.append(id)
                else:
                    confirmed.append(id)

        async def disturb() -> None:
            nonlocal is_over
            for _ in range(10):
                commits.fail("within")
                await until(lambda: commits.left == 0)
            is_over = True

        await soon(asyncio.gather(produce("a"), produce("b"), produce("c"), disturb()))
        assert confirmed
        assert len(refused) >= 10
        broker = await home.reopen(broker)
        assert sorted(await claim_all(broker, "q")) == sorted(confirmed)

    play(Home(tmp_path / "penstock.db"), scenario)


def test_closing_a_broker_whose_disk_fails_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = FailingCommits(monkeypatch)

    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        commits.fail("before", 1_000)
        with pytest.raises(Unavailable):
            await broker.declare_queue("r")
        with pytest.raises(Unavailable):
            await broker.publish("q", Message(b"m"))
        await soon(broker.close())
        commits.fail("before", 0)
        broker = await home.open()
        assert set(await broker.queues()) == {"q", "$events"}
        tasks = [task for task in asyncio.all_tasks() if "_reload" in repr(task.get_coro())]
        assert tasks == []

    play(Home(tmp_path / "penstock.db"), scenario)


def test_opening_fails_clearly_and_leaves_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = FailingCommits(monkeypatch)
    commits.fail("before", 1)

    async def scenario() -> None:
        with pytest.raises(Unavailable, match="Input/output error"):
            await open_local(tmp_path / "penstock.db")
        broker = await open_local(tmp_path / "penstock.db")
        await broker.close()

    asyncio.run(scenario())
