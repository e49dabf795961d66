"""Declare, change and delete queues, groups, exchanges and bindings. Declaring the same thing twice is fine."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.core.group.settings import settings_of
from penstock.core.routing.router import Router
from penstock.model import (
    DEFAULT_GROUP,
    Binding,
    ExchangeConfig,
    GroupConfig,
    QueueConfig,
    Start,
    check_name,
    make_config,
)
from penstock.model.errors import AlreadyExists, Forbidden, NotFound
from penstock.model.rows import home_slot
from penstock.node.catalog import Group, Queue, binding_row, exchange_row, group_row, queue_row

if TYPE_CHECKING:
    from penstock.node.node import Node

GROUPS_MAX = 1_000
FIXED_QUEUE_OPTIONS = ("lanes", "ordered", "prioritized", "priority_max", "stream", "ephemeral", "exclusive",
                       "debounce_ms")  # fmt: skip
FIXED_GROUP_OPTIONS = ("kind", "start", "ordered", "prioritized")


# Queues --------------------------------------------------------------------------------------------------


async def declare_queue(node: Node, namespace: str, name: str, options: dict[str, Any], session: str | None) -> Queue:
    """Create a queue, or merge options into the one there is."""
    check_name(name, "a queue's name")
    check_name(namespace, "a namespace")
    if name.startswith("$"):
        raise Forbidden(f"queue {name!r}: names that begin with $ are the system's")
    async with node.declaring("queue", namespace, name):
        queue = node.catalog.queues.get((namespace, name))
        if queue is None:
            return await _create_queue(node, namespace, name, make_config(QueueConfig, options), session)
        if queue.deleting:
            raise NotFound(f"the queue {name!r} is being deleted; declare it again in a moment")
        await _update_queue(node, queue, options)
        return queue


async def _create_queue(node: Node, namespace: str, name: str, config: QueueConfig, session: str | None) -> Queue:
    if len(node.catalog.queues) >= node.limits.queues:
        raise Forbidden(f"there are {len(node.catalog.queues)} queues already, as many as may be; delete some first")
    if config.exclusive and session is None:
        raise Forbidden(f"queue {name!r} is exclusive; only a session can declare it")
    await node.reserve_ids(config.lanes + 1)
    slot = home_slot(namespace, name)
    node.ownership.check(slot)
    lanes = tuple(node.catalog.new_lane(slot, ephemeral=config.ephemeral) for _ in range(config.lanes))
    queue = Queue(node.catalog.new_id(ephemeral=config.ephemeral), namespace, name, config, lanes)
    queue.session = session if config.exclusive else None

    def created() -> None:
        for lane in lanes:
            node.lanes.add_new(lane)

    await node.commit_catalog([queue_row(queue, config)], after=created, slot=slot)
    made = node.catalog.queue(namespace, name)
    await _count_for_limits(node, made)
    made.used_ms = node.clock.now_ms()
    node.retention.watch(made)
    return made


async def _update_queue(node: Node, queue: Queue, options: dict[str, Any]) -> None:
    config = make_config(QueueConfig, options, queue.config)
    _check_fixed(f"queue {queue.name!r}", queue.config, config, FIXED_QUEUE_OPTIONS)
    queue.used_ms = node.clock.now_ms()
    if config != queue.config:
        _check_there(node, queue)
        slot = max(queue.slot, 0)
        await node.commit_catalog([queue_row(queue, config)], after=lambda: _reconfigured(node, queue), slot=slot)
        await _count_for_limits(node, queue)
        node.retention.watch(queue)


async def _count_for_limits(node: Node, queue: Queue) -> None:
    """Limits are about what a group has not consumed: there must be one to count for."""
    limited = queue.config.max_length is not None or queue.config.max_bytes is not None
    if limited and not any(group.config.kind == "work" for group in queue.groups.values()):
        await declare_group(node, queue, DEFAULT_GROUP, {})


def _reconfigured(node: Node, queue: Queue) -> None:
    node.lanes.configure(queue.lanes)
    for id in queue.lanes:
        lane = node.lanes.get(id)
        if lane is not None:
            node.retention.committed(lane, node.clock.now_ms())
            node.waiters.serve(lane)


def _check_fixed(
    what: str, old: QueueConfig | GroupConfig, new: QueueConfig | GroupConfig, names: tuple[str, ...]
) -> None:
    for name in names:
        before, after = getattr(old, name), getattr(new, name)
        if before != after:
            raise AlreadyExists(f"{what} exists with {name}={before!r}; it cannot become {after!r}, make a new one")


async def delete_queue(node: Node, queue: Queue) -> None:
    if queue.name.startswith("$"):
        raise Forbidden(f"queue {queue.name!r} is the system's and cannot be deleted")
    async with node.declaring("queue", queue.namespace, queue.name):
        if not queue.deleting:
            await node.delete_queue(queue)


# Groups --------------------------------------------------------------------------------------------------


async def declare_group(node: Node, queue: Queue, name: str, options: dict[str, Any]) -> Group:
    """Create a group at its start, or merge options into the one there is."""
    check_name(name, "a group's name")
    async with node.declaring("group", str(queue.id), name):
        group = queue.groups.get(name)
        if group is None:
            return await _create_group(node, queue, name, make_config(GroupConfig, options))
        config = make_config(GroupConfig, options, group.config)
        _check_fixed(f"group {name!r} of queue {queue.name!r}", group.config, config, FIXED_GROUP_OPTIONS)
        if config != group.config:
            settings_of(queue.config, config)
            _check_there(node, queue)
            row = group_row(queue, group.id, name, config)
            await node.commit_catalog([row], after=lambda: _reconfigured(node, queue), slot=max(queue.slot, 0))
        return queue.groups[name]


async def _create_group(node: Node, queue: Queue, name: str, config: GroupConfig) -> Group:
    if len(queue.groups) >= GROUPS_MAX:
        raise Forbidden(f"queue {queue.name!r} has {GROUPS_MAX} groups already; delete some first")
    settings = settings_of(queue.config, config)
    id = node.catalog.new_id(ephemeral=queue.config.ephemeral)
    starts = [await offset_at(node, lane, config.start) for lane in queue.lanes]
    lanes = await node.lanes.together(queue.lanes)
    # Before anything is changed: a lane must not know a group that the catalog does not.
    node.check_declarations(max(queue.slot, 0))
    _check_there(node, queue)
    for lane, start in zip(lanes, starts, strict=True):
        lane.add_group(id, settings, start)
        node.commits.touch(lane)
    queue.coming[id] = Group(id, name, config, settings)
    try:
        await node.commit_catalog([group_row(queue, id, name, config)], slot=max(queue.slot, 0))
    finally:
        del queue.coming[id]
    return queue.groups[name]


def _check_there(node: Node, queue: Queue) -> None:
    """Raise if the queue was deleted meanwhile: nothing may be declared for it any more."""
    if queue.deleting or node.catalog.by_id.get(queue.id) is not queue:
        raise NotFound(f"the queue {queue.name!r} was deleted")


async def offset_at(node: Node, lane_id: int, start: Start) -> int:
    """The offset of a place in a lane: its beginning, its end, or the first message from a time on."""
    lane = await node.lanes.run(lane_id, lambda lane: lane)
    if start == "beginning":
        return lane.first
    if start == "now":
        return lane.visible_end
    found = await node.lanes.store_of(lane_id).find_time(lane_id, int(start))
    return lane.visible_end if found is None else max(found, lane.first)


async def delete_group(node: Node, queue: Queue, group: Group) -> None:
    async with node.declaring("group", str(queue.id), group.name):
        lanes = await node.lanes.together(queue.lanes)
        node.check_declarations(max(queue.slot, 0))
        for lane in lanes:
            lane.remove_group(group.id)
            node.commits.touch(lane)

        def forget() -> None:
            queue.groups.pop(group.name, None)
            node.counters.forget([group.id])
            node.waiters.group_deleted(queue, group)

        await node.commit_catalog([], [("group", group.id)], forget, slot=max(queue.slot, 0))


# Exchanges and bindings ----------------------------------------------------------------------------------


async def declare_exchange(node: Node, namespace: str, name: str, options: dict[str, Any]) -> None:
    config = make_config(ExchangeConfig, options)
    check_name(namespace, "a namespace")
    async with node.declaring("exchange", namespace, name):
        trial = Router(lambda _: True)
        trial.declare_exchange(name, config)
        existing = node.catalog.router(namespace).exchanges().get(name)
        if existing is not None:
            if existing != config:
                raise AlreadyExists(f"exchange {name!r} exists with other options: {msgspec.to_builtins(existing)}")
            return
        await node.commit_catalog([exchange_row(node.catalog.new_id(), namespace, name, config)])


async def delete_exchange(node: Node, namespace: str, name: str, *, only_unbound: bool = False) -> None:
    async with node.declaring("exchange", namespace, name):
        id = node.catalog.exchange_ids.get((namespace, name))
        if id is None:
            raise NotFound(f"there is no exchange {name!r}")
        if only_unbound and node.catalog.router(namespace).bindings(name):
            return
        bindings = node.catalog.router(namespace).delete_exchange(name)
        deleted = [("exchange", id)]
        for binding in bindings:
            binding_id = node.catalog.binding_id(namespace, binding)
            if binding_id is not None:
                deleted.append(("binding", binding_id))

        def forget() -> None:
            node.catalog.exchange_ids.pop((namespace, name), None)
            node.catalog.remove_bindings(namespace, bindings)

        await node.commit_catalog([], deleted, forget)
    await drop_unbound(node, namespace, {binding.exchange for binding in bindings} - {name})


async def drop_unbound(node: Node, namespace: str, names: Iterable[str]) -> None:
    """Delete those of these exchanges that live as long as they have bindings, and have lost the last one."""
    router = node.catalog.router(namespace)
    for name in names:
        config = router.exchanges().get(name)
        if config is not None and config.auto_delete and not router.bindings(name):
            with suppress(NotFound):  # or somebody else has deleted it meanwhile
                await delete_exchange(node, namespace, name, only_unbound=True)


async def drop_ephemeral_exchanges(node: Node) -> None:
    """Delete the exchanges that do not outlive the broker: it has just started."""
    for namespace, name in list(node.catalog.exchange_ids):
        config = node.catalog.router(namespace).exchanges().get(name)
        if config is not None and config.ephemeral:
            await delete_exchange(node, namespace, name)


async def bind(node: Node, namespace: str, binding: Binding) -> None:
    """Bind a queue or exchange to an exchange."""
    async with node.declaring("exchange", namespace, binding.exchange):
        router = node.catalog.router(namespace)
        if not router.bind(binding):
            return
        # Only to see whether it can be bound: it becomes known after its commit.
        router.unbind(binding)
        target = node.catalog.queues.get((namespace, binding.target)) if binding.target_kind == "queue" else None
        ephemeral = target is not None and target.config.ephemeral
        if ephemeral and not node.ownership.is_sole:
            raise Forbidden(
                f"queue {binding.target!r} is ephemeral, so only its owner knows it; among several nodes it cannot be "
                "bound: publish to it by name, or bind one that is stored"
            )
        id = node.catalog.new_id(ephemeral=ephemeral)
        queue_id = 0 if target is None or ephemeral else target.id
        await node.commit_catalog([binding_row(id, namespace, binding, queue_id)])


async def unbind(node: Node, namespace: str, binding: Binding) -> None:
    async with node.declaring("exchange", namespace, binding.exchange):
        id = node.catalog.binding_id(namespace, binding)
        if id is None:
            raise NotFound(f"there is no such binding on exchange {binding.exchange!r}: {binding.pattern!r}")

        def forget() -> None:
            node.catalog.router(namespace).unbind(binding)
            node.catalog.remove_bindings(namespace, [binding])

        await node.commit_catalog([], [("binding", id)], forget)
    await drop_unbound(node, namespace, [binding.exchange])
