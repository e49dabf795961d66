"""Reads what there is from a broker or a client, and takes the steps of a plan on it.

Knows the API alone, so it works on either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from penstock.api.broker import Broker
from penstock.declare.file import Declarations, World
from penstock.declare.plan import Present, Step, plan, schedule_options
from penstock.model.errors import PenstockError


class StepFailed(Exception):
    """A step that could not be taken; the text says which, where the file asks for it, and why."""


async def plan_all(target: Broker, declarations: Declarations, *, prune: bool = False) -> list[Step]:
    """The steps of every namespace of a file."""
    steps: list[Step] = []
    for namespace, wanted in declarations.items():
        present = await read_present(target.in_namespace(namespace), wanted)
        steps += plan(namespace, wanted, present, prune=prune)
    return steps


async def read_present(target: Broker, wanted: World) -> Present:
    """What there is; groups and bindings only of what the file declares."""
    queues: dict[str, Any] = await target.queues()
    exchanges: dict[str, Any] = await target.exchanges()
    return Present(
        queues,
        {name: await target.groups(name) for name in wanted.queues if name in queues},
        exchanges,
        {name: await target.bindings(name) for name in wanted.exchanges if name in exchanges},
        {schedule.name: schedule_options(schedule) for schedule in await target.schedules()},
    )


async def take(target: Broker, steps: Sequence[Step], taken: Callable[[Step], None] | None = None) -> None:
    """Take the steps in order; `taken` hears of each. Raises `StepFailed` at the first that fails."""
    spaces: dict[str, Broker] = {}
    for step in steps:
        space = spaces.setdefault(step.namespace, target.in_namespace(step.namespace))
        try:
            if step.action in ("create", "change"):
                await _declare(space, step)
            elif step.action == "delete":
                await _delete(space, step)
        except PenstockError as error:
            where = f"{step.where}: " if step.where else ""
            raise StepFailed(f"{where}{step.title}: {error}") from error
        if taken is not None:
            taken(step)


async def _declare(target: Broker, step: Step) -> None:
    if step.binding is not None:
        await target.bind(step.parent, step.name, **_binding_arguments(step))
    elif step.kind == "group":
        await target.declare_group(step.parent, step.name, **step.options)
    elif step.kind == "queue":
        await target.declare_queue(step.name, **step.options)
    elif step.kind == "exchange":
        await target.declare_exchange(step.name, **step.options)
    else:
        await target.declare_schedule(step.name, **step.options)


async def _delete(target: Broker, step: Step) -> None:
    if step.binding is not None:
        await target.unbind(step.parent, step.name, **_binding_arguments(step))
    elif step.kind == "group":
        await target.delete_group(step.parent, step.name)
    elif step.kind == "queue":
        await target.delete_queue(step.name)
    elif step.kind == "exchange":
        await target.delete_exchange(step.name)
    else:
        await target.delete_schedule(step.name)


def _binding_arguments(step: Step) -> dict[str, Any]:
    assert step.binding is not None
    fields = msgspec.structs.asdict(step.binding)
    return {name: fields[name] for name in ("pattern", "target_kind", "headers", "match")}
