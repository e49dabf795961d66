"""Transactional enqueue: publish inside your own database transaction, on the connection that you already have.

    with psycopg.connect(…) as connection:
        connection.execute("UPDATE orders SET state = 'paid' WHERE id = %s", [42])
        penstock.enqueue.enqueue(connection, "mail", b"order 42 is paid")

Rolled back, nothing is published; committed, it is published exactly once. This needs the PostgreSQL database that the
server's store is in, or the MySQL or MariaDB server that it is on, and no Penstock server: a node takes the messages
when the transaction has committed. Connections, cursors and sessions of psycopg, asyncpg, PyMySQL, SQLAlchemy and
Django are told apart by their type's module; none of these libraries is imported here, and nothing of the broker. All
messages of a call travel as one bound value of one statement.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypedDict, Unpack

from penstock.model import (
    BATCH_BYTES_DEFAULT,
    BATCH_MESSAGES_MAX,
    DEFAULT_NAMESPACE,
    Headers,
    Message,
    check_message,
    check_name,
)
from penstock.model.errors import InvalidArgument, MessageTooLarge
from penstock.model.typed_headers import json_headers

DEFAULT_SCHEMA: Final = "penstock"

_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_TEXTS: Final = ("key", "partition", "dedup_id", "content_type", "correlation_id", "trace_id")
_NUMBERS: Final = ("priority", "delay_ms", "not_before_ms", "ttl_ms")

_MYSQL: Final = """
INSERT INTO {schema}.enqueued (
    namespace, queue, exchange, `key`, payload, `partition`, headers, priority, delay_ms, not_before_ms, ttl_ms,
    dedup_id, content_type, correlation_id, trace_id, mandatory
)
SELECT m.namespace, m.queue, m.exchange, m.routing_key, from_base64(m.payload_base64), m.partition_key, m.headers,
    coalesce(m.priority, 0), coalesce(m.delay_ms, 0), coalesce(m.not_before_ms, 0), m.ttl_ms, m.dedup_id,
    m.content_type, m.correlation_id, m.trace_id, coalesce(m.mandatory, 'true') NOT IN ('false', '0')
FROM JSON_TABLE({place}, '$[*]' COLUMNS (
    number FOR ORDINALITY, namespace longtext PATH '$.namespace', queue longtext PATH '$.queue',
    exchange longtext PATH '$.exchange', routing_key longtext PATH '$.key',
    payload_base64 longtext PATH '$.payload_base64', partition_key longtext PATH '$.partition',
    headers longtext PATH '$.headers', priority integer PATH '$.priority', delay_ms bigint PATH '$.delay_ms',
    not_before_ms bigint PATH '$.not_before_ms', ttl_ms bigint PATH '$.ttl_ms', dedup_id longtext PATH '$.dedup_id',
    content_type longtext PATH '$.content_type', correlation_id longtext PATH '$.correlation_id',
    trace_id longtext PATH '$.trace_id', mandatory varchar(8) PATH '$.mandatory'
)) AS m ORDER BY m.number"""

STATEMENTS: Final = {
    "postgresql": "SELECT {schema}.publish_many(CAST({place} AS json))",
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
}
"""How each kind of database is told: the one value is a JSON array of messages."""


class MessageFields(TypedDict, total=False):
    """What a message may have besides its payload; see `penstock.Message`."""

    partition: str | None
    key: str | None
    headers: Headers | None
    priority: int
    delay_ms: int
    not_before_ms: int
    ttl_ms: int | None
    dedup_id: str | None
    content_type: str | None
    correlation_id: str | None
    trace_id: str | None


class Target(TypedDict, total=False):
    """Where messages go, besides the queue."""

    exchange: str | None
    """In place of a queue, which is None then."""
    mandatory: bool
    """A message for which the exchange has no queue is kept as failed; otherwise dropped. True unless given."""
    namespace: str
    schema: str
    """The one of the server's store; of a MySQL or MariaDB store, its database. `penstock` unless given."""


class Options(Target, MessageFields, total=False):
    """Where one message goes, and what it has besides its payload."""


# What applications call ----------------------------------------------------------------------------------


