"""Declare, change and delete queues and groups. Declaring the same thing twice is fine.

Next stop: `catalog_writer.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.core.group.settings import settings_of
from penstock.core.lane import Lane
from penstock.model import DEFAULT_GROUP, Binding, GroupConfig, QueueConfig, check_name, make_config
from penstock.model.errors import AlreadyExists, Forbidden, LimitReached, NotFound, PenstockError
from penstock.model.options import FIXED_GROUP_OPTIONS, FIXED_QUEUE_OPTIONS
from penstock.model.rows import REGISTRAR_SLOT, Commit, GroupRow, LaneChange, home_slot
from penstock.node.catalog import Catalog, Group, Queue, group_row, queue_row
from penstock.node.catalog_writer import CatalogWriter
from penstock.node.clock import Clock
from penstock.node.cluster.ownership import Ownership
from penstock.node.commit.commits import Commits
from penstock.node.exchanges import Exchanges
from penstock.node.lanes import LaneSet
from penstock.node.session import Session

GROUPS_MAX: Final = 1_000


@dataclass(eq=False, repr=False)
class Declarations:
    """Queues and groups of every namespace."""

    _catalog: Catalog
    _writer: CatalogWriter
    _exchanges: Exchanges
    _lanes: LaneSet
    _commits: Commits
    _clock: Clock
    _ownership: Ownership
    _queues_max: int

    def __post_init__(self) -> None:
        self.on_declared: list[Callable[[Queue], None]] = []
        """Told of a queue that was created or whose options changed."""
        self.on_reconfigured: list[Callable[[Lane], None]] = []
        """Told of a loaded lane whose queue's or groups' options changed."""

    # Queues -----------------------------------------------------------------------------------------------

    async def declare_queue(self, namespace: str, name: str, options: dict[str, Any], session: Session | None) -> Queue:
        """Create a queue, or merge options into the one there is."""
        check_name(name, "a queue's name")
        check_name(namespace, "a namespace")
        if name.startswith("$"):
            raise Forbidden(f"queue {name!r}: names that begin with $ are the system's")
        async with self._writer.declaring("queue", namespace, name):
            queue = self._catalog.queues.get((namespace, name))
            if queue is None:
                return await self._create_queue(namespace, name, make_config(QueueConfig, options), session)
            if queue.deleting:
                raise NotFound(f"the queue {name!r} is being deleted; declare it again in a moment")
            await self._update_queue(queue, options)
            return queue

    async def _create_queue(self, namespace: str, name: str, config: QueueConfig, session: Session | None) -> Queue:
        catalog = self._catalog
        if len(catalog.queues) >= self._queues_max:
            raise LimitReached(f"there are {len(catalog.queues)} queues already, as many as may be; delete some first")
        if config.exclusive and session is None:
            raise Forbidden(f"queue {name!r} is exclusive; only a session can declare it")
        await self._writer.reserve_ids(config.lanes + 1)
        slot = home_slot(namespace, name)
        self._ownership.check(slot)
        lanes = tuple(catalog.new_lane(slot, ephemeral=config.ephemeral) for _ in range(config.lanes))
        queue = Queue(catalog.new_id(ephemeral=config.ephemeral), namespace, name, config, lanes, catalog.sizes)
        queue.session = session if config.exclusive else None
        if config.ephemeral:
            await self._create_in_memory(queue)
            made = catalog.queue(namespace, name)
        else:
            await self._writer.commit([queue_row(queue, config)], after=lambda: self._add_lanes(queue), slot=slot)
            made = catalog.queue(namespace, name)
            await self._count_for_limits(made)
        made.used_ms = self._clock.now_ms()
        self._declared(made)
        return made

    async def _create_in_memory(self, queue: Queue) -> None:
        """An ephemeral queue, with the group that its limits count for: known at once, for nothing of it is stored."""
        rows, cursors = [queue_row(queue, queue.config)], []
        if _is_limited(queue.config):
            config = GroupConfig()
            settings_of(queue.config, config)
            id = self._catalog.new_id(ephemeral=True)
            rows.append(group_row(queue, id, DEFAULT_GROUP, config))
            cursors.append(GroupRow(id, 0, 0))
        changes = [LaneChange(lane, 0, 0, 0, groups=cursors) for lane in queue.lanes]
        self._writer.check(queue.slot)
        await self._lanes.store_of(queue.lanes[0]).apply(Commit(epochs={queue.slot: 1}, lanes=changes))
        self._writer.put_in_memory(rows, slot=queue.slot)
        self._add_lanes(queue, cursors)

    def _add_lanes(self, queue: Queue, groups: Sequence[GroupRow] = ()) -> None:
        for lane in queue.lanes:
            self._lanes.add_new(lane, groups)

    async def _update_queue(self, queue: Queue, options: dict[str, Any]) -> None:
        config = make_config(QueueConfig, options, queue.config)
        _check_fixed(f"queue {queue.name!r}", queue.config, config, FIXED_QUEUE_OPTIONS)
        queue.used_ms = self._clock.now_ms()
        if config != queue.config:
            self._check_there(queue)
            row, slot = queue_row(queue, config), max(queue.slot, 0)
            await self._writer.commit([row], after=lambda: self._reconfigured(queue), slot=slot)
            await self._count_for_limits(queue)
            self._declared(queue)

    async def _count_for_limits(self, queue: Queue) -> None:
        """Limits are about what a group has not consumed: there must be one to count for."""
        if _is_limited(queue.config) and not any(group.config.kind == "work" for group in queue.groups.values()):
            await self.declare_group(queue, DEFAULT_GROUP, {})

    def _declared(self, queue: Queue) -> None:
        for tell in self.on_declared:
            tell(queue)

    def _reconfigured(self, queue: Queue) -> None:
        self._lanes.configure(queue.lanes)
        for id in queue.lanes:
            lane = self._lanes.get(id)
            if lane is not None:
                for tell in self.on_reconfigured:
                    tell(lane)

    async def delete_queue(self, queue: Queue) -> None:
        """Delete a queue that a user names."""
        if queue.name.startswith("$"):
            raise Forbidden(f"queue {queue.name!r} is the system's and cannot be deleted")
        async with self._writer.declaring("queue", queue.namespace, queue.name):
            if not queue.deleting:
                await self.drop_queue(queue)

    async def drop_queue(self, queue: Queue) -> None:
        """Delete a queue with its lanes, groups and bindings."""
        await self._begin_drop(queue)
        bindings = self._catalog.router(queue.namespace).queue_deleted(queue.name)
        slot = max(queue.slot, 0)
        is_registrar = self._ownership.owns(REGISTRAR_SLOT) and self._commits.may_share(REGISTRAR_SLOT, slot)
        deleted = [("queue", queue.id), *(("group", group.id) for group in queue.groups.values())]
        if is_registrar:  # otherwise the registrar deletes the bindings afterwards
            ids = [self._catalog.binding_id(queue.namespace, binding) for binding in bindings]
            deleted += [("binding", id) for id in ids if id is not None]
            self._commits.amend(REGISTRAR_SLOT)
        self._commits.amend(slot).lanes_deleted += queue.lanes
        await self._writer.commit([], deleted, lambda: self._dropped(queue, bindings, is_registrar), slot=slot)
        if self._ownership.owns(REGISTRAR_SLOT):
            if not is_registrar:
                self._exchanges.drop_orphans_soon()
            await self._exchanges.drop_unbound(queue.namespace, {binding.exchange for binding in bindings})

    async def _begin_drop(self, queue: Queue) -> None:
        """From here on nothing is declared for the queue; what was on its way is known when this returns."""
        queue.deleting = True
        try:
            await self._commits.commit()
            self._writer.check(max(queue.slot, 0))
        except PenstockError:
            queue.deleting = False
            raise

    def _dropped(self, queue: Queue, bindings: list[Binding], is_registrar: bool) -> None:
        self._catalog.remove_queue(queue)
        if is_registrar:
            self._catalog.remove_bindings(queue.namespace, bindings)
        else:
            self._catalog.orphan_bindings(queue.namespace, bindings)

    # Groups -----------------------------------------------------------------------------------------------

    async def declare_group(self, queue: Queue, name: str, options: dict[str, Any]) -> Group:
        """Create a group at its start, or merge options into the one there is."""
        check_name(name, "a group's name")
        async with self._writer.declaring("group", str(queue.id), name):
            group = queue.groups.get(name)
            if group is None:
                return await self._create_group(queue, name, make_config(GroupConfig, options))
            config = make_config(GroupConfig, options, group.config)
            _check_fixed(f"group {name!r} of queue {queue.name!r}", group.config, config, FIXED_GROUP_OPTIONS)
            if config != group.config:
                settings_of(queue.config, config)
                self._check_there(queue)
                row, slot = group_row(queue, group.id, name, config), max(queue.slot, 0)
                await self._writer.commit([row], after=lambda: self._reconfigured(queue), slot=slot)
            return queue.groups[name]

    async def _create_group(self, queue: Queue, name: str, config: GroupConfig) -> Group:
        if len(queue.groups) >= GROUPS_MAX:
            raise LimitReached(f"queue {queue.name!r} has {GROUPS_MAX} groups already; delete some first")
        settings, slot = settings_of(queue.config, config), max(queue.slot, 0)
        id = self._catalog.new_id(ephemeral=queue.config.ephemeral)
        starts = [await self._lanes.offset_at(lane, config.start) for lane in queue.lanes]
        lanes = await self._lanes.together(queue.lanes)
        # Before anything is changed: a lane must not know a group that the catalog does not.
        self._writer.check(slot)
        self._check_there(queue)
        for lane, start in zip(lanes, starts, strict=True):
            lane.add_group(id, settings, start)
            self._commits.touch(lane)
        queue.coming[id] = Group(id, name, config, settings)
        try:
            await self._writer.commit([group_row(queue, id, name, config)], slot=slot)
        finally:
            del queue.coming[id]
        return queue.groups[name]

    async def delete_group(self, queue: Queue, group: Group) -> None:
        async with self._writer.declaring("group", str(queue.id), group.name):
            lanes = await self._lanes.together(queue.lanes)
            self._writer.check(max(queue.slot, 0))
            for lane in lanes:
                lane.remove_group(group.id)
                self._commits.touch(lane)
            await self._writer.commit(
                [],
                [("group", group.id)],
                lambda: self._catalog.remove_group(queue, group),
                slot=max(queue.slot, 0),
            )

    def _check_there(self, queue: Queue) -> None:
        """Raise if the queue was deleted meanwhile: nothing may be declared for it any more."""
        if queue.deleting or self._catalog.by_id.get(queue.id) is not queue:
            raise NotFound(f"the queue {queue.name!r} was deleted")


def _is_limited(config: QueueConfig) -> bool:
    return config.max_length is not None or config.max_bytes is not None


def _check_fixed(
    what: str, old: QueueConfig | GroupConfig, new: QueueConfig | GroupConfig, names: tuple[str, ...]
) -> None:
    for name in names:
        before, after = getattr(old, name), getattr(new, name)
        if before != after:
            raise AlreadyExists(f"{what} exists with {name}={before!r}; it cannot become {after!r}, make a new one")
