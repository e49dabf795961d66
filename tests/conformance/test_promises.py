"""One test or more for each numbered promise of `store/contract.py`, for every engine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from penstock.model.errors import Closed, Fenced, InvalidArgument
from penstock.model.rows import (
    DEDUP_KEY_BYTES_MAX,
    BatchRow,
    CatalogRow,
    Commit,
    DeadRow,
    DedupRow,
    GroupRow,
    LaneImage,
    LeaseRow,
    OutboxRow,
    TraceRow,
    WaitingRow,
    slot_of,
)
from penstock.store.contract import Store
from tests.conformance.engines import Engine
from tests.conformance.samples import (
    CATALOG,
    EVERYTHING,
    LANE,
    OUTBOX,
    TRACES,
    all_batches,
    batches,
    change,
    commit,
    full_change,
    image_of,
    lanes_together,
    load_one,
    own_all,
)

NAMES = [
    "",
    " padded ",
    "ÄÖ → ünï",
    "🐇📮",
    'it\'s "quoted"; DROP TABLE batches --',
    "line\nbreak\ttab",
    "e\u0301 ≠ é",
    "A a",
]
BLOBS = [b"", b"\x00", b"\xff\xfe\x00not text", bytes(range(256)) * 40, b"x" * 300_000]


# 1. Atomic -----------------------------------------------------------------------------------------------


def test_a_refused_commit_changes_nothing(engine: Engine, tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        epochs = await own_all(store)
        _, other = lanes_together(store, 2)
        await store.apply(commit(epochs, full_change()))
        stale = commit(epochs, change(batches=batches(1, base=7), first=7, end=8, trim_to=7), full_change(other))
        stale.epochs[slot_of(other)] += 1
        stale.catalog, stale.outbox, stale.lanes_deleted, stale.traces = CATALOG, OUTBOX, [], TRACES
        with pytest.raises(Fenced):
            await store.apply(stale)
        assert await load_one(store) == image_of(full_change())
        assert await load_one(store, other) == LaneImage(other)
        assert await all_batches(store) == batches(3, 4)
        assert await store.catalog() == []
        assert await store.outbox(0, 10) == []
        assert await store.oldest_trace() is None

    engine.run(tmp_path, scenario)


def test_a_commit_over_many_lanes_comes_into_force_as_one(engine: Engine, tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        epochs, lanes = await own_all(store), lanes_together(store, 200)
        for end in (1, 2, 3):
            rows = batches(1, base=end - 1)
            write = asyncio.ensure_future(
                store.apply(
                    commit(
                        epochs, *(change(lane, batches=rows, first=0, groups=[GroupRow(1, end, 0)]) for lane in lanes)
                    )
                )
            )
            while not write.done():
                images = await store.load(lanes, 0)
                assert len({(image.end, tuple(row.next for row in image.groups)) for image in images}) == 1
                await asyncio.sleep(0)
            await write
        assert {image.end for image in await store.load(lanes, 0)} == {3}

    engine.run(tmp_path, scenario)


def test_a_commit_may_hold_lanes_and_groups_that_are_there_and_ones_that_are_not(
    engine: Engine, tmp_path: Path
) -> None:
    async def scenario(store: Store) -> None:
        epochs = await own_all(store)
        await store.apply(commit(epochs, change(batches=batches(2), groups=[GroupRow(1, 1, 0)])))
        old = change(batches=batches(2, base=2), first=0, groups=[GroupRow(1, 4, 1), GroupRow(2, 3, 2)])
        lanes = lanes_together(store, 2)
        new = change(lanes[1], batches=batches(5), groups=[GroupRow(3, 5, 4)])
        await store.apply(commit(epochs, old, new))
        first, second = await store.load(lanes, 0)
        assert (first.end, first.groups) == (4, [GroupRow(1, 4, 1), GroupRow(2, 3, 2)])
        assert (second.end, second.groups) == (5, [GroupRow(3, 5, 4)])

    engine.run(tmp_path, scenario)


# 2. Durable ----------------------------------------------------------------------------------------------


def test_everything_is_there_after_a_reopen(durable_engine: Engine, tmp_path: Path) -> None:
    async def write(store: Store) -> None:
        epochs = await own_all(store)
        rest = {"catalog": CATALOG, "outbox": OUTBOX, "traces": TRACES}
        await store.apply(commit(epochs, full_change(), full_change(LANE + 64), **rest))

    async def check(store: Store) -> None:
        assert await load_one(store) == image_of(full_change())
        assert await load_one(store, LANE + 64) == image_of(full_change(LANE + 64))
        assert await all_batches(store) == batches(3, 4)
        assert await store.catalog() == CATALOG
        assert await store.outbox(0, 10) == OUTBOX
        assert await store.find_trace("default", "t", 10) == TRACES

    durable_engine.run(tmp_path, write, check, check)


def test_epochs_go_on_rising_after_a_reopen(durable_engine: Engine, tmp_path: Path) -> None:
    seen: list[dict[int, int]] = []

    async def take(store: Store) -> None:
        seen.append(await store.acquire([3], "me"))

    durable_engine.run(tmp_path, take, take)
    assert seen[1][3] > seen[0][3]


# 3. Fenced -----------------------------------------------------------------------------------------------


def test_acquire_raises_the_epochs_of_just_those_slots(engine: Engine, tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        first = await store.acquire([1, 2, 3], "one")
        second = await store.acquire([2, 2, 4], "two")
        assert set(first) == {1, 2, 3}
        assert set(second) == {2, 4}
        assert second[2] > first[2]
        for epochs, slot in ((first, 1), (first, 3), (second, 2), (second, 4)):
            await store.apply(commit(epochs, change(slot)))
        with pytest.raises(Fenced, match=r"slot 2 .*two"):
            await store.apply(commit(first, change(2)))

    engine.run(tmp_path, scenario)


def test_an_epoch_from_the_future_and_a_slot_never_taken_are_fenced(engine: Engine, tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        epochs = await store.acquire([5], "me")
        both = [{**epochs, 6: 0}] if store.capabilities.spans_slots else []
        for wrong in ({5: epochs[5] + 1}, {5: 0}, {6: 0}, {6: 1}, *both):
            with pytest.raises(Fenced):
                await store.apply(Commit(epochs=wrong, outbox=OUTBOX))
        assert await store.outbox(0, 10) == []

    engine.run(tmp_path, scenario)


def test_a_lane_whose_slot_is_not_named_is_refused(engine: Engine, tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        epochs = await own_all(store)
        await store.apply(commit(epochs, full_change()))
        for unfenced in (Commit(lanes=[change(LANE, end=99)]), Commit(lanes_deleted=[LANE])):
            with pytest.raises(InvalidArgument, match=f"lane {LANE}"):
                await store.apply(unfenced)
        with pytest.raises(InvalidArgument, match="two changes"):
            await store.apply(commit(epochs, change(LANE, end=8), change(LANE, end=9)))
        assert await load_one(store) == image_of(full_change())

    engine.run(tmp_path, scenario)


# 4. Visible ----------------------------------------------------------------------------------------------


def test_every_read_sees_the_last_commit(engine: Engine, tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        epochs = await own_all(store)
        for number in range(40):
            row = batches(1, base=number, start_ms=1000 + number)
            dedup = [DedupRow(str(number).encode(), number, number)]
            await store.apply(
                commit(
                    epochs,
                    change(batches=row, dedup=dedup, groups=[GroupRow(1, number, 0)]),
                    outbox=[OutboxRow(number + 1, 0, 0, b"")],
                )
            )
            image, found, newest, known, promised = await asyncio.gather(
                load_one(store),
                store.read(LANE, number, number + 1, EVERYTHING),
                store.find_time(LANE, 1000 + number),
                store.find_dedup(LANE, [str(number).encode()]),
                store.outbox(number, 10),
            )
            assert (image.end, image.groups) == (number + 1, [GroupRow(1, number, 0)])
            assert (found, newest, known) == (row, number, dedup)
            assert [row.id for row in promised] == [number + 1]

    engine.run(tmp_path, scenario)


def test_reads_are_answered_while_a_commit_is_under_way(engine: Engine, tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        epochs = await own_all(store)
        await store.apply(commit(epochs, full_change()))

        async def write() -> None:
            for lane in range(20, 40):
                await store.apply(commit(epochs, change(lane, batches=batches(1, body=BLOBS[-1]))))

        writing = asyncio.ensure_future(write())
        reads = [asyncio.ensure_future(load_one(store)) for _ in range(100)]
        assert all(image == image_of(full_change()) for image in await asyncio.gather(*reads))
        await writing

    engine.run(tmp_path, scenario)


# 6. As they were put ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_names_come_back_as_they_were_put(engine: Engine, tmp_path: Path, name: str) -> None:
    lease = LeaseRow(1, 1, 1, name, b"", name)
    dead = DeadRow(1, 0, 1, 1, name, name, name, 1)
    declared = CatalogRow(name, 1, 0, name, name, b"")
    happened = TraceRow(name, name, 1, 1, name, name, 1, 0, 0, name, name, name)

    async def scenario(store: Store) -> None:
        epochs = await own_all(store, owner=name)
        await store.apply(commit(epochs, change(leases=[lease], dead=[dead]), catalog=[declared], traces=[happened]))
        image = await load_one(store)
        assert (image.leases, image.dead) == ([lease], [dead])
        assert await store.catalog() == [declared]
        assert await store.find_trace(name, name, 10) == [happened]
        await store.apply(commit(epochs, catalog_deleted=[(name, 1)]))
        assert await store.catalog() == []

    engine.run(tmp_path, scenario)


def test_a_large_body_comes_back_as_it_was_put(engine: Engine, tmp_path: Path) -> None:
    body = os.urandom(1 << 20) * 70  # past every limit of a packet or a segment

    async def put(store: Store) -> None:
        await store.apply(commit(await own_all(store), change(batches=batches(1, body=body), end=1)))
        [row] = await store.read(LANE, 0, 1, 0)
        assert row.body == body

    engine.run(tmp_path, put)


def test_bytes_come_back_as_they_were_put(engine: Engine, tmp_path: Path) -> None:
    rows = [
        BatchRow(index, 1, 0, 0, meta, body)
        for index, (meta, body) in enumerate((meta, body) for meta in BLOBS for body in BLOBS)
    ]
    keys = [blob[:DEDUP_KEY_BYTES_MAX] for blob in BLOBS]
    dedup = [DedupRow(key, index, index) for index, key in enumerate(keys)]
    waiting = [WaitingRow(1, index, blob) for index, blob in enumerate(BLOBS)]
    leases = [LeaseRow(1, index, 0, "", blob) for index, blob in enumerate(BLOBS)]
    outbox = [OutboxRow(index + 1, LANE, 0, blob) for index, blob in enumerate(BLOBS)]

    async def scenario(store: Store) -> None:
        epochs = await own_all(store)
        await store.apply(
            commit(epochs, change(batches=rows, dedup=dedup, waiting=waiting, leases=leases), outbox=outbox)
        )
        image = await load_one(store)
        assert (image.dedup, image.waiting, image.leases) == (dedup, waiting, leases)
        assert await all_batches(store) == rows
        assert await store.heads(LANE, 0, 1000, EVERYTHING) == [row.head() for row in rows]
        assert await store.outbox(0, 100) == outbox
        found = await store.find_dedup(LANE, [*keys, b"absent"])
        assert sorted(found, key=lambda row: row.offset) == dedup

    engine.run(tmp_path, scenario)


def test_offsets_and_times_near_the_end_of_their_range(engine: Engine, tmp_path: Path) -> None:
    far = (1 << 62) - 10
    lane = (1 << 62) + LANE
    rows = batches(4, 5, base=far, start_ms=far)
    group = GroupRow(far, far, far)
    dead = DeadRow(far, far, far + 1, far, "", "", "", far)
    leases, waiting = [LeaseRow(far, far, far, "", b"")], [WaitingRow(far, far, b"")]
    dedup = [DedupRow(b"k", far, far)]
    happened = TraceRow("", "", far, far, "", None, far, 0, far)

    async def scenario(store: Store) -> None:
        epochs = await own_all(store)
        everything = change(
            lane, batches=rows, groups=[group], leases=leases, waiting=waiting, dead=[dead], dedup=dedup, bytes_end=far
        )
        await store.apply(commit(epochs, everything, traces=[happened]))
        assert await load_one(store, lane) == image_of(everything)
        assert await store.find_trace("", "", 1) == [happened]
        assert await store.read(lane, far + 5, 1 << 62, EVERYTHING) == rows[1:]
        assert await store.heads(lane, far + 3, 10, EVERYTHING) == [row.head() for row in rows]
        assert await store.find_time(lane, far + 1) == far + 4
        assert await store.lanes_in_use() == [lane]
        await store.apply(commit(epochs, change(lane, trim_to=far + 4)))
        assert await store.read(lane, 0, 1 << 62, EVERYTHING) == rows[1:]

    engine.run(tmp_path, scenario)


# What apply does to rows -----------------------------------------------------------------------------------


def test_a_put_replaces_the_row_of_its_key(engine: Engine, tmp_path: Path) -> None:
    newer = change(
        first=1,
        end=9,
        bytes_end=77,
        groups=[GroupRow(1, 9, 9), GroupRow(2, 8, 8)],
        leases=[LeaseRow(1, 10, 1, "c", b"n1"), LeaseRow(2, 10, 2, "c", b"n2")],
        waiting=[WaitingRow(1, 0, b"n1"), WaitingRow(2, 0, b"n2")],
        dead=[DeadRow(1, 2, 9, 1, "n", "n", "n", 1), DeadRow(2, 2, 9, 1, "n", "n", "n", 1)],
        dedup=[DedupRow(b"a", 5, 4000), DedupRow(b"b", 6, 5000)],
    )
    replaced = [msgspec.structs.replace(row, name="renamed", document=b"new") for row in CATALOG]

    async def scenario(store: Store) -> None:
        epochs = await own_all(store)
        await store.apply(commit(epochs, full_change(), catalog=CATALOG, outbox=OUTBOX))
        await store.apply(commit(epochs, newer, catalog=replaced, outbox=[OutboxRow(1, 9, 9, b"new")]))
        expected = image_of(newer)
        expected.published_ms = full_change().batches[-1].published_ms  # the log is as it was
        assert await load_one(store) == expected
        assert await store.catalog() == replaced
        assert (await store.outbox(0, 1)) == [OutboxRow(1, 9, 9, b"new")]
        # The old expiry of a replaced id no longer counts.
        await store.apply(commit(epochs, msgspec.structs.replace(newer, dedup=[], dedup_expired_ms=3000)))
        assert (await load_one(store)).dedup == newer.dedup

    engine.run(tmp_path, scenario)


def test_the_same_batch_put_twice_is_there_once(engine: Engine, tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        epochs = await own_all(store)
        again = commit(epochs, full_change())
        await store.apply(again)
        await store.apply(again)
        assert await all_batches(store) == batches(3, 4)
        assert await load_one(store) == image_of(full_change())

    engine.run(tmp_path, scenario)


def test_deletes_of_absent_rows_are_fine(engine: Engine, tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        epochs = await own_all(store)
        nothing = change(
            groups_deleted=[9],
            leases_deleted=[(9, 9)],
            waiting_deleted=[(9, 9)],
            dead_deleted=[(9, 9)],
            trim_to=9,
            dedup_expired_ms=9,
        )
        await store.apply(
            commit(epochs, nothing, lanes_deleted=[LANE + 64], catalog_deleted=[("x", 9)], outbox_deleted=[9])
        )
        assert await load_one(store) == LaneImage(LANE)

    engine.run(tmp_path, scenario)


def test_single_rows_are_deleted_and_their_neighbours_stay(engine: Engine, tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        epochs = await own_all(store)
        await store.apply(commit(epochs, full_change(), full_change(LANE + 64), catalog=CATALOG, outbox=OUTBOX))
        less = change(leases_deleted=[(1, 10)], waiting_deleted=[(2, 0)], dead_deleted=[(1, 2)])
        await store.apply(commit(epochs, less, catalog_deleted=[("queue", 1), ("queue", 2)], outbox_deleted=[2]))
        image, full = await load_one(store), full_change()
        assert (image.leases, image.waiting, image.dead) == (full.leases[1:], full.waiting[:1], full.dead[1:])
        assert (image.groups, image.dedup) == (full.groups, full.dedup)
        assert await load_one(store, LANE + 64) == image_of(full_change(LANE + 64))
        assert await store.catalog() == CATALOG[1:]
        assert await store.outbox(0, 10) == [OUTBOX[0], OUTBOX[2]]

    engine.run(tmp_path, scenario)


def test_deletes_come_before_puts_in_one_commit(engine: Engine, tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        epochs = await own_all(store)
        await store.apply(commit(epochs, full_change(), catalog=CATALOG, outbox=OUTBOX))
        both = msgspec.structs.replace(
            full_change(),
            groups_deleted=[1, 2],
            leases_deleted=[(1, 10), (2, 10)],
            waiting_deleted=[(1, 0)],
            dead_deleted=[(2, 2)],
            dedup_expired_ms=EVERYTHING,
        )
        deleted = {"catalog_deleted": [("queue", 1), ("group", 2)], "outbox_deleted": [1, 2, 5]}
        await store.apply(commit(epochs, both, lanes_deleted=[LANE], catalog=CATALOG, outbox=OUTBOX, **deleted))
        assert await load_one(store) == image_of(full_change())
        assert await all_batches(store) == batches(3, 4)
        assert await store.catalog() == CATALOG
        assert await store.outbox(0, 10) == OUTBOX

    engine.run(tmp_path, scenario)


def test_a_deleted_group_leaves_no_row(engine: Engine, tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        epochs, full = await own_all(store), full_change()
        await store.apply(commit(epochs, full, full_change(LANE + 64)))
        await store.apply(commit(epochs, change(groups_deleted=[1])))
        image = await load_one(store)
        assert (image.groups, image.leases) == (full.groups[1:], full.leases[1:])
        assert (image.waiting, image.dead) == (full.waiting[1:], full.dead[1:])
        assert await load_one(store, LANE + 64) == image_of(full_change(LANE + 64))

    engine.run(tmp_path, scenario)


def test_a_deleted_lane_leaves_no_row(engine: Engine, tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        epochs = await own_all(store)
        await store.apply(commit(epochs, full_change(), full_change(LANE + 64)))
        await store.apply(commit(epochs, lanes_deleted=[LANE]))
        assert await load_one(store) == LaneImage(LANE)
        assert await all_batches(store) == []
        assert await store.find_dedup(LANE, [b"a", b"b"]) == []
        assert await store.find_time(LANE, 0) is None
        assert await store.lanes_in_use() == [LANE + 64]
        assert await load_one(store, LANE + 64) == image_of(full_change(LANE + 64))

    engine.run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("offset", "left"), [(0, 4), (1, 4), (3, 3), (4, 3), (7, 2), (11, 1), (12, 1), (13, 0), (99, 0)]
)
def test_trim_takes_whole_batches_only(engine: Engine, tmp_path: Path, offset: int, left: int) -> None:
    rows = batches(3, 4, 4, 2)

    async def scenario(store: Store) -> None:
        epochs = await own_all(store)
        await store.apply(commit(epochs, change(batches=rows), change(LANE + 64, batches=rows)))
        await store.apply(commit(epochs, change(first=offset, end=13, trim_to=offset)))
        assert await all_batches(store) == rows[4 - left :]
        assert await all_batches(store, LANE + 64) == rows

    engine.run(tmp_path, scenario)


def test_trim_comes_after_the_commits_own_batches(engine: Engine, tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        epochs = await own_all(store)
        await store.apply(commit(epochs, change(batches=batches(3, 4), trim_to=3)))
        assert await all_batches(store) == batches(3, 4)[1:]

    engine.run(tmp_path, scenario)


def test_a_commit_changed_after_apply_changes_nothing(engine: Engine, tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        written = commit(await own_all(store), full_change())
        await store.apply(written)
        lane = written.lanes[0]
        for rows in (lane.batches, lane.groups, lane.leases, lane.waiting, lane.dead, lane.dedup):
            rows.clear()
        lane.end = 0
        written.epochs.clear()
        image = await load_one(store)
        image.leases.clear()
        (await store.load([LANE], 10))[0].groups.clear()
        assert await load_one(store) == image_of(full_change())
        assert await all_batches(store) == batches(3, 4)

    engine.run(tmp_path, scenario)


# What reads return -------------------------------------------------------------------------------------------


def test_load_keeps_the_order_asked_for_and_takes_any_number_of_lanes(engine: Engine, tmp_path: Path) -> None:
    lanes = [7, 1 << 50, 3, *range(10_000, 50_000), 5]

    async def scenario(store: Store) -> None:
        epochs = await own_all(store)
        for lane in (5, 7, 49_999):
            await store.apply(commit(epochs, full_change(lane)))
        images = await store.load(lanes, 10)
        assert [image.lane for image in images] == lanes
        written = [image for image in images if image != LaneImage(image.lane)]
        assert written == [image_of(full_change(lane)) for lane in (7, 49_999, 5)]
        assert await store.load([], 10) == []

    engine.run(tmp_path, scenario)


@pytest.mark.parametrize("most", [0, 1, 2, 4, 5, 6])
def test_load_returns_the_newest_ids_by_rising_expiry(engine: Engine, tmp_path: Path, most: int) -> None:
    rows = [
        DedupRow(key, offset, expires)
        for offset, (key, expires) in enumerate([(b"e", 10), (b"d", 30), (b"c", 20), (b"b", 50), (b"a", 40)])
    ]

    async def scenario(store: Store) -> None:
        await store.apply(commit(await own_all(store), change(dedup=rows)))
        (image,) = await store.load([LANE], most)
        assert image.dedup == sorted(rows, key=lambda row: row.expires_ms)[max(0, 5 - most) :]
        assert image.dedup_complete == (most >= 5)

    engine.run(tmp_path, scenario)


def test_ids_go_when_they_expire_at_or_before_the_time(engine: Engine, tmp_path: Path) -> None:
    rows = [DedupRow(bytes([expires]), 0, expires) for expires in (1, 2, 3)]

    async def scenario(store: Store) -> None:
        epochs = await own_all(store)
        await store.apply(commit(epochs, change(dedup=rows), change(LANE + 64, dedup=rows)))
        await store.apply(commit(epochs, change(dedup_expired_ms=2)))
        assert (await load_one(store)).dedup == rows[2:]
        assert (await load_one(store, LANE + 64)).dedup == rows
        assert await store.find_dedup(LANE, [row.key for row in rows]) == rows[2:]

    engine.run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ((0, 13, 100), [0, 3, 7, 11]),
        ((0, 13, 0), [0]),
        ((0, 13, 19), [0]),
        ((0, 13, 20), [0, 3]),
        ((2, 3, 100), [0]),
        ((2, 4, 100), [0, 3]),
        ((3, 7, 100), [3]),
        ((12, 99, 0), [11]),
        ((13, 99, 100), []),
        ((5, 5, 100), []),
        ((9, 2, 100), []),
    ],
)
def test_read_returns_what_overlaps(
    engine: Engine, tmp_path: Path, asked: tuple[int, int, int], expected: list[int]
) -> None:
    rows = batches(3, 4, 4, 2, meta=b"12345", body=b"12345")

    async def scenario(store: Store) -> None:
        await store.apply(commit(await own_all(store), change(batches=rows), change(LANE + 64, batches=rows)))
        assert await store.read(LANE, *asked) == [row for row in rows if row.base in expected]

    engine.run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ((0, 10, 100), [0, 3, 7, 11]),
        ((0, 2, 100), [0, 3]),
        ((0, 0, 0), [0]),
        ((0, 10, 9), [0]),
        ((0, 10, 10), [0, 3]),
        ((3, 10, 100), [3, 7, 11]),
        ((6, 1, 100), [3]),
        ((12, 10, 0), [11]),
        ((13, 10, 100), []),
    ],
)
def test_heads_stop_at_the_limits_of_number_and_meta(
    engine: Engine, tmp_path: Path, asked: tuple[int, int, int], expected: list[int]
) -> None:
    rows = batches(3, 4, 4, 2, meta=b"12345", body=b"a body that does not count")

    async def scenario(store: Store) -> None:
        await store.apply(commit(await own_all(store), change(batches=rows), change(LANE + 64, batches=rows)))
        found = await store.heads(LANE, *asked)
        assert found == [row.head() for row in rows if row.base in expected]

    engine.run(tmp_path, scenario)


@pytest.mark.parametrize("count", [1, 3])
def test_find_time_is_the_first_batch_at_or_after_it(engine: Engine, tmp_path: Path, count: int) -> None:
    times = [10, 10, 12, 20, 20, 20, 30, 31, 32]
    rows = [BatchRow(5 + count * index, count, time, 0, b"", b"") for index, time in enumerate(times)]

    async def scenario(store: Store) -> None:
        await store.apply(commit(await own_all(store), change(batches=rows)))
        for time in range(5, 35):
            expected = next((row.base for row in rows if row.published_ms >= time), None)
            assert await store.find_time(LANE, time) == expected
        assert await store.find_time(LANE + 64, 0) is None

    engine.run(tmp_path, scenario)


def test_outbox_pages_by_rising_id(engine: Engine, tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        await store.apply(commit(await own_all(store), outbox=OUTBOX[::-1]))
        assert await store.outbox(0, 2) == OUTBOX[:2]
        assert await store.outbox(2, 2) == OUTBOX[2:]
        assert await store.outbox(0, 0) == []
        assert await store.outbox(5, 10) == []

    engine.run(tmp_path, scenario)


def test_a_trace_comes_by_rising_time_and_loses_nothing_of_one_time(engine: Engine, tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        epochs = await own_all(store)
        others = [msgspec.structs.replace(TRACES[0], **{field: "T"}) for field in ("namespace", "trace_id")]
        await store.apply(commit(epochs, traces=[*TRACES[::-1], *others]))
        assert await store.find_trace("default", "t", 10) == TRACES
        assert await store.find_trace("default", "t", 2) == TRACES[:2]
        assert await store.find_trace("default", "t", 0) == []
        assert await store.find_trace("default", "", 10) == []
        assert await store.find_trace("T", "t", 10) == others[:1]
        newer = msgspec.structs.replace(TRACES[1], detail="again")
        await store.apply(commit(epochs, traces=[newer]))
        assert await store.find_trace("default", "t", 10) == [TRACES[0], newer, TRACES[2]]

    engine.run(tmp_path, scenario)


def test_trace_rows_of_a_time_and_older_go_together(engine: Engine, tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        epochs = await own_all(store)
        assert await store.oldest_trace() is None
        await store.apply(commit(epochs, traces_expired_ms=1000))
        await store.apply(commit(epochs, traces=TRACES))
        await store.apply(commit(epochs, traces=TRACES[:1]))
        await store.apply(commit(epochs, traces_expired_ms=99))
        assert await store.oldest_trace() == 100
        assert await store.find_trace("default", "t", 10) == TRACES
        await store.apply(commit(epochs, traces=TRACES[:1], traces_expired_ms=100))
        assert await store.find_trace("default", "t", 10) == [TRACES[0], TRACES[2]]
        await store.apply(commit(epochs, traces_expired_ms=100))
        assert await store.oldest_trace() == 105
        await store.apply(commit(epochs, traces_expired_ms=105))
        assert await store.oldest_trace() is None

    engine.run(tmp_path, scenario)


def test_the_catalog_comes_by_rising_id(engine: Engine, tmp_path: Path) -> None:
    rows = [CatalogRow(kind, number, 0, "", "", b"") for number, kind in ((1, "z"), (2, "a"), (3, "m"), (1 << 60, "a"))]

    async def scenario(store: Store) -> None:
        await store.apply(commit(await own_all(store), catalog=rows[::-1]))
        assert await store.catalog() == rows
        await store.apply(Commit(catalog=[CatalogRow("other", 2, 0, "", "", b"")], catalog_deleted=[("z", 1)]))
        assert [row.id for row in await store.catalog()] == [2, 2, 3, 1 << 60]

    engine.run(tmp_path, scenario)


def test_lanes_in_use_are_those_with_leases_or_waiting_rows(engine: Engine, tmp_path: Path) -> None:
    lease, waiting = LeaseRow(1, 1, 1, "", b""), WaitingRow(1, 0, b"")

    async def scenario(store: Store) -> None:
        epochs = await own_all(store)
        leased, waits, idle, both = lanes_together(store, 4)
        assert await store.lanes_in_use() == []
        await store.apply(
            commit(
                epochs,
                change(leased, leases=[lease]),
                change(waits, waiting=[waiting]),
                change(idle, batches=batches(1)),
                change(both, leases=[lease], waiting=[waiting]),
            )
        )
        assert sorted(await store.lanes_in_use()) == [leased, waits, both]
        await store.apply(commit(epochs, *(change(lane, leases_deleted=[(1, 1)]) for lane in (leased, both))))
        assert sorted(await store.lanes_in_use()) == [waits, both]

    engine.run(tmp_path, scenario)


# Closing ---------------------------------------------------------------------------------------------------


def test_a_closed_store_says_so(engine: Engine, tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        await store.close()
        await store.close()
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: store.acquire([1], "me"),
            lambda: store.apply(Commit()),
            lambda: store.load([1], 1),
            lambda: store.read(1, 0, 1, 1),
            lambda: store.heads(1, 0, 1, 1),
            lambda: store.find_time(1, 0),
            lambda: store.find_dedup(1, [b""]),
            lambda: store.catalog(),
            lambda: store.outbox(0, 1),
            lambda: store.find_trace("", "", 1),
            lambda: store.oldest_trace(),
            lambda: store.lanes_in_use(),
        ]
        if (enqueueing := store.enqueueing) is not None:
            calls += [
                lambda: enqueueing.watch(lambda: None),
                lambda: enqueueing.rows(1, 1),
                lambda: enqueueing.failed("", 0, 1),
                lambda: enqueueing.count_failed(),
            ]
        for call in calls:
            with pytest.raises(Closed):
                await call()

    engine.run(tmp_path, scenario)


def test_close_waits_for_the_commit_under_way(durable_engine: Engine, tmp_path: Path) -> None:
    async def write(store: Store) -> None:
        epochs = await own_all(store)
        under_way = asyncio.ensure_future(store.apply(commit(epochs, full_change())))
        reading = asyncio.ensure_future(store.catalog())
        await asyncio.sleep(0)
        await store.close()
        await asyncio.gather(under_way, reading)

    async def check(store: Store) -> None:
        assert await load_one(store) == image_of(full_change())

    durable_engine.run(tmp_path, write, check)