def enqueue(connection: Any, queue: str | None, message: bytes | Message, **options: Unpack[Options]) -> None:
    """Publish a message to a queue when the connection's transaction commits.

    `connection` is one of psycopg, PyMySQL, SQLAlchemy (also a Session) or Django, or a cursor of psycopg, PyMySQL or
    Django; for those of asyncio there is `enqueue_async`. The message is a payload with its fields, or a
    `penstock.Message`.
    """
    made, target = _message_and_target(message, options)
    enqueue_many(connection, queue, [made], **target)


def enqueue_many(
    connection: Any, queue: str | None, messages: Iterable[bytes | Message], **target: Unpack[Target]
) -> int:
    """Publish messages in their order when the connection's transaction commits, by one statement; how many."""
    way = _way(connection)
    if way.is_async:
        raise InvalidArgument(f"{_kind(connection)} is for asyncio: await enqueue_async or enqueue_many_async instead")
    statement, document, count = _prepared(way, connection, queue, messages, **target)
    if count:
        way.run(connection, statement, document)
    return count


async def enqueue_async(
    connection: Any, queue: str | None, message: bytes | Message, **options: Unpack[Options]
) -> None:
    """`enqueue` for connections of asyncio: those of asyncpg, psycopg's AsyncConnection and AsyncCursor, SQLAlchemy's
    AsyncConnection and AsyncSession.
    """
    made, target = _message_and_target(message, options)
    await enqueue_many_async(connection, queue, [made], **target)


async def enqueue_many_async(
    connection: Any, queue: str | None, messages: Iterable[bytes | Message], **target: Unpack[Target]
) -> int:
    """`enqueue_many` for connections of asyncio."""
    way = _way(connection)
    if not way.is_async:
        raise InvalidArgument(f"{_kind(connection)} is not for asyncio: call enqueue or enqueue_many instead")
    statement, document, count = _prepared(way, connection, queue, messages, **target)
    if count:
        await way.run(connection, statement, document)
    return count


def _prepared(
    way: Way,
    connection: Any,
    queue: str | None,
    messages: Iterable[bytes | Message],
    *,
    exchange: str | None = None,
    mandatory: bool = True,
    namespace: str = DEFAULT_NAMESPACE,
    schema: str = DEFAULT_SCHEMA,
) -> tuple[str, str, int]:
    """The statement, its one value, and how many messages are in it."""
    made = [_message(message, {}) for message in messages]
    document = _document(made, queue, exchange, mandatory, namespace)
    return _statement(way, connection, schema) if made else "", document, len(made)


# Messages as a document ----------------------------------------------------------------------------------


def _message_and_target(message: bytes | Message, options: Options) -> tuple[Message, Target]:
    target: Any = {name: value for name, value in options.items() if name in Target.__annotations__}
    fields: Any = {name: value for name, value in options.items() if name not in target}
    return _message(message, fields), target


def _message(message: bytes | Message, fields: MessageFields) -> Message:
    if isinstance(message, Message):
        if fields:
            raise InvalidArgument(f"{', '.join(fields)} cannot be given beside a Message: put it into the message")
        return message
    if not isinstance(message, bytes):
        raise InvalidArgument(
            f"a message must be bytes or a penstock.Message, not {type(message).__name__}; encode text with .encode()"
        )
    try:
        return Message(message, **fields)
    except TypeError as error:
        raise InvalidArgument(f"a message cannot be made: {error}") from None


def _document(
    messages: Sequence[Message], queue: str | None, exchange: str | None, mandatory: bool, namespace: str
) -> str:
    """The JSON array that stands for messages, in the words of the HTTP API."""
    if (queue is None) == (exchange is None):
        given = "neither" if queue is None else "both"
        raise InvalidArgument(f"messages need one of queue and exchange to be published to, not {given}")
    target: dict[str, Any] = {"namespace": check_name(namespace, "namespace")}
    if queue is not None:
        target["queue"] = check_name(queue, "a queue's name")
    else:
        target |= {"exchange": check_name(exchange, "an exchange's name"), "mandatory": bool(mandatory)}
    if len(messages) > BATCH_MESSAGES_MAX:
        raise MessageTooLarge(f"{len(messages)} messages in one call; the limit is {BATCH_MESSAGES_MAX}")
    size = 0
    for message in messages:
        check_message(message)
        size += len(message.payload)
    if size > BATCH_BYTES_DEFAULT:
        raise MessageTooLarge(f"{size} bytes in one call; the limit is {BATCH_BYTES_DEFAULT}")
    return _json([target | _members(message) for message in messages])


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _members(message: Message) -> dict[str, Any]:
    members: dict[str, Any] = {"payload_base64": b64encode(message.payload).decode()}
    for name in _TEXTS:
        text = getattr(message, name)
        if text is not None:
            if "\0" in text:
                raise InvalidArgument(f"{name} {text[:40]!r} has a NUL character, which databases do not keep")
            members[name] = text
    members |= {name: getattr(message, name) for name in _NUMBERS if getattr(message, name)}
    if message.ttl_ms == 0:
        members["ttl_ms"] = 0
    if message.headers is not None:
        try:
            # As text in the text: a NUL character is kept in JSON, and by no function that looks into it.
            members["headers"] = _json(json_headers(message.headers))
        except ValueError:
            raise InvalidArgument("a header is NaN or infinite, which no database keeps as JSON") from None
    return members


