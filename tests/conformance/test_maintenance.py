"""What the tools for operators ask of every engine: walking over everything, and beginning behind another store."""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock import Message, encode
from penstock.model.rows import BatchRow, Commit, DedupRow, Member, TraceRow
from penstock.store.contract import FullStore
from tests.conformance.engines import Engine
from tests.conformance.samples import LANE, batches, change, commit, own_all


def test_lanes_are_listed_in_pages_and_deleted_ones_are_not(engine: Engine, tmp_path: Path) -> None:
    async def scenario(store: FullStore) -> None:
        epochs = await own_all(store)
        for lane in (LANE + 128, LANE, LANE + 64):
            await store.apply(commit(epochs, change(lane, batches=batches(2))))
        assert await store.list_lanes(-1, 100) == [LANE, LANE + 64, LANE + 128]
        assert await store.list_lanes(-1, 2) == [LANE, LANE + 64]
        assert await store.list_lanes(LANE + 64, 2) == [LANE + 128]
        await store.apply(commit(epochs, lanes_deleted=[LANE + 64]))
        assert await store.list_lanes(-1, 100) == [LANE, LANE + 128]

    engine.run(tmp_path, scenario)


def test_ids_are_listed_by_their_bytes(engine: Engine, tmp_path: Path) -> None:
    rows = [DedupRow(key, number, 1000 - number) for number, key in enumerate((b"", b"\x00", b"a", b"a\x00", b"\xff"))]

    async def scenario(store: FullStore) -> None:
        epochs = await own_all(store)
        await store.apply(commit(epochs, change(batches=batches(5), dedup=rows[::-1])))
        await store.apply(commit(epochs, change(LANE + 64, batches=batches(1), dedup=[DedupRow(b"b", 0, 1)])))
        assert await store.list_dedup(LANE, None, 100) == rows
        assert await store.list_dedup(LANE, None, 2) == rows[:2]
        assert await store.list_dedup(LANE, b"\x00", 2) == rows[2:4]
        assert await store.list_dedup(LANE, b"\xff", 2) == []
        assert await store.list_dedup(LANE, None, 100, 3) == rows[3:]
        assert await store.list_dedup(LANE, b"a\x00", 100, 3) == rows[4:]
        await store.apply(commit(epochs, lanes_deleted=[LANE]))
        assert await store.list_dedup(LANE, None, 100) == []

    engine.run(tmp_path, scenario)


def test_traces_are_listed_by_time_and_those_of_one_time_together(engine: Engine, tmp_path: Path) -> None:
    rows = [TraceRow("default", f"t{number}", 100 + number // 3, number, "event") for number in range(7)]

    def in_order(found: list[TraceRow]) -> list[TraceRow]:
        return sorted(found, key=lambda row: row.id)

    async def scenario(store: FullStore) -> None:
        epochs = await own_all(store)
        await store.apply(Commit(epochs={0: epochs[0]}, traces=rows))
        assert in_order(await store.list_traces(-1, 2)) == rows[:3]
        assert in_order(await store.list_traces(-1, 4)) == rows[:6]
        assert in_order(await store.list_traces(100, 100)) == rows[3:]
        assert await store.list_traces(102, 100) == []

    engine.run(tmp_path, scenario)


def test_batches_are_checked_in_pages(engine: Engine, tmp_path: Path) -> None:
    whole = encode([Message(b"0" * 100)])
    rows = [BatchRow(number, 1, 7, 100 * (number + 1), whole.meta, whole.body) for number in range(4)]
    rows[1] = msgspec.structs.replace(rows[1], body=whole.body[:-1] + b"x")
    rows[2] = msgspec.structs.replace(rows[2], meta=whole.meta[:-1] + b"x")

    async def scenario(store: FullStore) -> None:
        epochs = await own_all(store)
        assert await store.check(LANE, 0, 1 << 20) == []
        await store.apply(commit(epochs, change(batches=rows)))
        found = await store.check(LANE, 0, 1 << 20)
        assert [(one.base, one.end, one.is_intact) for one in found] == [
            (0, 1, True), (1, 2, False), (2, 3, False), (3, 4, True),
        ]  # fmt: skip
        assert [(one.size, one.published_ms) for one in found] == [(row.size, 7) for row in rows]
        assert [one.base for one in await store.check(LANE, 1, rows[1].size + rows[2].size)] == [1, 2]
        assert [one.base for one in await store.check(LANE, 3, 1)] == [3]
        assert await store.check(LANE, 4, 1) == []

    engine.run(tmp_path, scenario)


def test_incarnations_can_be_skipped_and_never_fall(engine: Engine, tmp_path: Path) -> None:
    async def scenario(store: FullStore) -> None:
        member = Member("one", "", "1", 1000)
        await store.skip_incarnations(500)
        assert (await store.join(member)).incarnation == 501
        await store.skip_incarnations(7)
        assert (await store.join(member)).incarnation == 502

    engine.run(tmp_path, scenario)
