"""The play: clients and faults for a while, then silence until all is settled, then the judgement."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Coroutine
from random import Random
from typing import Any

from penstock.model.errors import PenstockError
from tests.simulation.consumers import Consumer, StreamReader
from tests.simulation.operators import Operator
from tests.simulation.producers import Producer
from tests.simulation.world import SETTLE_MS_MAX, Process, World, segments_of

STEP_MS = 250
SPOOL_TRIES_MAX = 100


async def play(world: World) -> None:
    """One world from its first node to its last check."""
    await world.start_node()
    tasks = [world.loop.create_task(client) for client in _clients(world)]
    await _pass_time(world, world.plan.span_ms)
    world.finishing = True
    world.trace("the faults are over")
    await _calm_down(world)
    await _empty_spools(world)
    tasks += [world.loop.create_task(client) for client in _tidy_clients(world)]
    await _settle(world)
    process = await world.process()
    world.check_all_lanes()
    if not world.checker.court.violations:
        world.checker.check_end(process.index, world.resets)
        world.checker.publishes.check_buffered(world.letters())
        if not world.plan.takeovers:
            world.checker.publishes.check_order()
    for task in tasks:
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            world.odd(f"a client ended: {''.join(traceback.format_exception(error))}")


def _clients(world: World) -> list[Coroutine[Any, Any, None]]:
    plan = world.plan
    clients: list[Coroutine[Any, Any, None]] = [Producer(world, index).run() for index in range(plan.producers)]
    for queue in plan.queues:
        for group in queue.groups:
            for index in range(group.consumers):
                name = f"{queue.name}/{group.name}/{index}"
                if group.is_stream:
                    clients.append(StreamReader(world, queue, group, name).run())
                else:
                    clients.append(Consumer(world, queue, group, name).run())
    clients.append(Operator(world).run())
    clients.append(_upheaval(world))
    return clients


def _tidy_clients(world: World) -> list[Coroutine[Any, Any, None]]:
    return [
        Consumer(world, queue, group, f"{queue.name}/{group.name}/tidy", tidy=True).run()
        for queue in world.plan.queues
        for group in queue.groups
        if not group.is_stream
    ]


async def _upheaval(world: World) -> None:
    """Takeovers and orderly restarts, at random times."""
    random = Random(f"upheaval {world.plan.seed}")
    events = sorted(
        [(random.randrange(world.plan.span_ms), "takeover") for _ in range(world.plan.takeovers)]
        + [(random.randrange(world.plan.span_ms), "restart") for _ in range(world.plan.restarts)]
    )
    now_ms = 0
    for time_ms, kind in events:
        await asyncio.sleep((time_ms - now_ms) / 1000)
        now_ms = time_ms
        if world.finishing or world.newest is None:
            continue
        if kind == "takeover":
            await world.take_over()
        else:
            await world.restart()


async def _pass_time(world: World, span_ms: int) -> None:
    """Let time pass, unless something is found."""
    passed_ms = 0
    while passed_ms < span_ms and not world.checker.court.violations:
        await asyncio.sleep(STEP_MS / 1000)
        passed_ms += STEP_MS


async def _calm_down(world: World) -> None:
    """Everything that was planned is declared, nothing is paused."""
    for queue in world.plan.queues:
        for group in queue.groups:
            for _ in range(20):
                process = await world.process()
                view = world.checker.court.view(queue.name, group.name, process.index)
                view.pauses_open += 1  # from now on resumed, whatever an operator has still under way
                view.paused_since_ms = None
                try:
                    await world.call(process, process.broker.declare_group(queue.name, group.name, **group.options))
                    await world.call(process, process.broker.resume(queue.name, group.name))
                    break
                except PenstockError as error:
                    world.unexpected(process, "resume", error)
                    await asyncio.sleep(0.5)


async def _empty_spools(world: World) -> None:
    """What nodes have left in their spools is replayed, machine after machine."""
    for _ in range(SPOOL_TRIES_MAX):
        if world.starting:  # a takeover: until it is done, the node before it has clients and buffers for them
            await asyncio.sleep(STEP_MS / 1000)
            continue
        process = await world.process()
        for other in world.processes:
            if other is not process and other.alive:
                other.sever()
        left = [disk for disk in world.disks if segments_of(disk)]
        if not left and not process.node.spool_state.messages:
            return
        if not any(process.folder.files is disk for disk in left):
            await world.restart()  # on the machine where something is left
        await asyncio.sleep(1.0)
    world.odd(f"a spool was not replayed: {[sorted(disk) for disk in world.disks]}")


async def _settle(world: World) -> None:
    """Wait until nothing is left to do; what takes for ever is stuck."""
    for _ in range(SETTLE_MS_MAX // 1_000):
        await asyncio.sleep(1.0)
        if world.checker.court.violations:
            return
        process = await world.process()
        settled = not world.checker.unsettled(process.index) and _all_read(world, process.index)
        if settled and not _being_handed_out(process):
            return
    process = await world.process()
    left = world.checker.unsettled(process.index)
    if left:
        world.checker.court.report("stuck", f"after {SETTLE_MS_MAX} ms without faults: {left}")


def _being_handed_out(process: Process) -> bool:
    """Whether an answer is on its way with messages that are done as they are handed out: their lane is pinned."""
    return any(lane.pins for lane in process.node.lanes.loaded())


def _all_read(world: World, scope: int) -> bool:
    return not world.checker.streams.unread(scope)
