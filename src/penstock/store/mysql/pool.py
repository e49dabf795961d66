"""Connections to a MySQL or MariaDB server: where it is, threads that use them, and what errors mean to the contract.

PyMySQL does the work, a connection a thread. Knows no table; next stop: `engine.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock.model.errors import InvalidArgument, PenstockError, StoreCorrupt, Unavailable

if TYPE_CHECKING:
    import pymysql

PORT: Final = 3306
GOODBYE_SECONDS: Final = 2.0
SERVER_WAITS_S: Final = 60
"""The server ends a connection that is idle for so long: with it go the locks of a node that was lost."""
IDLE_S: Final = 30.0
"""A connection that was idle for longer is not used again."""
OUT_OF_RANGE: Final = 1690
"""What a fence fails with."""
_NAME_CHARACTERS_MAX: Final = 64
_TLS: Final = ("no", "yes", "unverified")
_OPTIONS: Final = ("tls", "ca", "socket")

# Errors that refuse a statement and undo its transaction. After any other error the outcome is unknown.
_REFUSED: Final = frozenset((1040, 1044, 1045, 1114, 1142, 1143, 1205, 1213, 1290, 1665, 1690, 1836))
_VALUES: Final = frozenset((1264, 1366, 1406, 1153, 1292, 1300, 3140, 4025))
_TABLES: Final = frozenset((1054, 1146, 1932, 1034, 1194, 1030))
_READ_ONLY_HINT: Final = {1290: " (is it a replica?)", 1836: " (is it a replica?)"}

Result = TypeVar("Result")


@dataclass(frozen=True)
class StoreAddress:
    """A URL in its parts."""

    host: str
    port: int
    user: str
    password: str
    database: str
    tls: str
    ca: str | None
    socket: str | None
    label: str
    """For people: no password in it."""

    @classmethod
    def parse(cls, url: str) -> StoreAddress:
        try:
            parts = urlsplit(url)
            port = parts.port or PORT
        except ValueError as error:
            raise InvalidArgument(f"the store's URL cannot be used: {error}") from None
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        for name in query:
            if name not in _OPTIONS:
                raise InvalidArgument(f"{name!r} in the store's URL is no option; there are {', '.join(_OPTIONS)}")
        tls = query.get("tls", "yes" if "ca" in query else "no")
        if tls not in _TLS:
            raise InvalidArgument(f"tls={tls!r} in the store's URL must be one of {', '.join(_TLS)}")
        database = unquote(parts.path.removeprefix("/"))
        if not 0 < len(database) <= _NAME_CHARACTERS_MAX or "/" in database or "\0" in database:
            raise InvalidArgument(
                f"the store's URL names the database {database!r}; as in mysql://user:password@host:3306/penstock it "
                f"needs a name of 1 to {_NAME_CHARACTERS_MAX} characters"
            )
        host = parts.hostname or "localhost"
        return cls(
            host,
            port,
            unquote(parts.username or ""),
            unquote(parts.password or ""),
            database,
            tls,
            query.get("ca"),
            query.get("socket"),
            f"mysql://{query.get('socket') or f'{host}:{port}'}/{database}",
        )


class Connection:
    """One session: text is UTF-8, a value that does not fit is an error, a statement sees what is committed by then."""

    def __init__(self, address: StoreAddress, seconds: float, database: str | None) -> None:
        import pymysql
        from pymysql.constants import CLIENT

        self.used = time.monotonic()
        lock_s = max(1, int(seconds * 2 / 3))
        self._session: pymysql.Connection[Any] = pymysql.connect(
            host=address.host,
            port=address.port,
            user=address.user,
            password=address.password,
            database=database,
            unix_socket=address.socket,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=max(1, int(seconds)),
            read_timeout=seconds,
            write_timeout=seconds,
            client_flag=CLIENT.MULTI_STATEMENTS,
            ssl=_tls_context(address),
            ssl_disabled=address.tls == "no",
            init_command="SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', "
            f"innodb_lock_wait_timeout = {lock_s}, lock_wait_timeout = {lock_s}, wait_timeout = {SERVER_WAITS_S}",
        )
        self.run(b"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")

    def run(self, packet: bytes) -> list[Answer]:
        """Run the statements of a packet: how many rows each changed, and the rows that it found."""
        self._session.query(packet)
        answers = [self._answer()]
        while self._session._result.has_next:
            self._session.next_result()
            answers.append(self._answer())
        self.used = time.monotonic()
        return answers

    def fetch(self, *statements: bytes) -> Any:
        """The rows that the last of the statements found."""
        return self.run(b";".join(statements))[-1].rows

    def _answer(self) -> Answer:
        result = self._session._result
        return Answer(result.affected_rows, result.rows or ())

    def is_fresh(self) -> bool:
        """Whether the server did not end it: it says nothing between statements but goodbye."""
        wire: socket.socket | None = self._session._sock
        if wire is None or time.monotonic() - self.used > IDLE_S:
            return False
        return not select.select([wire], [], [], 0)[0]

    def roll_back(self) -> bool:
        """Undo what is under way; whether the connection can be used on."""
        try:
            self._session.rollback()
        except Exception:
            return False
        return True

    def interrupt(self) -> None:
        """End what another thread waits for."""
        with contextlib.suppress(OSError, AttributeError):
            self._session._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._session.close()


@dataclass(frozen=True)
class Answer:
    changed: int
    rows: Any


class Threads:
    """Threads of one kind, each work with a connection of its own. One that failed is used no more."""

    def __init__(self, name: str, count: int, connect: Callable[[], Connection], label: str) -> None:
        self._executor = ThreadPoolExecutor(count, thread_name_prefix=f"penstock-mysql-{name}")
        self._connect = connect
        self._label = label
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._guard = threading.Lock()

    async def run(self, work: Callable[[Connection], Result]) -> Result:
        return await asyncio.wrap_future(self._executor.submit(self.run_here, work))

    def run_here(self, work: Callable[[Connection], Result]) -> Result:
        """Work in the calling thread, which waits for it."""
        try:
            connection = self._take()
        except Exception as error:
            refused = translated(error, self._label)
            refused.is_refused = True  # nothing was sent
            raise refused from error
        try:
            result = work(connection)
        except BaseException as error:
            self._give_back(connection, connection.roll_back())
            if isinstance(error, PenstockError) or not isinstance(error, Exception):
                raise
            raise translated(error, self._label) from error
        self._give_back(connection, True)
        return result

    def _take(self) -> Connection:
        while True:
            with self._guard:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                connection = self._connect()
            elif not connection.is_fresh():
                connection.close()
                continue
            with self._guard:
                self._busy.add(connection)
            return connection

    def _give_back(self, connection: Connection, is_good: bool) -> None:
        with self._guard:
            self._busy.discard(connection)
            if is_good:
                self._idle.append(connection)
        if not is_good:
            connection.close()

    async def end(self) -> None:
        """Wait a little for the work under way, then end it."""
        ending = asyncio.ensure_future(asyncio.to_thread(self._executor.shutdown, wait=True, cancel_futures=True))
        done, _ = await asyncio.wait([ending], timeout=GOODBYE_SECONDS)
        if not done:
            with self._guard:
                for connection in self._busy:
                    connection.interrupt()
            await ending
        self.close_idle()

    def close_idle(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()


class Pool:
    """Threads for the writer, for readers, for sweeping and for membership. Made by `Pool.open`."""

    def __init__(self, address: StoreAddress, readers: int, seconds: float) -> None:
        def connect() -> Connection:
            return Connection(address, seconds, address.database)

        self._address = address

        def connect_without_database() -> Connection:
            return Connection(address, seconds, None)

        self.label = address.label
        self.making = Threads("making", 1, connect_without_database, self.label)
        """For making the database: its connections name none."""
        self.writer = Threads("writer", 1, connect, self.label)
        self.readers = Threads("reader", readers, connect, self.label)
        self.sweeper = Threads("sweeper", 1, connect, self.label)
        self.members = Threads("member", 1, connect, self.label)
        """For membership: a heartbeat waits neither behind a long commit nor behind reads."""

    def renewals(self, seconds: float) -> Threads:
        """For a thread of its own that renews a lease."""
        return Threads("renewal", 1, lambda: Connection(self._address, seconds, self._address.database), self.label)

    @classmethod
    async def open(cls, address: StoreAddress, *, readers: int, seconds: float) -> Pool:
        try:
            import pymysql  # noqa: F401
        except ImportError as error:
            raise InvalidArgument(
                f"{error}. A MySQL or MariaDB store needs one more package:  pip install 'penstock[mysql]'"
            ) from error
        return cls(address, readers, seconds)

    async def close(self) -> None:
        kinds = (self.making, self.writer, self.readers, self.sweeper, self.members)
        await asyncio.gather(*(kind.end() for kind in kinds))


def _tls_context(address: StoreAddress) -> ssl.SSLContext | None:
    if address.tls == "no":
        return None
    try:
        context = ssl.create_default_context(cafile=address.ca)
    except OSError as error:
        raise InvalidArgument(f"ca={address.ca!r} in the store's URL cannot be read: {error}") from error
    if address.tls == "unverified":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def number_of(error: BaseException) -> int:
    """The server's number for an error; 0 where it has none."""
    first = error.args[0] if error.args else None
    return first if isinstance(first, int) else 0


