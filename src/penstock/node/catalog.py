"""What was declared: queues with their lanes and groups, exchanges, bindings and schedules, of every namespace.

Marks (`marks.py`) and staged transactions (`node/staging/records.py`) are kept beside them, in the same table and the
same way.

In memory, built from catalog rows. A change is first a row in a commit and only afterwards, when that commit
is durable, a change here: nobody is told of a queue that a crash could take back.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from penstock.core.group.settings import Settings, settings_of
from penstock.core.routing.router import Router
from penstock.core.schedule import ScheduleDocument
from penstock.model import Binding, ExchangeConfig, GroupConfig, QueueConfig
from penstock.model.errors import NotFound, StoreCorrupt, Unavailable
from penstock.model.rows import SLOTS, CatalogRow, slot_of
from penstock.node.limits import ANY_SIZES, Sizes
from penstock.node.session import Session
from penstock.node.staging.records import Stages, Stored

SETTINGS_SHARED_MAX = 1_000
EPHEMERAL_FROM = 1 << 48
"""Ids from here on belong to ephemeral queues: never stored, never loaded."""


NOBODY: Final[Mapping[tuple[str, str], Session | None]] = {}
"""The consumers of a queue that has none; shared, for most have none."""
_NO_NAMES: dict[int, str] = {}
"""Shared by all queues whose groups nobody has looked for by their ids."""


@dataclass(eq=False, repr=False, slots=True)
class Group:
    """A declared group."""

    id: int
    name: str
    config: GroupConfig
    settings: Settings


class Queue:
    """A declared queue."""

    __slots__ = (
        "_names",
        "coming",
        "config",
        "consumers",
        "deleting",
        "groups",
        "had_consumer",
        "id",
        "lanes",
        "name",
        "namespace",
        "only_consumer",
        "rotation",
        "session",
        "sizes",
        "slot",
        "used_ms",
    )

    def __init__(
        self,
        id: int,
        namespace: str,
        name: str,
        config: QueueConfig,
        lanes: tuple[int, ...],
        sizes: Sizes = ANY_SIZES,
    ) -> None:
        self.id = id
        self.namespace = namespace
        self.name = name
        self.config = config
        self.sizes = sizes
        """What the server takes."""
        self.lanes = lanes
        self.slot = slots_of(lanes)
        """Where all its lanes are; -1 where they are in several, as versions before clusters made them."""
        self.groups: dict[str, Group] = {}
        self._names: dict[int, str] = _NO_NAMES
        """Names of groups by id, to find these sooner: what it says is believed where the group has the id."""
        self.coming: dict[int, Group] = {}
        """Groups whose declaration is on its way: lanes know them already, and things happen to them."""
        self.deleting = False
        self.rotation = 0
        self.session: Session | None = None
        self.consumers: Mapping[tuple[str, str], Session | None] = NOBODY
        """(group, name) of those that said they are there, with their session."""
        self.had_consumer = False
        self.only_consumer: tuple[str, str] | None = None
        """The consumer beside which no other may be."""
        self.used_ms = 0

    @property
    def sizes_max(self) -> Sizes:
        """How many bytes may be published to it."""
        return Sizes(self.message_bytes_max, self.sizes.batch)

    @property
    def message_bytes_max(self) -> int:
        """Bytes of the payload of one message: as the queue says, within what the server takes."""
        most, own = self.sizes.message, self.config.max_message_bytes
        return most if own is None or own > most else own

    def settings(self) -> dict[int, Settings]:
        """The settings of its groups by id, as lanes want them."""
        return {group.id: group.settings for group in self.groups.values()}

    def index_of(self, lane: int) -> int:
        """One of its lanes as users name it: 0 for the first. Lane ids stay inside of the node."""
        return 0 if len(self.lanes) == 1 else bisect_left(self.lanes, lane)  # they were given by rising number

    def group_by_id(self, id: int) -> Group | None:
        group = self.groups.get(self._names.get(id, ""))
        if group is not None and group.id == id:
            return group
        for group in self.groups.values():
            if group.id == id:
                self._names = {group.id: group.name for group in self.groups.values()}
                return group
        return self.coming.get(id)


def slots_of(lanes: tuple[int, ...]) -> int:
    slots = {slot_of(lane) for lane in lanes}
    return slots.pop() if len(slots) == 1 else -1


class QueueDocument(msgspec.Struct, omit_defaults=True):
    config: QueueConfig
    lanes: tuple[int, ...]
    session: str | None = None
    """The name of the session that has it, if it is exclusive,"""
    holder: int = 0
    """and the process that has the session; 0 as written by versions that did not tell, whose process is gone."""


class MarkDocument(msgspec.Struct, frozen=True):
    """A mark: its value is JSON text, as it was written."""

    version: int
    value: bytes
    updated_ms: int


_queue_decoder = msgspec.json.Decoder(QueueDocument)
_group_decoder = msgspec.json.Decoder(GroupConfig)
_exchange_decoder = msgspec.json.Decoder(ExchangeConfig)
binding_of = msgspec.msgpack.Decoder(Binding).decode
_schedule_decoder = msgspec.msgpack.Decoder(ScheduleDocument)
_mark_decoder = msgspec.msgpack.Decoder(MarkDocument)


def queue_row(queue: Queue, config: QueueConfig) -> CatalogRow:
    holder, session = (0, None) if queue.session is None else queue.session
    document = msgspec.json.encode(QueueDocument(config, queue.lanes, session, holder))
    return CatalogRow("queue", queue.id, 0, queue.namespace, queue.name, document)


def group_row(queue: Queue, id: int, name: str, config: GroupConfig) -> CatalogRow:
    return CatalogRow("group", id, queue.id, queue.namespace, name, msgspec.json.encode(config))


def exchange_row(id: int, namespace: str, name: str, config: ExchangeConfig) -> CatalogRow:
    return CatalogRow("exchange", id, 0, namespace, name, msgspec.json.encode(config))


def binding_row(id: int, namespace: str, binding: Binding, queue_id: int = 0) -> CatalogRow:
    """`queue_id` is the target's: a queue of the same name that is declared later is another one."""
    return CatalogRow("binding", id, queue_id, namespace, binding.exchange, binding_document(binding))


