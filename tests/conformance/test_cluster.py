"""What several nodes ask of a store: members, slots, ids and catalog versions, on every engine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.model.errors import Fenced
from penstock.model.rows import CatalogRow, ClusterView, Member, OutboxRow
from penstock.store.contract import Store
from tests.conformance.engines import Engine
from tests.conformance.samples import batches, change, commit

LONG_MS = 600_000
SHORT_MS = 1


def member(name: str, lease_ms: int = LONG_MS) -> Member:
    return Member(name, f"http://{name}:7333", "1.0", lease_ms)


def owners(view: ClusterView) -> dict[int, int]:
    return {row.slot: row.node for row in view.slots if row.node}


async def until_stale(store: Store, incarnation: int) -> None:
    for _ in range(500):
        [row] = [row for row in (await store.heartbeat(0)).nodes if row.incarnation == incarnation]
        if not row.is_live:
            return
        await asyncio.sleep(0.005)
    raise AssertionError("a member that says nothing is still live")


def test_members_are_seen_and_leave(engine: Engine, tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        first = await store.join(member("first"))
        second = await store.join(member("sécond"))
        assert 0 < first.incarnation < second.incarnation
        assert first.secret == second.secret
        assert len(first.secret) >= 32
        view = await store.heartbeat(first.incarnation)
        assert view.is_member
        assert [(row.incarnation, row.name, row.url, row.version, row.lease_ms) for row in view.nodes] == [
            (first.incarnation, "first", "http://first:7333", "1.0", LONG_MS),
            (second.incarnation, "sécond", "http://sécond:7333", "1.0", LONG_MS),
        ]
        assert all(row.is_live and 0 <= row.joined_ms <= view.now_ms for row in view.nodes)
        await store.leave(first.incarnation)
        view = await store.heartbeat(first.incarnation)
        assert not view.is_member
        assert [row.incarnation for row in view.nodes] == [second.incarnation]

    engine.run(tmp_path, scenario)


def test_a_slot_has_one_owner(engine: Engine, tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        one = (await store.join(member("one"))).incarnation
        two = (await store.join(member("two"))).incarnation
        taken = await store.take([1, 2, 2, 3], one)
        assert set(taken) == {1, 2, 3}
        assert await store.take([2, 3, 4], two) == {4: max(two, 1)}
        assert owners(await store.heartbeat(one)) == {1: one, 2: one, 3: one, 4: two}
        again = await store.take([3], one)
        assert again[3] > taken[3]
        await store.release([1, 4], one, to=two)
        view = await store.heartbeat(two)
        assert owners(view) == {2: one, 3: one, 4: two}
        [released] = [row for row in view.slots if row.slot == 1]
        assert (released.node, released.meant_for, released.why) == (0, two, "released by one")
        given = await store.take([1], two)
        assert given[1] > taken[1]
        [row] = [row for row in (await store.heartbeat(two)).slots if row.slot == 1]
        assert (row.node, row.meant_for, row.epoch, row.why) == (two, 0, given[1], "taken by two (released by one)")

    engine.run(tmp_path, scenario)


def test_who_is_no_member_takes_nothing(engine: Engine, tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        one = (await store.join(member("one"))).incarnation
        await store.take([1], one)
        await store.leave(one)
        assert await store.take([2], one) == {}
        assert await store.take([2], 99_999) == {}
        assert owners(await store.heartbeat(0)) == {}

    engine.run(tmp_path, scenario)


def test_taking_a_slot_fences_who_had_it(engine: Engine, tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        one = (await store.join(member("one"))).incarnation
        two = (await store.join(member("two"))).incarnation
        epochs = await store.take([5, 6], one)
        await store.apply(commit(epochs, change(5, batches=batches(1))))
        await store.release([5], one)
        epochs_of_two = await store.take([5], two)
        with pytest.raises(Fenced, match="slot 5"):
            await store.apply(commit(epochs, change(5, batches=batches(1, base=1))))
        if store.capabilities.spans_slots:
            with pytest.raises(Fenced):
                await store.apply(commit(epochs, change(5, batches=batches(1, base=1)), change(6, batches=batches(1))))
        await store.apply(commit(epochs, change(6, batches=batches(1))))  # the others are still its own
        await store.apply(commit(epochs_of_two, change(5, batches=batches(1, base=1))))
        assert [image.end for image in await store.load([5, 6], 1)] == [2, 1]

    engine.run(tmp_path, scenario)


def test_a_member_that_is_not_heard_of_loses_its_slots_and_its_place(engine: Engine, tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        gone = (await store.join(member("gone", SHORT_MS))).incarnation
        stays = (await store.join(member("stays"))).incarnation
        epochs = await store.take([1, 2], gone)
        await until_stale(store, gone)
        # A heartbeat in time keeps it, however late others look.
        assert (await store.heartbeat(gone)).is_member
        assert owners(await store.heartbeat(stays)) == {1: gone, 2: gone}
        await until_stale(store, gone)
        taken = await store.take([1], stays)
        assert taken[1] > epochs[1]
        view = await store.heartbeat(gone)
        assert not view.is_member
        assert [row.incarnation for row in view.nodes] == [stays]
        assert owners(view) == {1: stays}
        [row] = [row for row in view.slots if row.slot == 1]
        assert row.why.startswith("taken by stays (gone was not heard of for ")
        back = (await store.join(member("gone"))).incarnation
        assert back > stays

    engine.run(tmp_path, scenario)


def test_an_owner_that_is_live_keeps_its_slots(engine: Engine, tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        one = (await store.join(member("one"))).incarnation
        two = (await store.join(member("two"))).incarnation
        epochs = await store.take(range(64), one)
        assert await store.take(range(64), two) == {}
        await store.apply(commit(epochs, change(7, batches=batches(1))))

    engine.run(tmp_path, scenario)


def test_many_who_take_at_once_share_without_overlap(engine: Engine, tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        members = [(await store.join(member(f"n{index}"))).incarnation for index in range(4)]
        found: dict[int, int] = {}
        for _ in range(50):  # one whose turn it is not yet finds the rest the next time
            await asyncio.gather(*(store.take(range(0, 64, 3), one) for one in members))
            found = owners(await store.heartbeat(0))
            if len(found) == 22:
                break
        assert set(found) == set(range(0, 64, 3))
        assert set(found.values()) <= set(members)

    engine.run(tmp_path, scenario)


def test_incarnations_are_above_every_epoch(engine: Engine, tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        epochs: dict[int, int] = {}
        for _ in range(5):
            epochs = await store.acquire([3], "solo")
        one = await store.join(member("one"))
        assert one.incarnation > epochs[3]
        taken = await store.take([3, 4], one.incarnation)
        assert taken[3] > epochs[3]
        assert taken[4] >= one.incarnation
        await store.acquire([3], "solo")
        assert owners(await store.heartbeat(one.incarnation)) == {4: one.incarnation}

    engine.run(tmp_path, scenario)


def test_incarnations_and_ids_are_never_given_twice(durable_engine: Engine, tmp_path: Path) -> None:
    seen: list[int] = []
    firsts: list[int] = []

    async def scenario(store: Store) -> None:
        joined = await store.join(member("one"))
        seen.append(joined.incarnation)
        await store.leave(joined.incarnation)
        firsts.append(await store.reserve_ids(10))

    durable_engine.run(tmp_path, scenario, scenario, scenario)
    assert seen == sorted(set(seen))
    assert firsts == [1, 11, 21]


def test_ids_are_reserved_in_blocks(engine: Engine, tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        assert await store.reserve_ids(5) == 1
        assert await store.reserve_ids(1, above=100) == 101
        assert await store.reserve_ids(2, above=50) == 102
        firsts = await asyncio.gather(*(store.reserve_ids(3) for _ in range(20)))
        assert sorted(firsts) == list(range(104, 164, 3))

    engine.run(tmp_path, scenario)


def row(id: int, name: str = "q", kind: str = "queue") -> CatalogRow:
    return CatalogRow(kind, id, 0, "default", name, b"document of %d" % id)


class Follower:
    """A node's copy of the catalog, kept up to date by changes alone."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.version = 0
        self.rows: dict[tuple[str, int], CatalogRow] = {}

    async def look(self) -> None:
        changes = await self.store.catalog_since(self.version)
        if changes.is_complete:
            self.rows = {}
        for gone in changes.deleted:
            self.rows.pop((gone.kind, gone.id), None)
        for there in changes.rows:
            self.rows[there.kind, there.id] = there
        assert changes.version >= self.version
        self.version = changes.version

    async def check(self) -> None:
        await self.look()
        expected = {(row.kind, row.id): row for row in await self.store.catalog()}
        assert self.rows == expected


