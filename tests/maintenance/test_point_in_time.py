"""Restoring a moment: from a backup and the log behind it, of later backups or copied all the time."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from time import monotonic, time_ns

import pytest

import penstock
from penstock import Message
from penstock.api.broker import Broker
from penstock.maintenance.backup import BackupMade, Restored, Watching, back_up, list_backups, restore
from penstock.model.errors import InvalidArgument, NotFound, StoreCorrupt, Unavailable
from penstock.model.rows import Member
from penstock.store.open import open_engine
from penstock.store.sqlite.log import segments as log_segments
from penstock.store.sqlite.log.segments import Segments
from penstock.store.sqlite.shipping import Gap, Shipping
from tests.maintenance.rig import fill, flip, segment_of

DEADLINE_S = 60.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "backups"


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_segments, "SEGMENT_BYTES_FIRST", 1 << 16)
    monkeypatch.setattr(log_segments, "SEGMENT_BYTES_MOST", 1 << 16)


class Clock:
    """Moments between commits: each is later than all before it and earlier than all behind it."""

    def __init__(self) -> None:
        self.moments: list[int] = []

    async def mark(self) -> None:
        await asyncio.sleep(0.002)
        self.moments.append(time_ns() // 1_000_000)
        await asyncio.sleep(0.002)


async def state(broker: Broker) -> dict[str, object]:
    """What a user sees of every queue: messages, progress, dead letters, declarations."""
    seen: dict[str, object] = {}
    for name in await broker.queues():
        stats = await broker.stats(name)
        messages = [
            one for lane in range(stats.lanes) for one in await broker.read_from(name, 0, lane=lane, max=10_000)
        ]
        seen[name] = (stats, [(one.lane, one.offset, one.payload) for one in messages])
    seen["marks"] = await broker.marks()
    seen["schedules"] = [(one.name, one.cron) for one in await broker.schedules()]
    return seen


async def restored_state(folder: Path, target: Path, at_ms: int | None) -> tuple[Restored, dict[str, object]]:
    done = await restore(folder, str(target), at_ms=at_ms)
    assert (done.ok, done.findings) == (True, [])
    async with await penstock.open(target, events=False) as broker:
        return done, await state(broker)


async def in_thread(place: Path, folder: Path, keep: int | None = None) -> BackupMade:
    return await asyncio.to_thread(asyncio.run, back_up(str(place), folder, keep=keep))


@asynccontextmanager
async def watched(path: Path, folder: Path, full_every_s: float = 3600.0) -> AsyncIterator[list[BackupMade]]:
    """While the log is copied; at the end all that was answered is."""
    made: list[BackupMade] = []
    task = asyncio.create_task(Watching(str(path), folder, 0.01, full_every_s).run(made.append))
    try:
        yield made
        await copied_until(folder, time_ns() // 1_000_000, task)
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def copied_until(folder: Path, moment: int, task: asyncio.Task[None]) -> None:
    deadline = monotonic() + DEADLINE_S
    while not any(copied_to(place) >= moment for place in shipped_files(folder)):
        assert monotonic() < deadline, "the log is not copied"
        if task.done():
            task.result()
        await asyncio.sleep(0.01)


def shipped_files(folder: Path) -> list[Path]:
    return list(folder.glob("log/*/shipped.json"))


def is_private(folder: Path) -> bool:
    return all(one.stat().st_mode & 0o077 == 0 for one in folder.rglob("*"))


def copied_to(place: Path) -> int:
    found: int = json.loads(place.read_text())["until_ms"]
    return found


async def payloads(place: Path) -> list[bytes]:
    async with await penstock.open(place) as broker:
        return [one.payload for one in await broker.read_from("work", 0, max=10_000)]


# Any moment -----------------------------------------------------------------------------------------------


def test_every_moment_is_restored_as_it_was(tmp_path: Path, folder: Path) -> None:
    """Publishes, acks, rejects, declarations, deletions: each is there from its own moment on, and not before."""
    path, clock = tmp_path / "penstock.db", Clock()
    states: list[dict[str, object]] = []

    async def main() -> None:
        async with await penstock.open(path, events=False) as broker:
            await fill(broker)
            await in_thread(path, folder)
            async with watched(path, folder) as made:

                async def note() -> None:
                    await clock.mark()
                    states.append(await state(broker))

                await note()
                await broker.declare_queue("work", dedup_window_ms=600_000)
                await broker.publish_many("work", [Message(b"%d" % one, dedup_id=f"d{one}") for one in range(9)])
                await note()
                await broker.ack(await broker.claim("work", max=3))
                await note()
                await broker.reject(await broker.claim("work", max=2), error="bad")
                await broker.delete_queue("lost")
                await note()
                await broker.put_mark("archive", {"offset": 99})
                await broker.publish("work", Message(b"last"))
                await note()
            assert made == []
        assert list_backups(folder)[0].until_ms >= clock.moments[-1]
        for number, moment in enumerate(clock.moments):
            done, found = await restored_state(folder, tmp_path / f"{number}.db", moment)
            assert found == states[number], f"moment {number}"
            assert done.restored_ms <= moment
            assert done.next_ms is None or done.next_ms > moment
            assert (done.left_out > 0) == (done.next_ms is not None)
        newest, found = await restored_state(folder, tmp_path / "newest.db", None)
        assert found == states[-1]
        assert (newest.left_out, newest.next_ms) == (0, None)
        # To the millisecond: the last commit before a moment is in, and one millisecond earlier it is not.
        exact, _ = await restored_state(folder, tmp_path / "exact.db", newest.restored_ms)
        assert (exact.restored_ms, exact.next_ms) == (newest.restored_ms, None)
        before, _ = await restored_state(folder, tmp_path / "before.db", newest.restored_ms - 1)
        assert before.next_ms == newest.restored_ms

    asyncio.run(main())


@pytest.mark.usefixtures("small_segments")
def test_a_moment_between_two_backups_needs_no_watching(tmp_path: Path, folder: Path) -> None:
    """As long as the store had not given back what lies between them."""
    path, clock = tmp_path / "penstock.db", Clock()

    async def main() -> None:
        async with await penstock.open(path, events=False) as broker:
            await broker.declare_queue("work", retain_ms=3_600_000)
            for number in range(30):
                await broker.publish("work", Message(os.urandom(9_000)))
                if number % 10 == 0:
                    await in_thread(path, folder)
                await clock.mark()
            await in_thread(path, folder)
        assert len(Segments(Path(f"{path}-log")).numbers()) > 3
        for number in (0, 4, 9, 10, 17, 29):
            done = await restore(folder, str(tmp_path / f"{number}.db"), at_ms=clock.moments[number])
            assert (done.ok, done.left_out > 0) == (True, number < 29)
            assert len(await payloads(tmp_path / f"{number}.db")) == number + 1

    asyncio.run(main())


@pytest.mark.usefixtures("small_segments")
def test_what_was_given_back_before_it_was_copied_is_missed(tmp_path: Path, folder: Path) -> None:
    path, clock = tmp_path / "penstock.db", Clock()

    async def main() -> None:
        async with await penstock.open(path, events=False) as broker:
            await broker.declare_queue("work")
            await broker.publish("work", Message(b"first"))
            await in_thread(path, folder)
            for number in range(40):
                await broker.publish("work", Message(os.urandom(9_000)))
                await broker.ack(await broker.claim("work", max=10))
                if number == 20:
                    await clock.mark()
        store = await open_engine(path)  # the tables are brought up to date, and segments given back
        await store.close()
        await in_thread(path, folder)
        with pytest.raises(StoreCorrupt, match=r"of the log is (damaged or )?missing.* has goes up to"):
            await restore(folder, str(tmp_path / "x.db"), at_ms=clock.moments[0])
        assert not (tmp_path / "x.db").exists()
        assert (await restore(folder, str(tmp_path / "y.db"))).ok

    asyncio.run(main())


def test_a_time_before_the_first_and_after_the_last_is_refused(tmp_path: Path, folder: Path) -> None:
    path, clock = tmp_path / "penstock.db", Clock()

    async def main() -> None:
        await clock.mark()
        async with await penstock.open(path, events=False) as broker:
            await fill(broker)
        await in_thread(path, folder)
        with pytest.raises(NotFound, match="the oldest backup in"):
            await restore(folder, str(tmp_path / "x.db"), at_ms=clock.moments[0])
        with pytest.raises(NotFound, match="knows the store up to"):
            await restore(folder, str(tmp_path / "x.db"), at_ms=time_ns() // 1_000_000 + 60_000)
        assert not (tmp_path / "x.db").exists()

    asyncio.run(main())


# The copy of the log --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_segments")
def test_the_store_keeps_what_is_not_copied_yet_and_no_longer(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "penstock.db"

    async def churn(broker: Broker, count: int) -> None:
        for _ in range(count):
            await broker.publish("work", Message(os.urandom(9_000)))
            await broker.ack(await broker.claim("work", max=10))

    async def main() -> None:
        log = Segments(Path(f"{path}-log"))
        async with await penstock.open(path, events=False) as broker:
            await broker.declare_queue("work")
            await in_thread(path, folder)
            with log.wanted() as wanted_from:
                with pytest.raises(Unavailable, match="another process copies"), log.wanted():
                    pass
                shipping = Shipping(path, folder)
                shipping.ship()
                wanted_from(shipping.number)
                first = shipping.number
                await churn(broker, 40)
                await broker.stats("work")
                assert shipping.ship() > 300_000
                assert shipping.number > first + 3
                wanted_from(shipping.number)
                assert log.numbers()[0] <= first
                deadline = monotonic() + DEADLINE_S
                while log.numbers()[0] < shipping.number:
                    assert monotonic() < deadline, "what was copied is not given back"
                    await broker.publish("work", Message(b"x"))
                    await broker.ack(await broker.claim("work", max=10))
                    await asyncio.sleep(0.01)
        done = await restore(folder, str(tmp_path / "x.db"))
        assert (done.ok, done.commits > 80) == (True, True)

    asyncio.run(main())


@pytest.mark.usefixtures("small_segments")
def test_it_goes_on_where_it_was_or_behind_a_new_backup(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "penstock.db"

    async def main() -> None:
        async with await penstock.open(path, events=False) as broker:
            await broker.declare_queue("work")
            await broker.publish("work", Message(b"1"))
            async with watched(path, folder) as first:
                await broker.publish("work", Message(b"2"))
            assert len(first) == 1
            await broker.publish("work", Message(b"3"))
            async with watched(path, folder) as second:
                await broker.publish("work", Message(b"4"))
            assert second == []
            done = await restore(folder, str(tmp_path / "four.db"))
            assert done.commits > 0
            assert await payloads(tmp_path / "four.db") == [b"1", b"2", b"3", b"4"]
            for _ in range(40):  # nobody copies, so nothing is kept
                await broker.publish("work", Message(os.urandom(9_000)))
                await broker.ack(await broker.claim("work", max=10))
        async with await penstock.open(path, events=False) as broker:
            await broker.queues()
            with pytest.raises(Gap):
                Shipping(path, folder)
            async with watched(path, folder) as third:
                await broker.publish("work", Message(b"5"))
            assert len(third) == 1
        assert (await restore(folder, str(tmp_path / "five.db"))).ok
        async with await penstock.open(tmp_path / "five.db") as broker:
            assert [one.payload for one in await broker.claim("work")] == [b"5"]

    asyncio.run(main())


def test_new_backups_are_made_while_the_log_is_copied(tmp_path: Path, folder: Path) -> None:
    path, clock = tmp_path / "penstock.db", Clock()

    async def main() -> None:
        async with await penstock.open(path, events=False) as broker:
            await broker.declare_queue("work", retain_ms=3_600_000)
            await in_thread(path, folder)
            deadline = monotonic() + DEADLINE_S
            async with watched(path, folder, full_every_s=0.0) as made:
                while len(made) < 3:
                    assert monotonic() < deadline
                    await broker.publish("work", Message(b"x"))
                    await clock.mark()
        for number in (0, len(clock.moments) // 2, len(clock.moments) - 1):
            await restore(folder, str(tmp_path / f"{number}.db"), at_ms=clock.moments[number])
            assert len(await payloads(tmp_path / f"{number}.db")) == number + 1

    asyncio.run(main())


@pytest.mark.usefixtures("small_segments")
def test_a_gap_in_the_middle_of_the_log_is_seen(tmp_path: Path, folder: Path) -> None:
    """Segments are given back one by one: the one that was copied last may be there, and the next one not."""
    path = tmp_path / "penstock.db"

    async def main() -> None:
        async with await penstock.open(path, events=False) as broker:
            await broker.declare_queue("work", retain_ms=3_600_000)
            await in_thread(path, folder)
            shipping = Shipping(path, folder)
            shipping.ship()
            for _ in range(30):
                await broker.publish("work", Message(os.urandom(9_000)))
        log = Segments(Path(f"{path}-log"))
        assert log.numbers()[-1] > shipping.number + 2
        log.remove(shipping.number + 1)
        with pytest.raises(Gap):
            shipping.ship()
        with pytest.raises(Gap):
            Shipping(path, folder)
        for number in log.numbers()[1:]:  # as if the store were an older one
            log.remove(number)
        (folder / "log" / "0" / "0000000009.log").touch()
        with pytest.raises(InvalidArgument, match="has a later log than"):
            Shipping(path, folder)

    asyncio.run(main())


def test_a_torn_end_of_the_copy_is_passed_over_and_mended(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "penstock.db"

    async def main() -> None:
        async with await penstock.open(path, events=False) as broker:
            await broker.declare_queue("work")
            await in_thread(path, folder)
            async with watched(path, folder):
                await broker.publish("work", Message(b"whole" * 100))
                await broker.publish("work", Message(b"torn" * 100))
            [copy] = (folder / "log" / "0").glob("*.log")
            both = [b"whole" * 100, b"torn" * 100]
            with copy.open("ab") as file:  # the process that copied died in the middle of a record
                file.write(copy.read_bytes()[-200:])
            assert (await restore(folder, str(tmp_path / "x.db"))).ok
            assert await payloads(tmp_path / "x.db") == both
            # What was copied once and is not there any more is damage.
            os.truncate(copy, copy.stat().st_size - 207)
            with pytest.raises(StoreCorrupt, match=r"damaged or missing; what .* has goes up to"):
                await restore(folder, str(tmp_path / "y.db"))
            assert Shipping(path, folder).ship() > 400
            assert (await restore(folder, str(tmp_path / "y.db"))).ok
            assert await payloads(tmp_path / "y.db") == both

    asyncio.run(main())


def test_a_restored_store_goes_on_in_a_line_of_its_own(tmp_path: Path, folder: Path) -> None:
    path, other, clock = tmp_path / "penstock.db", tmp_path / "other.db", Clock()

    async def main() -> None:
        async with await penstock.open(path, events=False) as broker:
            await broker.declare_queue("work")
            await in_thread(path, folder)
            async with watched(path, folder):
                await broker.publish("work", Message(b"kept"))
                await clock.mark()
                await broker.publish("work", Message(b"a mistake"))
                await clock.mark()
        await restore(folder, str(other), at_ms=clock.moments[0])
        async with await penstock.open(other) as broker:
            async with watched(other, folder) as made:
                await broker.publish("work", Message(b"better"))
                await clock.mark()
            assert len(made) == 1
        for number, expected in enumerate(([b"kept"], [b"kept", b"a mistake"], [b"kept", b"better"])):
            target = tmp_path / f"{number}.db"
            assert (await restore(folder, str(target), at_ms=clock.moments[number])).ok
            assert await payloads(target) == expected

    asyncio.run(main())


def test_a_log_that_went_another_way_is_not_mixed_in(path: Path, folder: Path) -> None:
    async def main() -> None:
        await in_thread(path, folder)
        Shipping(path, folder).ship()
        assert is_private(folder)
        [copy] = (folder / "log" / "0").glob("*.log")
        flip(segment_of(path), 70)
        with pytest.raises(InvalidArgument, match="is no copy of what"):
            Shipping(path, folder)
        assert copy.exists()

    asyncio.run(main())


def test_numbers_given_after_the_backup_are_not_given_again(tmp_path: Path, folder: Path) -> None:
    path, target = tmp_path / "penstock.db", tmp_path / "restored.db"

    async def main() -> None:
        async with await penstock.open(path, events=False) as broker:
            await broker.declare_queue("work")
        await in_thread(path, folder)
        store = await open_engine(path)
        given = await store.reserve_ids(1 << 30)
        await store.skip_incarnations(1 << 30)
        await store.close()
        Shipping(path, folder).ship()
        await restore(folder, str(target))
        store = await open_engine(target)
        assert await store.reserve_ids(1) > given + (1 << 30)
        assert (await store.join(Member("x", "", "1", 1))).incarnation > 1 << 30
        await store.close()

    asyncio.run(main())


def test_old_parts_of_the_log_go_with_their_backups(tmp_path: Path, folder: Path, small_segments: None) -> None:
    path = tmp_path / "penstock.db"

    async def main() -> None:
        async with await penstock.open(path, events=False) as broker:
            await broker.declare_queue("work", retain_ms=3_600_000)
            async with watched(path, folder):
                for _ in range(30):
                    await broker.publish("work", Message(os.urandom(9_000)))
        before = Segments(folder / "log" / "0").numbers()
        await in_thread(path, folder, keep=1)
        after = Segments(folder / "log" / "0").numbers()
        assert len(after) < len(before)
        assert (await restore(folder, str(tmp_path / "x.db"))).ok
        assert len(await payloads(tmp_path / "x.db")) == 30

    asyncio.run(main())


def test_a_store_from_before_commits_had_times(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their time is that of the newest message in them, or of the commit before."""
    path, clock = tmp_path / "penstock.db", Clock()
    monkeypatch.setattr("penstock.store.sqlite.coordination.now_ms", lambda: 0)

    async def main() -> None:
        async with await penstock.open(path, events=False) as broker:
            await broker.declare_queue("work")
            await in_thread(path, folder)
            shipping = None
            for number in range(3):
                await clock.mark()
                await broker.publish("work", Message(b"%d" % number))
                await broker.claim("work")
                shipping = shipping or Shipping(path, folder)
                shipping.ship()
        done = await restore(folder, str(tmp_path / "x.db"), at_ms=clock.moments[2])
        assert done.ok
        assert await payloads(tmp_path / "x.db") == [b"0", b"1"]

    asyncio.run(main())


def test_a_record_whose_sync_failed_is_void_in_the_copy_too(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "penstock.db"
    real, failing = log_segments._sync, False

    def sync(file: int) -> None:
        if failing:
            raise OSError(5, "Input/output error")
        real(file)

    monkeypatch.setattr(log_segments, "_sync", sync)

    async def main() -> None:
        nonlocal failing
        async with await penstock.open(path, events=False) as broker:
            await broker.declare_queue("work")
            await in_thread(path, folder)
            shipping = Shipping(path, folder)
            for number in range(3):
                await broker.publish("work", Message(b"%d" % number))
                shipping.ship()
                failing = True
                with pytest.raises(Unavailable, match="Input/output"):
                    await broker.publish("work", Message(b"void"))
                failing = False
                shipping.ship()
        assert (await restore(folder, str(tmp_path / "x.db"))).ok
        assert await payloads(tmp_path / "x.db") == [b"0", b"1", b"2"]

    asyncio.run(main())