def binding_document(binding: Binding) -> bytes:
    """MessagePack, not JSON: its headers may be bytes, times and NaN, and must come back as they were."""
    return msgspec.msgpack.encode(binding)


def schedule_row(id: int, namespace: str, name: str, document: ScheduleDocument) -> CatalogRow:
    """MessagePack for the same reason: its message has a payload and headers."""
    return CatalogRow("schedule", id, 0, namespace, name, msgspec.msgpack.encode(document))


def mark_row(id: int, namespace: str, name: str, document: MarkDocument) -> CatalogRow:
    return CatalogRow("mark", id, 0, namespace, name, msgspec.msgpack.encode(document))


Thing = TypeVar("Thing")


class Named(dict[tuple[str, str], Thing]):
    """Things by namespace and name, which knows how many each namespace has."""

    def __init__(self) -> None:
        super().__init__()
        self.namespaces: dict[str, int] = {}

    def __setitem__(self, place: tuple[str, str], thing: Thing) -> None:
        if place not in self:
            self.namespaces[place[0]] = self.namespaces.get(place[0], 0) + 1
        super().__setitem__(place, thing)

    def __delitem__(self, place: tuple[str, str]) -> None:
        super().__delitem__(place)
        self.namespaces[place[0]] -= 1
        if not self.namespaces[place[0]]:
            del self.namespaces[place[0]]

    def remove(self, place: tuple[str, str]) -> None:
        """Unless it is gone already."""
        if place in self:
            del self[place]


