"""Room: segments that nothing is needed of any more are given back."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from penstock.model.rows import LeaseRow
from penstock.store.sqlite import index
from penstock.store.sqlite.engine import SqliteStore
from penstock.store.sqlite.log import segments, space
from tests.conformance.samples import (
    LANE,
    all_batches,
    batches,
    change,
    commit,
    load_one,
    own_all,
)
from tests.conformance.sqlite.log_rig import (
    append,
    bases,
    log_bytes,
    one,
    segments_of,
    use,
)


@pytest.fixture
def little_slack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space, "SLACK_SEGMENTS", 1)
    monkeypatch.setattr(index, "INDEX_ROWS", 50)
    monkeypatch.setattr(index, "INDEX_SECONDS", 0.01)


def test_steady_work_keeps_the_log_short(path: Path, small_segments: int, little_slack: None) -> None:
    async def scenario(store: SqliteStore) -> None:
        epochs = await own_all(store)
        for number in range(400):
            made = one(number, body=bytes(10_000))
            made.lanes[0].trim_to = number - 5
            await append(store, epochs, made)
        await load_one(store)
        assert await all_batches(store) == [
            row for number in range(394, 400) for row in batches(1, base=number, body=bytes(10_000))
        ]
        assert segments_of(path)[-1] > 50
        assert log_bytes(path) < 4 * small_segments

    use(path, scenario)


def test_one_old_message_a_segment_does_not_keep_it(path: Path, small_segments: int, little_slack: None) -> None:
    """Every fiftieth goes to a lane that nobody empties."""
    kept: list[int] = []

    async def scenario(store: SqliteStore) -> None:
        epochs = await own_all(store)
        for number in range(1_000):
            await append(store, epochs, one(number, body=bytes(2_000)))
            if number % 50 == 0:
                kept.append(len(kept))
                await append(store, epochs, one(kept[-1], body=b"%d" % kept[-1] * 100, lane=LANE + 64))
            await store.apply(commit(epochs, change(first=number, end=number + 1, trim_to=number)))
        await load_one(store)
        assert log_bytes(path) < 4 * small_segments
        assert segments_of(path)[-1] > 25
        await check(store)

    async def check(store: SqliteStore) -> None:
        assert [row.body for row in await all_batches(store, LANE + 64)] == [b"%d" % number * 100 for number in kept]

    use(path, scenario, check)


def test_a_stream_keeps_what_its_retention_keeps(path: Path, small_segments: int, little_slack: None) -> None:
    async def scenario(store: SqliteStore) -> None:
        epochs = await own_all(store)
        for number in range(300):
            made = one(number, body=bytes(10_000))
            made.lanes[0].trim_to = max(number - 100, 0)
            await append(store, epochs, made)
            if number % 50 == 0:
                await load_one(store)
                assert log_bytes(path) < 101 * 10_100 + 6 * small_segments
        assert await bases(store) == list(range(199, 300))

    use(path, scenario)


def test_a_deleted_lane_gives_its_room_back(path: Path, small_segments: int, little_slack: None) -> None:
    async def scenario(store: SqliteStore) -> None:
        epochs = await own_all(store)
        await append(store, epochs, *(one(number, body=bytes(10_000)) for number in range(100)))
        await load_one(store)
        assert log_bytes(path) > 1_000_000
        await store.apply(commit(epochs, lanes_deleted=[LANE]))
        await append(store, epochs, one(0, body=bytes(60_000), lane=LANE + 64), one(1, lane=LANE + 64))
        deadline, number = time.monotonic() + 30, 2
        while log_bytes(path) >= 4 * small_segments:  # given back behind the answers
            assert time.monotonic() < deadline
            await append(store, epochs, one(number, lane=LANE + 64))
            number += 1
            await load_one(store, LANE + 64)
        assert await all_batches(store) == []

    use(path, scenario)


def test_a_read_finds_what_was_moved_while_it_looked(
    path: Path, small_segments: int, little_slack: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches whose segment is emptied or deleted under a reader are read from where they are then."""
    monkeypatch.setattr(space, "SLACK_SEGMENTS", 0)

    async def scenario(store: SqliteStore) -> None:
        epochs = await own_all(store)
        await append(store, epochs, one(0, body=b"kept", lane=LANE + 64))
        done = False

        async def read_on() -> int:
            reads = 0
            while not done:
                found = await all_batches(store, LANE + 64)
                assert [row.body for row in found] == [b"kept"]
                await all_batches(store)
                reads += 1
            return reads

        reader = asyncio.ensure_future(read_on())
        for number in range(300):
            made = one(number, body=bytes(10_000))
            made.lanes[0].trim_to = number
            await append(store, epochs, made)
        done = True
        assert await reader > 10
        assert 1 not in segments_of(path)

    use(path, scenario)


def test_a_read_begins_anew_when_a_segment_goes_under_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = segments.Segments.path
    asked: list[int] = []

    def gone_at_first(self: segments.Segments, number: int) -> Path:
        asked.append(number)
        return Path("no such segment") if len(asked) == 1 else real(self, number)

    async def scenario(store: SqliteStore) -> None:
        await append(store, await own_all(store), one(0))
        monkeypatch.setattr(segments.Segments, "path", gone_at_first)
        assert [row.body for row in await all_batches(store)] == [b"body"]
        assert len(asked) == 2
        monkeypatch.setattr(segments.Segments, "path", lambda *_: Path("no such segment"))
        [row] = await all_batches(store)
        assert (row.body, row.is_intact) == (b"", False)
        assert store.body_problem(LANE, 0) == "cannot be read: its file is missing"
        monkeypatch.setattr(segments.Segments, "path", real)

    use(path, scenario)


def test_what_is_put_and_gone_before_the_tables_are_written_never_reaches_them(path: Path, lazy: None) -> None:
    async def scenario(store: SqliteStore) -> None:
        epochs = await own_all(store)
        await append(store, epochs, one(0), one(1))
        await store.apply(commit(epochs, change(end=2, leases=[LeaseRow(1, 1, 0, "", b"")])))
        await store.apply(commit(epochs, change(end=2, leases_deleted=[(1, 1)], trim_to=1, first=1)))
        written: list[str] = []
        for connection in store._writer._idle:
            connection.set_trace_callback(written.append)
        assert await bases(store) == [1]
        puts = [text for text in written if text.lstrip().startswith(("INSERT INTO batches", "REPLACE INTO leases"))]
        assert len(puts) == 1
        assert "batches" in puts[0]

    use(path, scenario)


def test_a_segment_goes_when_the_tables_that_do_without_it_are_on_the_disk(
    path: Path, small_segments: int, little_slack: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    real = segments.Segments.remove

    def remove(self: segments.Segments, number: int) -> None:
        seen.append("gone")
        real(self, number)

    monkeypatch.setattr(segments.Segments, "remove", remove)

    async def scenario(store: SqliteStore) -> None:
        epochs = await own_all(store)
        for connection in store._writer._idle:
            connection.set_trace_callback(seen.append)
        for number in range(40):
            made = one(number, body=bytes(10_000))
            made.lanes[0].trim_to = number
            await append(store, epochs, made)
        await load_one(store)
        assert "gone" in seen
        settled = [word for word in seen if word in ("COMMIT", "gone") or word.startswith("PRAGMA synchronous")]
        before = settled[: settled.index("gone")]
        # The last commit before it was a durable one, and wrote something.
        assert before[-3:] == ["PRAGMA synchronous = FULL", "COMMIT", "PRAGMA synchronous = NORMAL"]
        assert any("syncs = syncs + 1" in word for word in seen[: seen.index("gone")])

    use(path, scenario)
