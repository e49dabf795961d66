"""What jobs on a lake share: which server it belongs to, its tables, and where its lanes stand.

Asks the server; Spark comes in only where a job runs tasks.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeVar

import msgspec
from pyspark.sql import DataFrame, SparkSession

from penstock.client.sync import Client
from penstock.model import DEFAULT_NAMESPACE, EVENTS_PATTERN, EVENTS_QUEUE
from penstock.model.errors import InvalidArgument, MarkMoved, NotFound
from penstock.spark.clients import Access, client_of
from penstock.spark.lake.errors import LakeMissing, told_by_tasks
from penstock.spark.lake.layout import EVENTS, MESSAGES, SCHEMAS, STATS, table_of
from penstock.spark.lake.storage import Storage
from penstock.spark.lake.table import LakeTable
from penstock.spark.source.heads import HeadReader
from penstock.spark.source.options import QueueChoice, queue_choice
from penstock.spark.source.planning import Heads

Argument = TypeVar("Argument")
Result = TypeVar("Result")

SERVER_MARK: Final = "penstock-server"
"""The mark that holds a server's identity (of one namespace): made up once, and then never changed."""


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where the server is."""

    url: str
    """The server, or several nodes with commas in between."""
    token: str | None = None
    namespace: str = DEFAULT_NAMESPACE

    @property
    def access(self) -> Access:
        return Access(self.url, self.token, self.namespace)

    @property
    def client(self) -> Client:
        return client_of(self.access)

    def source(self) -> dict[str, str]:
        """The options of the source and the sink that say where the server is."""
        token = {} if self.token is None else {"token": self.token}
        return {"url": self.url, "namespace": self.namespace, **token}


class LakeOptions(ServerOptions, frozen=True, kw_only=True):
    """Where the server and the lake are: what every job on both is told."""

    lake: str
    """A folder, or the URL of an object store."""
    queues: str = "*"
    """Names, patterns or both, with commas in between, as the source's option `queue` takes them."""
    events: bool = True
    """Delivery events too: `$events`, and the queues beside it that other servers write theirs to."""
    storage_options: dict[str, str] = {}
    """For the object store, where its credentials are not in the environment."""

    @property
    def choice(self) -> QueueChoice:
        """The queues, with those of every server's events among them where events are wanted."""
        found = queue_choice(self.queues)
        if not self.events:
            return found
        names, patterns = (*found.names, EVENTS_QUEUE), (*found.patterns, EVENTS_PATTERN)
        return QueueChoice(tuple(dict.fromkeys(names)), tuple(dict.fromkeys(patterns)), self.queues)

    def heads(self) -> Heads:
        """The chosen queues as the server has them; a queue given by name must exist."""
        heads = HeadReader(self.access, self.choice).now()
        HeadReader(self.access, queue_choice(self.queues)).check_names(heads)
        return heads

    def storage(self, table: str) -> Storage:
        return Storage(self.lake, self.storage_options).under(table)


def server_identity(client: Client) -> str:
    """What tells this server's namespace from every other one, also from one that has the same address later."""
    while True:
        try:
            return str(client.mark(SERVER_MARK).value["id"])
        except NotFound:
            pass
        try:
            client.put_mark(SERVER_MARK, {"id": uuid.uuid4().hex}, expected_version=0)
        except MarkMoved:  # another job was first
            continue


def tables_to_write(options: LakeOptions, heads: Heads) -> dict[str, LakeTable]:
    """The tables that these queues land in, made where they are missing."""
    server = server_identity(options.client)
    return {
        name: LakeTable.open_for(options.storage(name), SCHEMAS[name], server, options.namespace)
        for name in sorted({table_of(queue) for queue in heads})
    }


def tables_to_read(options: LakeOptions) -> dict[str, LakeTable]:
    """The tables that are there, if they are this server's; at least the messages or the events must be."""
    server = server_identity(options.client)
    found: dict[str, LakeTable] = {}
    missing: LakeMissing | None = None
    for name in (MESSAGES, EVENTS):
        try:
            found[name] = LakeTable.open(options.storage(name))
            found[name].check_owner(server, options.namespace)
        except LakeMissing as error:
            missing = error
    if not found:
        raise LakeMissing(f"there is no lake at {options.lake}: has anything been archived there?") from missing
    return found


def tables_there(lake: Storage) -> dict[str, LakeTable]:
    """The tables that a lake has, whosever it is."""
    found: dict[str, LakeTable] = {}
    for name in (MESSAGES, EVENTS, STATS):
        with suppress(LakeMissing):
            found[name] = LakeTable.open(lake.under(name))
    return found


def marks(tables: Mapping[str, LakeTable], heads: Heads) -> dict[str, dict[int, int | None]]:
    """The lake's mark of every lane, by queue and lane; None where the lake has nothing of it."""
    return {
        queue: {
            lane: tables[table_of(queue)].mark(head.id, lane) if table_of(queue) in tables else None
            for lane in head.lanes
        }
        for queue, head in heads.items()
    }


def offsets_json(offsets: Offsets) -> str:
    """The source's option for where a read starts or ends."""
    return json.dumps(
        {queue: {str(lane): offset for lane, offset in lanes.items()} for queue, lanes in offsets.items()}
    )


Offsets = Mapping[str, Mapping[int, int]]
"""By queue and lane."""


def read_log(
    spark: SparkSession, options: ServerOptions, start: Offsets, end: Offsets, columns: Sequence[str], **more: str
) -> DataFrame:
    """The broker's rows of every lane of some queues, from offsets to offsets; `more` are options of the source."""
    asked = {
        **options.source(),
        "queue": queues_json(start),
        "columns": ",".join(columns),
        "startingOffsets": offsets_json(start),
        "endingOffsets": offsets_json(end),
        **more,
    }
    return spark.read.format("penstock").options(**asked).load()


def queues_json(queues: Iterable[str]) -> str:
    """The source's option for exactly these queues, whatever they are called."""
    return json.dumps(list(queues))


def check_positive(options: msgspec.Struct, *names: str) -> None:
    """Raise where an option that is given is not more than 0."""
    for name in names:
        value = getattr(options, name)
        if value is not None and not value > 0:
            raise InvalidArgument(f"{name} is {value}; it must be more than 0")


def check_least(options: msgspec.Struct, **least: int) -> None:
    """Raise where an option that is given is less than this."""
    for name, low in least.items():
        value = getattr(options, name)
        if value is not None and value < low:
            raise InvalidArgument(f"{name} is {value}; it must be {low} or more")


def in_tasks(
    spark: SparkSession, function: Callable[[Argument], Result], arguments: Sequence[Argument]
) -> list[Result]:
    """Call a function on the executors, once for each argument; a task for each, in any order, results in theirs."""
    if not arguments:
        return []
    with told_by_tasks():
        found: list[Result] = spark.sparkContext.parallelize(arguments, len(arguments)).map(function).collect()
        return found