class Catalog:
    """Everything declared, by namespace and name."""

    def __init__(self, sizes: Sizes = ANY_SIZES) -> None:
        self.sizes = sizes
        """What the server takes."""
        self.queues: Named[Queue] = Named()
        self.by_id: dict[int, Queue] = {}
        self.by_lane: dict[int, Queue] = {}
        self.routers: dict[str, Router] = {}
        self.exchange_ids: Named[int] = Named()
        self.binding_ids: dict[tuple[str, bytes], int] = {}
        self.schedules: Named[Stored[ScheduleDocument]] = Named()
        self.marks: dict[tuple[str, str], Stored[MarkDocument]] = {}
        self.marks_bytes = 0
        self.stages = Stages()
        self._settings: dict[tuple[QueueConfig, GroupConfig], Settings] = {}
        self.orphans: dict[int, None] = {}
        """Ids of bindings to queues that are gone: their rows are the registrar's to delete."""
        self.last_id = 0
        """The highest id that was seen; those to come are above it."""
        self._next_id = 0
        self._ids_end = 0
        self._last_ephemeral_id = 0
        self.on_put: list[Callable[[Sequence[CatalogRow]], None]] = []
        """Told of rows that were taken in."""
        self.on_queue_removed: list[Callable[[Queue], None]] = []
        self.on_group_removed: list[Callable[[Queue, Group], None]] = []
        self.on_replaced: list[Callable[[], None]] = []
        """Told that everything was read again from the store, after a failed commit."""

    # Ids --------------------------------------------------------------------------------------------------

    def new_id(self, *, ephemeral: bool = False) -> int:
        """An id that nothing in this catalog has or had."""
        if ephemeral:
            self._last_ephemeral_id += 1
            return EPHEMERAL_FROM + self._last_ephemeral_id
        if self._next_id >= self._ids_end:
            raise Unavailable("there are no ids left that were reserved for this node; try again")
        self._next_id += 1
        return self._next_id - 1

    def new_lane(self, slot: int, *, ephemeral: bool = False) -> int:
        """The id of a lane in a slot. Lanes of older builds have ids of their own, all below these."""
        if ephemeral:
            return EPHEMERAL_FROM + (self.new_id(ephemeral=True) - EPHEMERAL_FROM) * SLOTS + slot
        return self.new_id() * SLOTS + slot

    @property
    def ids_left(self) -> int:
        return self._ids_end - self._next_id

    def reserved(self, first: int, count: int) -> None:
        """These ids are for this catalog alone; what is left of the ones before is not used."""
        self._next_id, self._ids_end = first, first + count

    def saw_id(self, id: int) -> None:
        if id < EPHEMERAL_FROM:
            self.last_id = max(self.last_id, id)

    # Look-ups ---------------------------------------------------------------------------------------------

    def queue(self, namespace: str, name: str) -> Queue:
        queue = self.queues.get((namespace, name))
        if queue is None or queue.deleting:
            where = "" if namespace == "default" else f" in namespace {namespace!r}"
            raise NotFound(f"there is no queue {name!r}{where}; declare it first")
        return queue

    def knows_namespace(self, namespace: str) -> bool:
        """Whether a queue, an exchange or a schedule is declared in it."""
        tables = (self.queues, self.exchange_ids, self.schedules)
        return any(namespace in table.namespaces for table in tables)

    def in_slots(self, slots: Set[int]) -> list[Queue]:
        """The queues of these slots."""
        return [queue for queue in self.by_id.values() if queue.slot in slots]

    def group_ids(self) -> set[int]:
        return {group.id for queue in self.by_id.values() for group in queue.groups.values()}

    def router(self, namespace: str) -> Router:
        router = self.routers.get(namespace)
        if router is None:
            router = self.routers[namespace] = Router(lambda name: self._routable(namespace, name))
        return router

    def _routable(self, namespace: str, name: str) -> bool:
        queue = self.queues.get((namespace, name))
        return queue is not None and not queue.deleting and not name.startswith("$")

    def _settings_of(self, queue: QueueConfig, group: GroupConfig) -> Settings:
        """Settings are shared: thousands of queues are declared with the same options."""
        settings = self._settings.get((queue, group))
        if settings is None:
            if len(self._settings) >= SETTINGS_SHARED_MAX:
                self._settings.clear()
            settings = self._settings[queue, group] = settings_of(queue, group)
        return settings

    # Changes, after their commit --------------------------------------------------------------------------

    def put(self, rows: Sequence[CatalogRow]) -> None:
        """Take rows in: those of queues and exchanges before what hangs on them."""
        ranked = sorted(rows, key=lambda row: (_RANK.get(row.kind, 9), row.id))
        for row in ranked:
            try:
                self._put(row)
            except (msgspec.DecodeError, msgspec.ValidationError, KeyError) as error:
                raise StoreCorrupt(f"the {row.kind} {row.name!r} (id {row.id}) cannot be read: {error}") from None
        for tell in self.on_put:
            tell(rows)

    def _put(self, row: CatalogRow) -> None:
        self.saw_id(row.id)
        if row.kind == "queue":
            self._put_queue(row)
        elif row.kind == "ids":
            self.saw_id(msgspec.msgpack.decode(row.document, type=int))
        elif row.kind == "group":
            queue = self.by_id[row.parent]
            config = _group_decoder.decode(row.document)
            queue.groups[row.name] = Group(row.id, row.name, config, self._settings_of(queue.config, config))
        elif row.kind == "exchange":
            self.router(row.namespace).declare_exchange(row.name, _exchange_decoder.decode(row.document))
            self.exchange_ids[row.namespace, row.name] = row.id
        elif row.kind == "binding":
            self._put_binding(row)
        elif row.kind == "schedule":
            document = _schedule_decoder.decode(row.document)
            self.schedules[row.namespace, row.name] = Stored(row.id, document)
        elif row.kind == "mark":
            self.remove_mark(row.namespace, row.name)
            mark = _mark_decoder.decode(row.document)
            self.marks[row.namespace, row.name] = Stored(row.id, mark)
            self.marks_bytes += len(mark.value)
        elif row.kind in ("staged", "chunk"):
            self.stages.put(row)
        else:
            raise StoreCorrupt(f"the catalog has a row of the unknown kind {row.kind!r}")

    def _put_binding(self, row: CatalogRow) -> None:
        binding = binding_of(row.document)
        queue = self.queues.get((row.namespace, binding.target)) if row.parent else None
        if row.parent and (queue is None or queue.id != row.parent):
            self.orphans[row.id] = None
            return
        self.router(row.namespace).bind(binding)
        self.binding_ids[row.namespace, row.document] = row.id

    def _put_queue(self, row: CatalogRow) -> None:
        document = _queue_decoder.decode(row.document)
        queue = self.by_id.get(row.id)
        if queue is None:
            queue = Queue(row.id, row.namespace, row.name, document.config, document.lanes, self.sizes)
            queue.session = None if document.session is None else Session(document.holder, document.session)
            self.queues[row.namespace, row.name] = queue
            self.by_id[row.id] = queue
            for lane in document.lanes:
                self.by_lane[lane] = queue
                if lane <= row.id + 1:  # of an older build, which numbered lanes and everything else together
                    self.saw_id(lane)
            return
        queue.config = document.config
        for group in queue.groups.values():
            group.settings = self._settings_of(queue.config, group.config)

    def slot_of_row(self, row: CatalogRow) -> int:
        """The slot of a queue that is not known yet."""
        return slots_of(_queue_decoder.decode(row.document).lanes) if row.document else -1

    def rows(self) -> Iterator[CatalogRow]:
        """What every stored thing is called; documents only where they are part of that."""
        for queue in self.by_id.values():
            if queue.id < EPHEMERAL_FROM:
                yield CatalogRow("queue", queue.id, 0, queue.namespace, queue.name, b"")
                for group in queue.groups.values():
                    yield CatalogRow("group", group.id, queue.id, queue.namespace, group.name, b"")
        for (namespace, document), id in self.binding_ids.items():
            if id < EPHEMERAL_FROM:
                yield CatalogRow("binding", id, 0, namespace, "", document)
        for id in self.orphans:
            yield CatalogRow("binding", id, 0, "", "", b"")
        for (namespace, name), id in self.exchange_ids.items():
            yield CatalogRow("exchange", id, 0, namespace, name, b"")
        for (namespace, name), schedule in self.schedules.items():
            yield CatalogRow("schedule", schedule.id, 0, namespace, name, b"")
        for (namespace, name), mark in self.marks.items():
            yield CatalogRow("mark", mark.id, 0, namespace, name, b"")
        yield from self.stages.rows()

    def remove_row(self, row: CatalogRow) -> None:
        """A schedule, a mark or something staged is gone, unless another has its name by now."""
        place = (row.namespace, row.name)
        if row.kind == "schedule":
            if place in self.schedules and self.schedules[place].id == row.id:
                del self.schedules[place]
        elif row.kind == "mark":
            if place in self.marks and self.marks[place].id == row.id:
                self.remove_mark(*place)
        elif row.kind in ("staged", "chunk"):
            self.stages.remove_row(row)

    def remove_mark(self, namespace: str, name: str) -> None:
        mark = self.marks.pop((namespace, name), None)
        if mark is not None:
            self.marks_bytes -= len(mark.document.value)

    def remove_queue(self, queue: Queue) -> None:
        del self.queues[queue.namespace, queue.name]
        del self.by_id[queue.id]
        for lane in queue.lanes:
            del self.by_lane[lane]
        for tell in self.on_queue_removed:
            tell(queue)

    def remove_group(self, queue: Queue, group: Group) -> None:
        """Unless another has its name by now."""
        known = queue.groups.get(group.name)
        if known is not None and known.id == group.id:
            del queue.groups[group.name]
            for tell in self.on_group_removed:
                tell(queue, group)

    def replace(self, fresh: Catalog, ephemeral: Iterable[Queue]) -> None:
        """Become what was read from the store, with the ephemeral queues that only this node knows.

        Queues that are still there keep their identity: sessions, consumers and rotation stay theirs.
        """
        for id, queue in fresh.by_id.items():
            known = self.by_id.get(id)
            if known is not None:
                known.config, known.groups, known.deleting = queue.config, queue.groups, False
                fresh.queues[queue.namespace, queue.name] = known
                fresh.by_id[id] = known
                for lane in known.lanes:
                    fresh.by_lane[lane] = known
        for queue in ephemeral:
            fresh.queues[queue.namespace, queue.name] = queue
            fresh.by_id[queue.id] = queue
            for lane in queue.lanes:
                fresh.by_lane[lane] = queue
        unstored = self._unstored_bindings()
        self.queues, self.by_id, self.by_lane = fresh.queues, fresh.by_id, fresh.by_lane
        self.exchange_ids, self.binding_ids = fresh.exchange_ids, fresh.binding_ids
        self.schedules = fresh.schedules
        self.marks, self.marks_bytes, self.stages = fresh.marks, fresh.marks_bytes, fresh.stages
        self.routers = {}
        for namespace, router in fresh.routers.items():
            own = self.router(namespace)
            for name, config in router.exchanges().items():
                own.declare_exchange(name, config)
            for name in router.exchanges():
                for binding in router.bindings(name):
                    own.bind(binding)
        for namespace, binding, id in unstored:
            if (namespace, binding.exchange) in self.exchange_ids and self._routable(namespace, binding.target):
                self.router(namespace).bind(binding)
                self.binding_ids[namespace, binding_document(binding)] = id
        self.orphans = fresh.orphans
        self.saw_id(fresh.last_id)
        for tell in self.on_replaced:
            tell()

    def _unstored_bindings(self) -> list[tuple[str, Binding, int]]:
        """(namespace, binding, id) of those to ephemeral queues: only this node knows them."""
        return [
            (namespace, binding_of(document), id)
            for (namespace, document), id in self.binding_ids.items()
            if id >= EPHEMERAL_FROM
        ]

    def remove_bindings(self, namespace: str, bindings: Iterable[Binding]) -> None:
        for binding in bindings:
            self.binding_ids.pop((namespace, binding_document(binding)), None)

    def orphan_bindings(self, namespace: str, bindings: Iterable[Binding]) -> None:
        """The same for those of a queue that is gone, whose rows are still there."""
        for binding in bindings:
            id = self.binding_ids.pop((namespace, binding_document(binding)), None)
            if id is not None and id < EPHEMERAL_FROM:
                self.orphans[id] = None

    def binding_id(self, namespace: str, binding: Binding) -> int | None:
        return self.binding_ids.get((namespace, binding_document(binding)))


_RANK = {"queue": 0, "group": 1, "exchange": 2, "binding": 3, "schedule": 4, "mark": 5, "staged": 6, "chunk": 7}
