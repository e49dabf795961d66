"""The difference between what a file declares and what there is, as steps, and taking them on a broker or a client.

An option that the file does not name keeps its value. Nothing is deleted unless asked for, and then never what the
broker made by itself: system queues, the default group, queues of a session. `plan` itself reads and changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, Literal

import msgspec

from penstock.api.broker import Broker
from penstock.api.declare import Schedule
from penstock.core.routing.exchanges import identity_of
from penstock.declare.file import Declarations, Options, Wanted, World
from penstock.model import DEFAULT_GROUP, Binding, ExchangeConfig, GroupConfig, QueueConfig, make_config
from penstock.model.errors import PenstockError
from penstock.model.options import FIXED_GROUP_OPTIONS, FIXED_QUEUE_OPTIONS

Kind = Literal["queue", "group", "exchange", "binding", "schedule"]
Action = Literal["create", "change", "conflict", "unchanged", "delete"]

SCHEDULE_DEFAULTS: Final[Options] = {
    "queue": None,
    "exchange": None,
    "cron": None,
    "interval_ms": None,
    "timezone": "UTC",
    "description": "",
}


class Change(msgspec.Struct, frozen=True):
    """One option that will be different."""

    option: str
    old: Any
    new: Any


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of one declaration. `conflict` is a change that is not possible; nothing is done then."""

    action: Action
    kind: Kind
    namespace: str = ""
    name: str
    """A binding's is its target's."""
    parent: str = ""
    """The queue of a group, the exchange of a binding."""
    options: Options = {}
    """What to declare it with."""
    changes: list[Change] = []
    binding: Binding | None = None
    where: str = ""
    """The file and line that ask for it."""

    @property
    def title(self) -> str:
        space = "" if self.namespace == "default" else f"{self.namespace}: "
        if self.binding is not None:
            kind = "exchange " if self.binding.target_kind == "exchange" else ""
            pattern = f" by {self.binding.pattern!r}" if self.binding.pattern else ""
            headers = f" by {self.binding.match} of {self.binding.headers}" if self.binding.headers else ""
            return f"{space}binding {self.parent} → {kind}{self.name}{pattern}{headers}"
        return f"{space}{self.kind} {self.parent + '/' if self.parent else ''}{self.name}"


class Present(msgspec.Struct):
    """What there is in a namespace, as far as a plan needs it: options that differ from the defaults, by name."""

    queues: dict[str, Options] = {}
    groups: dict[str, dict[str, Options]] = {}
    """By queue."""
    exchanges: dict[str, Options] = {}
    bindings: dict[str, list[Binding]] = {}
    """By exchange."""
    schedules: dict[str, Options] = {}
    """With all options of `declare_schedule`."""


def plan(namespace: str, wanted: World, present: Present, *, prune: bool = False) -> list[Step]:
    """The steps in an order in which they can be taken."""
    steps = [*_queue_steps(wanted, present), *_exchange_steps(wanted, present)]
    steps += [_schedule_step(name, asked, present.schedules.get(name)) for name, asked in wanted.schedules.items()]
    steps += _deletions(wanted, present) if prune else ()
    return [msgspec.structs.replace(step, namespace=namespace) for step in steps]


def _queue_steps(wanted: World, present: Present) -> Iterator[Step]:
    for name, queue in wanted.queues.items():
        changes = _changes(QueueConfig, queue.options, present.queues.get(name))
        yield _step("queue", name, queue, changes, FIXED_QUEUE_OPTIONS)
    for name, queue in wanted.queues.items():
        groups = present.groups.get(name, {})
        for group, asked in queue.groups.items():
            changes = _changes(GroupConfig, asked.options, groups.get(group))
            yield _step("group", group, asked, changes, FIXED_GROUP_OPTIONS, name)


def _exchange_steps(wanted: World, present: Present) -> Iterator[Step]:
    for name, exchange in wanted.exchanges.items():
        changes = _changes(ExchangeConfig, exchange.options, present.exchanges.get(name))
        yield _step("exchange", name, exchange, changes, ExchangeConfig.__struct_fields__)
    for name, exchange in wanted.exchanges.items():
        known = {identity_of(binding) for binding in present.bindings.get(name, ())}
        for asked in exchange.bindings:
            identity = identity_of(asked.binding)
            action: Action = "unchanged" if identity in known else "create"
            known.add(identity)
            yield Step(
                action=action,
                kind="binding",
                name=asked.binding.target,
                parent=name,
                binding=asked.binding,
                where=asked.where,
            )


def _changes(
    kind: type[QueueConfig] | type[GroupConfig] | type[ExchangeConfig], options: Options, present: Options | None
) -> list[Change] | None:
    """The named options that differ, None where there is nothing yet."""
    if present is None:
        return None
    # Through the configuration on both sides: 1 and 1.0 are the same rate.
    old = make_config(kind, present)  # type: ignore[type-var]
    new = make_config(kind, options, None)  # type: ignore[type-var]
    pairs = ((name, getattr(old, name), getattr(new, name)) for name in options)
    return [Change(name, before, after) for name, before, after in pairs if before != after]


def _step(
    kind: Kind, name: str, wanted: Wanted, changes: list[Change] | None, fixed: Collection[str], parent: str = ""
) -> Step:
    action: Action
    if changes is None:
        action = "create"
    elif not changes:
        action = "unchanged"
    else:
        action = "conflict" if any(change.option in fixed for change in changes) else "change"
    return Step(
        action=action,
        kind=kind,
        name=name,
        parent=parent,
        options=wanted.options,
        changes=changes or [],
        where=wanted.where,
    )


def schedule_options(schedule: Schedule) -> Options:
    """What `declare_schedule` makes it again with."""
    return {name: getattr(schedule, name) for name in (*SCHEDULE_DEFAULTS, "message", "paused")}


def _schedule_step(name: str, wanted: Wanted, present: Options | None) -> Step:
    """A schedule is declared whole; only a pause that the file does not speak of stays as it is."""
    paused = wanted.options.get("paused", False if present is None else present["paused"])
    options = SCHEDULE_DEFAULTS | wanted.options | {"paused": paused}
    changes = None
    if present is not None:
        changes = [Change(name, present[name], value) for name, value in options.items() if present[name] != value]
    return _step("schedule", name, Wanted(options, wanted.where), changes, fixed=())


def _deletions(wanted: World, present: Present) -> Iterator[Step]:
    """What the file does not name; what hangs on something before that."""

    def delete(kind: Kind, name: str, parent: str = "", binding: Binding | None = None) -> Step:
        return Step(action="delete", kind=kind, name=name, parent=parent, binding=binding)

    for name in sorted(present.schedules.keys() - wanted.schedules.keys()):
        yield delete("schedule", name)
    for name, exchange in wanted.exchanges.items():
        kept = {identity_of(asked.binding) for asked in exchange.bindings}
        for binding in present.bindings.get(name, ()):
            if identity_of(binding) not in kept:
                yield delete("binding", binding.target, name, binding)
    for name in sorted(present.exchanges.keys() - wanted.exchanges.keys() - {""}):
        yield delete("exchange", name)
    for name, queue in wanted.queues.items():
        for group in sorted(present.groups.get(name, {}).keys() - queue.groups.keys() - {DEFAULT_GROUP}):
            yield delete("group", group, name)
    for name in sorted(present.queues.keys() - wanted.queues.keys()):
        if not name.startswith("$") and not present.queues[name].get("exclusive"):
            yield delete("queue", name)


# On a broker or a client ---------------------------------------------------------------------------------


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
