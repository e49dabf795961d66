"""Reads what there is from a broker or a client, and takes the steps of a plan on it.

Knows the API alone, so it works on either.
"""

from __future__ import annotations

from collections.abc import Sequence
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


async def take(target: Broker, steps: Sequence[Step]) -> None:
    """Take the steps in order. Raises `StepFailed` at the first that fails."""
    spaces: dict[str, Broker] = {}
    for step in steps:
        space = spaces.setdefault(step.namespace, target.in_namespace(step.namespace))
        try:
            await _take(space, step)
        except PenstockError as error:
            where = f"{step.where}: " if step.where else ""
            raise StepFailed(f"{where}{step.title}: {error}") from error


async def _take(target: Broker, step: Step) -> None:
    """Declare it with its options, or delete it: by the broker's method for its kind."""
    if step.action not in ("create", "change", "delete"):
        return
    is_deletion = step.action == "delete"
    if step.binding is not None:
        bind = target.unbind if is_deletion else target.bind
        await bind(**msgspec.structs.asdict(step.binding))
        return
    names = (step.parent, step.name) if step.parent else (step.name,)
    method = getattr(target, f"{'delete' if is_deletion else 'declare'}_{step.kind}")
    await method(*names, **({} if is_deletion else step.options))