# Connections ---------------------------------------------------------------------------------------------


class Way(NamedTuple):
    """How a kind of connection is given a statement."""

    is_async: bool
    place: str
    """What stands in the statement for its one value."""
    run: Callable[[Any, str, str], Any]
    """Its result is awaited where the connection is for asyncio."""
    dialect: str | Callable[[Any], str]


def _run_dbapi(connection: Any, statement: str, document: str) -> Any:
    if hasattr(connection, "execute"):  # a cursor, or psycopg's connection
        return connection.execute(statement, [document])
    with connection.cursor() as cursor:
        return cursor.execute(statement, [document])


def _run_asyncpg(connection: Any, statement: str, document: str) -> Any:
    return connection.fetchval(statement, document)


def _run_sqlalchemy(connection: Any, statement: str, document: str) -> Any:
    from sqlalchemy import text  # it is there: the connection is one of its own

    return connection.execute(text(statement), {"messages": document})


def _django_dialect(connection: Any) -> str:
    return str(getattr(connection, "db", connection).vendor)


def _sqlalchemy_dialect(connection: Any) -> str:
    bind = connection.get_bind() if hasattr(connection, "get_bind") else connection
    return str(bind.dialect.name)


_WAYS: Final = {
    ("psycopg", False): Way(False, "%s", _run_dbapi, "postgresql"),
    ("psycopg", True): Way(True, "%s", _run_dbapi, "postgresql"),
    ("asyncpg", True): Way(True, "$1", _run_asyncpg, "postgresql"),
    ("pymysql", False): Way(False, "%s", _run_dbapi, "mysql"),
    ("sqlalchemy", False): Way(False, ":messages", _run_sqlalchemy, _sqlalchemy_dialect),
    ("sqlalchemy", True): Way(True, ":messages", _run_sqlalchemy, _sqlalchemy_dialect),
    ("django", False): Way(False, "%s", _run_dbapi, _django_dialect),
}
_NO_TRANSACTION: Final = frozenset({"Pool", "ConnectionPool", "Engine", "AsyncEngine", "ConnectionHandler"})
"""Types of these libraries that are no connection, but hand them out."""


def _way(connection: Any) -> Way:
    for kind in type(connection).__mro__:
        library = kind.__module__.partition(".")[0]
        if kind.__name__ in _NO_TRANSACTION and library != "builtins":
            break
        is_async = library == "asyncpg" or kind.__name__.lower().startswith("async")
        way = _WAYS.get((library, is_async))
        if way is not None:
            return way
    raise InvalidArgument(
        f"{_kind(connection)} is no connection that can be enqueued on; there are connections and cursors of psycopg, "
        "PyMySQL and Django, connections of asyncpg, connections and sessions of SQLAlchemy"
    )


def _statement(way: Way, connection: Any, schema: str) -> str:
    if not _SCHEMA.fullmatch(schema):
        raise InvalidArgument(
            f"{schema!r} cannot be a schema's name: small letters, digits and underscores, 63 at most"
        )
    dialect = way.dialect if isinstance(way.dialect, str) else way.dialect(connection)
    template = STATEMENTS.get(dialect)
    if template is None:
        raise InvalidArgument(
            f"the connection is to {dialect}; a store that can be enqueued in is of {', '.join(STATEMENTS)}"
        )
    return template.format(schema=schema, place=way.place)


def _kind(connection: Any) -> str:
    return f"{type(connection).__module__}.{type(connection).__qualname__}"
