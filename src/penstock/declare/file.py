"""What a TOML file declares: queues with their groups, exchanges with their bindings, and schedules, by namespace.

Everything that can be checked without a broker is checked here, and told with its line. It may not know what exists.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final, TypeVar

import msgspec

from penstock.core.group.settings import settings_of
from penstock.core.routing.router import Router
from penstock.core.schedule import check_schedule
from penstock.model import (
    DEFAULT_NAMESPACE,
    Binding,
    ExchangeConfig,
    GroupConfig,
    QueueConfig,
    check_name,
    make_config,
    suggestion,
)
from penstock.model.errors import InvalidArgument, PenstockError
from penstock.toml_file import FileProblems, KeyPath, TomlFile
from penstock.wire.http.arguments import ScheduleRequest

TABLES: Final = ("queues", "exchanges", "schedules", "namespaces")

Options = dict[str, Any]
Found = TypeVar("Found")


class Wanted(msgspec.Struct, frozen=True):
    """The options that a file names for something, and the place where it does."""

    options: Options
    where: str


class WantedQueue(Wanted, frozen=True):
    groups: dict[str, Wanted]


class WantedBinding(msgspec.Struct, frozen=True):
    binding: Binding
    where: str


class WantedExchange(Wanted, frozen=True):
    bindings: list[WantedBinding]


class World(msgspec.Struct):
    """What a file declares in one namespace."""

    queues: dict[str, WantedQueue] = msgspec.field(default_factory=dict)
    exchanges: dict[str, WantedExchange] = msgspec.field(default_factory=dict)
    schedules: dict[str, Wanted] = msgspec.field(default_factory=dict)
    """With the options of `declare_schedule`: `message` is a `Message`."""

    def __bool__(self) -> bool:
        return bool(self.queues or self.exchanges or self.schedules)


Declarations = dict[str, World]
"""By namespace."""


def declarations_of(
    toml: TomlFile, problems: list[str], *, others: Collection[str] = (), namespace: str = DEFAULT_NAMESPACE
) -> Declarations:
    """What the file declares; tables that are not within [namespaces.…] belong to `namespace`.

    What is wrong is added to the problems. Top-level names among `others` belong to another reader.
    """
    return _Reader(toml, problems).declarations(namespace, others)


def read_declarations(toml: TomlFile, *, others: Collection[str], namespace: str) -> Declarations:
    """The same for a file that is there for its declarations; raises `FileProblems`."""
    problems = [
        f"{toml.place([name])}: unknown table {name!r}; {suggestion(name, TABLES)}"
        for name in toml.data
        if name not in TABLES and name not in others
    ]
    found = declarations_of(toml, problems, others=others, namespace=namespace)
    if problems:
        raise FileProblems(problems)
    return found


class _Reader:
    def __init__(self, toml: TomlFile, problems: list[str]) -> None:
        self._toml = toml
        self._problems = problems

    def declarations(self, namespace: str, others: Collection[str]) -> Declarations:
        own = {name: table for name, table in self._toml.data.items() if name in TABLES and name not in others}
        spaces = self._table(own.pop("namespaces", {}), ("namespaces",))
        found = {namespace: self._world(own, ())}
        for name, table in self._named(spaces, ("namespaces",), "a namespace"):
            if name == namespace and found[namespace]:
                self._complain(("namespaces", name), f"namespace {name!r} is where the file's other tables are too")
                continue
            found[name] = self._world(table, ("namespaces", name))
        return {name: world for name, world in found.items() if world}

    def _world(self, tables: dict[str, Any], path: KeyPath) -> World:
        for name in tables:
            if name not in TABLES[:3]:
                self._complain((*path, name), f"unknown table {name!r}; {suggestion(name, TABLES[:3])}")
        schedules = self._every(self._schedule, tables, path, "schedules", "a schedule's name")
        world = World(
            self._every(self._queue, tables, path, "queues", "a queue's name"),
            self._every(self._exchange, tables, path, "exchanges", "an exchange's name"),
            {name: schedule for name, schedule in schedules.items() if schedule is not None},
        )
        self._check_bindings(world)
        return world

    # Queues and groups ------------------------------------------------------------------------------------

    def _queue(self, name: str, table: dict[str, Any], path: KeyPath) -> WantedQueue:
        if name.startswith("$"):
            self._complain(path, f"queue {name!r}: names that begin with $ are the system's")
        options = {key: value for key, value in table.items() if key != "groups"}
        if options.get("exclusive") is True:
            self._complain((*path, "exclusive"), "exclusive queues belong to a session; a file cannot declare them")
        good = self._config(path, options, QueueConfig.__struct_fields__, lambda tried: make_config(QueueConfig, tried))
        config = make_config(QueueConfig, good)
        groups = {}
        for group, given in self._named(table.get("groups", {}), (*path, "groups"), "a group's name"):
            inner = (*path, "groups", group)
            self._config(
                inner,
                given,
                GroupConfig.__struct_fields__,
                lambda tried: settings_of(config, make_config(GroupConfig, tried)),
            )
            groups[group] = Wanted(given, self._toml.place(inner))
        return WantedQueue(options, self._toml.place(path), groups)

    def _config(
        self, path: KeyPath, options: Options, known: Collection[str], make: Callable[[Options], object]
    ) -> Options:
        """The options that are good together; each of the others is complained of at its own line."""
        good: Options = {}
        self._has_unknown(path, options, known)
        waiting = {name: value for name, value in options.items() if name in known}
        errors: dict[str, str] = {}
        # One may only be good beside another that stands below it, so go on while some are.
        progress = True
        while waiting and progress:
            progress = False
            for name, value in list(waiting.items()):
                try:
                    make(good | {name: value})
                except PenstockError as error:
                    errors[name] = str(error)
                else:
                    good[name] = waiting.pop(name)
                    progress = True
        for name in waiting:
            self._complain((*path, name), _sentence(name, errors[name]))
        return good

    # Exchanges and bindings -------------------------------------------------------------------------------

    def _exchange(self, name: str, table: dict[str, Any], path: KeyPath) -> WantedExchange:
        options = {key: value for key, value in table.items() if key != "bindings"}
        known = ExchangeConfig.__struct_fields__
        good = self._config(path, options, known, lambda tried: make_config(ExchangeConfig, tried))
        bindings: list[WantedBinding] = []
        listed = table.get("bindings", [])
        if not isinstance(listed, list):
            self._complain((*path, "bindings"), 'bindings is an array: bindings = [{ target = "a-queue" }]')
            listed = []
        for index, given in enumerate(listed):
            binding = self._binding(name, given, (*path, "bindings", index))
            if binding is not None:
                bindings.append(binding)
        return WantedExchange(good, self._toml.place(path), bindings)

    def _binding(self, exchange: str, given: Any, path: KeyPath) -> WantedBinding | None:
        if not isinstance(given, dict):
            self._complain(path, 'a binding is a table: { target = "a-queue", pattern = "…" }')
            return None
        known = [name for name in Binding.__struct_fields__ if name != "exchange"]
        if self._has_unknown(path, given, known, " of a binding"):
            return None
        try:
            return WantedBinding(msgspec.convert(given | {"exchange": exchange}, Binding), self._toml.place(path))
        except msgspec.ValidationError as error:
            self._complain(path, _sentence("a binding", str(error)))
            return None

    def _check_bindings(self, world: World) -> None:
        """Bind them all on a router of their own: it knows what a pattern may be."""
        router = Router(lambda _: True)
        for name, exchange in world.exchanges.items():
            self._tried(exchange.where, router.declare_exchange, name, make_config(ExchangeConfig, exchange.options))
        for exchange in world.exchanges.values():
            for wanted in exchange.bindings:
                target = wanted.binding.target
                if wanted.binding.target_kind == "exchange" and target not in router.exchanges():
                    self._tried(wanted.where, router.declare_exchange, target, ExchangeConfig())
                self._tried(wanted.where, router.bind, wanted.binding)

    def _tried(self, where: str, work: Callable[..., object], *arguments: object) -> None:
        try:
            work(*arguments)
        except PenstockError as error:
            self._problems.append(f"{where}: {error}")

    # Schedules --------------------------------------------------------------------------------------------

    def _schedule(self, name: str, table: dict[str, Any], path: KeyPath) -> Wanted | None:
        if self._has_unknown(path, table, ScheduleRequest.__struct_fields__):
            return None
        try:
            request = msgspec.convert(_with_raw_json(table), ScheduleRequest)
            checked = check_schedule(DEFAULT_NAMESPACE, name, **request.arguments(), now_ms=time.time_ns() // 1_000_000)
        except msgspec.ValidationError as error:
            self._complain((*path, *_inner_path(str(error))), _sentence("a schedule", str(error)))
            return None
        except InvalidArgument as error:
            self._complain((*path, error.argument) if error.argument in table else path, str(error))
            return None
        # As it will be kept: what is written in another way is no difference.
        return Wanted({option: getattr(checked, option) for option in table}, self._toml.place(path))

    # Tables -----------------------------------------------------------------------------------------------

    def _every(
        self,
        read: Callable[[str, dict[str, Any], KeyPath], Found],
        tables: dict[str, Any],
        path: KeyPath,
        kind: str,
        what: str,
    ) -> dict[str, Found]:
        """What is read of each table below [kind.…], by its name."""
        path = (*path, kind)
        return {name: read(name, table, (*path, name)) for name, table in self._named(tables.get(kind, {}), path, what)}

    def _has_unknown(self, path: KeyPath, options: Collection[str], known: Collection[str], of: str = "") -> bool:
        """Complain of options that are not known; whether there were any."""
        unknown = [name for name in options if name not in known]
        for name in unknown:
            self._complain((*path, name), f"unknown option {name!r}{of}; {suggestion(name, known)}")
        return bool(unknown)

    def _named(self, table: Any, path: KeyPath, what: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """The tables in a table, with names that are good."""
        for name, inner in self._table(table, path).items():
            try:
                check_name(name, what)
            except PenstockError as error:
                self._complain((*path, name), str(error))
                continue
            yield name, self._table(inner, (*path, name))

    def _table(self, value: Any, path: KeyPath) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        title = ".".join(map(str, path))
        self._complain(path, f"{title} is a table; write [{title}]")
        return {}

    def _complain(self, path: KeyPath, problem: str) -> None:
        self._problems.append(f"{self._toml.place(path)}: {problem}")


_AT: Final = re.compile(r" - at `\$\.?([^`]*)`$")


def _sentence(name: str, error: str) -> str:
    """What the checks of configurations say, without their class's name and path."""
    error = _AT.sub("", re.sub(r"^\w+Config: ", "", error)).replace("`", "")
    return error if error.startswith(name) else f"{name}: {error[:1].lower()}{error[1:]}"


def _inner_path(error: str) -> list[str]:
    found = _AT.search(error)
    return re.findall(r"\w+", found[1]) if found else []


def _with_raw_json(table: dict[str, Any]) -> dict[str, Any]:
    """TOML has no raw JSON: `payload_json` may be any value of it, and is written as JSON."""
    message = table.get("message")
    if not isinstance(message, dict) or "payload_json" not in message:
        return table
    raw = msgspec.Raw(msgspec.json.encode(message["payload_json"]))
    return table | {"message": message | {"payload_json": raw}}