def translated(error: Exception, label: str) -> PenstockError:
    """The error that the contract names for what the server, PyMySQL or the network said."""
    import pymysql

    if isinstance(error, PenstockError):
        return error
    # Not `pymysql.err`: where Django uses PyMySQL, that may be a second copy of it.
    if isinstance(error, pymysql.MySQLError) and (number := number_of(error)):
        said = error.args[1] if len(error.args) > 1 else str(error)
        text = f"{label}: {said} (error {number}){_READ_ONLY_HINT.get(number, '')}"
        if number in _VALUES:
            return InvalidArgument(f"{label}: a value that the server cannot keep: {said} (error {number})")
        if number in _TABLES:
            return StoreCorrupt(text)
        failure = Unavailable(text)
        failure.is_refused = number in _REFUSED
        return failure
    if isinstance(error, UnicodeEncodeError | OverflowError):
        return InvalidArgument(f"{label}: a value that the server cannot keep: {error}")
    if isinstance(error, RuntimeError) and "cryptography" in str(error):  # of PyMySQL, which has no number for it
        return InvalidArgument(
            f"{label}: the server wants the password encrypted; name tls=yes in the store's URL, or install the "
            "package cryptography"
        )
    if isinstance(error, TimeoutError):
        return Unavailable(f"{label}: no answer in time")
    return Unavailable(f"{label}: {str(error) or type(error).__name__}")


def all_of(packets: Iterable[bytes], connection: Connection) -> list[Answer]:
    return [answer for packet in packets for answer in connection.run(packet)]