def test_catalog_changes_lead_to_the_catalog(engine: Engine, tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        epochs = await store.acquire([0], "me")
        follower, late = Follower(store), Follower(store)
        await follower.check()
        await store.apply(commit(epochs, catalog=[row(1), row(2), row(2, kind="group")]))
        await follower.check()
        before = follower.version
        await store.apply(commit(epochs, catalog_deleted=[("queue", 2), ("queue", 77)], catalog=[row(3, "three\0")]))
        await follower.check()
        assert follower.version > before
        await store.apply(commit(epochs, catalog=[row(1, "renamed"), row(2, "back")]))
        await follower.check()
        assert (await store.heartbeat(0)).catalog_version == follower.version
        await store.apply(commit(epochs, change(0, batches=batches(1))))  # declares nothing
        assert (await store.heartbeat(0)).catalog_version == follower.version
        assert (await store.catalog_since(follower.version)).rows == []
        await late.check()
        await store.apply(commit(epochs, catalog_deleted=[("queue", id) for id in (1, 2, 3)]))
        await late.check()
        await follower.check()

    engine.run(tmp_path, scenario)


def test_outbox_rows_are_found_by_slot(engine: Engine, tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        epochs = await store.acquire([0], "me")
        rows = [OutboxRow(id, id, 0, b"d", slot=id % 3) for id in range(1, 10)]
        await store.apply(commit(epochs, outbox=rows))
        assert await store.outbox(0, 100, [1]) == [rows[0], rows[3], rows[6]]
        assert await store.outbox(1, 1, [1, 2]) == [rows[1]]
        assert await store.outbox(0, 100, []) == []
        assert await store.outbox(0, 100) == rows

    engine.run(tmp_path, scenario)
