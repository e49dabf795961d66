"""Connections to a PostgreSQL server: where it is, how many are kept, and what its errors mean to the contract.

asyncpg does the work. Knows no table; next stop: `engine.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from penstock.model.errors import InvalidArgument, PenstockError, StoreCorrupt, Unavailable
from penstock.store.closing import fenced
from penstock.store.postgres.apply import QUERIES
from penstock.store.postgres.schema import DEFAULT_SCHEMA, FENCED, LEFT_OVER, SUPERSEDED, check_schema
from penstock.store.sql.sweeping import LeftOver

if TYPE_CHECKING:
    import asyncpg

GOODBYE_SECONDS: Final = 2.0
_YES: Final = ("yes", "true", "on", "1")
_NO: Final = ("no", "false", "off", "0")

Result = TypeVar("Result")

log = logging.getLogger("penstock.store.postgres")


@dataclass(frozen=True)
class StoreAddress:
    """A URL with what is ours taken out of it."""

    url: str
    """What asyncpg is given."""
    schema: str
    is_prepared: bool
    """Whether statements are kept prepared on their connection."""
    label: str
    """For people: no password in it."""
    is_listening: bool = True
    """Whether a connection of its own waits for notifications."""

    @classmethod
    def parse(cls, url: str) -> StoreAddress:
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise InvalidArgument(f"the store's URL cannot be used: {error}") from None
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        schema = check_schema(query.pop("schema", DEFAULT_SCHEMA))
        is_prepared = _choice(query, "prepared")
        is_listening = _choice(query, "listen")
        # A replica may not have applied what it has, and a read of it would miss what was answered.
        query.setdefault("target_session_attrs", "primary")
        place = parts.netloc.rpartition("@")[2]
        rest = urlunsplit(parts._replace(scheme="postgresql", query=urlencode(query)))
        return cls(rest, schema, is_prepared, f"postgresql://{place}{parts.path}?schema={schema}", is_listening)


def _choice(query: dict[str, str], name: str) -> bool:
    """Takes an option out of a URL's query; yes unless it says no."""
    text = query.pop(name, "yes").lower()
    if text not in (*_YES, *_NO):
        raise InvalidArgument(f"{name}={text!r} in the store's URL must be yes or no")
    return text in _YES


class Pool:
    """A few connections. Made by `Pool.open`."""

    def __init__(self, pool: asyncpg.Pool[Any], address: StoreAddress, seconds: float) -> None:
        self._pool = pool
        self._seconds = seconds
        self._kept: asyncpg.Connection[Any] | None = None
        self._acquiring = 0
        self._has_acquired = asyncio.Event()
        self.label = address.label

    @classmethod
    async def open(cls, address: StoreAddress, *, connections: int, seconds: float) -> Pool:
        try:
            import asyncpg
        except ImportError as error:
            raise InvalidArgument(
                f"{error}. A PostgreSQL store needs more packages:  pip install 'penstock[postgres]'"
            ) from error
        try:
            pool = await asyncpg.create_pool(
                address.url,
                min_size=1,
                max_size=connections,
                command_timeout=seconds,
                timeout=seconds,
                statement_cache_size=100 if address.is_prepared else 0,
                max_inactive_connection_lifetime=300.0,
                reset=_no_reset,
            )
        except (ValueError, asyncpg.InterfaceError) as error:
            raise InvalidArgument(f"the store's URL {address.label} cannot be used: {error}") from error
        except Exception as error:
            raise translated(error, address.label) from error
        opened = cls(pool, address, seconds)
        try:
            await opened._check_durable()
            await opened._check_isolation()
        except BaseException:
            await opened.close()
            raise
        return opened

    async def _check_isolation(self) -> None:
        """With a snapshot from before its locks, a commit would not see that it is fenced or was given up."""
        isolation = (await self.fetch(QUERIES.setting, "default_transaction_isolation"))[0][0]
        if isolation != "read committed":
            raise InvalidArgument(
                f"{self.label} has default_transaction_isolation = {isolation!r}: a node that lost its queues to "
                "another could still write to them. For this database:  ALTER DATABASE … SET "
                "default_transaction_isolation = 'read committed'"
            )

    async def _check_durable(self) -> None:
        """A server that answers before it has written is one that loses what was answered."""
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            rows = await self.fetch(QUERIES.setting, setting)
            if rows[0][0] == "off":
                raise InvalidArgument(
                    f"{self.label} has {setting} = off: messages that were answered could be lost. Turn it on, for "
                    f"this database with:  ALTER DATABASE … SET {setting} = on"
                    if setting == "synchronous_commit"
                    else f"{self.label} has {setting} = off: messages that were answered could be lost. Turn it on."
                )

    async def _acquire(self) -> asyncpg.Connection[Any]:
        self._acquiring += 1
        try:
            return await self._pool.acquire(timeout=self._seconds)
        except Exception as error:
            refused = translated(error, self.label)
            refused.is_refused = True  # nothing was sent
            raise refused from error
        finally:
            self._acquiring -= 1
            self._has_acquired.set()

    async def _release(self, connection: asyncpg.Connection[Any]) -> None:
        # Shielded by asyncpg itself: a connection goes back whatever happens to this task. One that cannot, such as
        # after a statement that nobody answers any more, is ended; what the statement said or raised stays true.
        with contextlib.suppress(Exception):
            await self._pool.release(connection)

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[asyncpg.Connection[Any]]:
        connection = await self._acquire()
        try:
            yield connection
        except PenstockError:
            raise
        except Exception as error:
            raise translated(error, self.label) from error
        finally:
            await self._release(connection)

    async def fetch(self, statement: str, *values: Any) -> list[Any]:
        async with self._connection() as connection:
            rows: list[Any] = await connection.fetch(statement, *values)
            return rows

    async def fetch_kept(self, statement: str, *values: Any) -> list[Any]:
        """`fetch` on a connection that is kept between calls: handing one out and taking it back costs more than the
        statement itself. One call at a time.
        """
        connection = self._kept
        if connection is None or is_closed(connection):
            await self._give_back()
            connection = self._kept = await self._acquire()
        try:
            rows: list[Any] = await connection.fetch(statement, *values)
        except BaseException as error:
            await self._give_back()
            if isinstance(error, Exception):
                raise translated(error, self.label) from error
            raise
        return rows

    async def _give_back(self) -> None:
        connection, self._kept = self._kept, None
        if connection is not None:
            await self._release(connection)

    async def in_transaction(
        self, work: Callable[[asyncpg.Connection[Any]], Awaitable[Result]], *, is_reading: bool = False
    ) -> Result:
        """Work in one transaction; one that reads sees the state of one moment."""
        async with (
            self._connection() as connection,
            connection.transaction(isolation="repeatable_read" if is_reading else None, readonly=is_reading),
        ):
            return await work(connection)

    async def say_goodbye(self, statement: str, *values: Any) -> None:
        """A last statement that may fail: nothing depends on it."""
        with contextlib.suppress(PenstockError, TimeoutError):
            await asyncio.wait_for(self.fetch_kept(statement, *values), GOODBYE_SECONDS)

    async def close(self) -> None:
        await self._give_back()
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self._end(), GOODBYE_SECONDS)
        self._pool.terminate()

    async def _end(self) -> None:
        """Let who has a connection give it back, and who is about to get one have it: a closing pool gives none."""
        while self._acquiring:
            self._has_acquired.clear()
            await self._has_acquired.wait()
        await self._pool.close()


class MemberCalls:
    """A connection of its own for membership, opened when first wanted: a heartbeat never waits behind reads."""

    def __init__(self, address: StoreAddress, seconds: float) -> None:
        self._address = address
        self._seconds = seconds
        self._pool: Pool | None = None
        self._opening = asyncio.Lock()

    async def fetch(self, statement: str, *values: Any) -> list[Any]:
        async with self._opening:
            if self._pool is None:
                self._pool = await Pool.open(self._address, connections=1, seconds=self._seconds)
        return await self._pool.fetch(statement, *values)

    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.close()


async def _no_reset(_connection: asyncpg.Connection[Any]) -> None:
    """Nothing is ever set for a session, so nothing has to be put back: it would be a round trip for each use."""


def is_closed(connection: asyncpg.Connection[Any]) -> bool:
    """Also of one that was handed out and has ended since: its pool has it back by itself, and it answers nothing."""
    import asyncpg

    try:
        found: bool = connection.is_closed()
        return found
    except asyncpg.InterfaceError:
        return True


def translated(error: Exception, label: str) -> PenstockError:
    """The error that the contract names for what PostgreSQL, asyncpg or the network said."""
    import asyncpg

    if isinstance(error, PenstockError):
        return error
    if isinstance(error, asyncpg.PostgresError):
        state = error.sqlstate or ""
        text = f"{label}: {error} (SQLSTATE {state})"
        if state == FENCED:
            return fenced(str(error))
        if state == LEFT_OVER:
            return LeftOver(text)
        if state.startswith("22") or isinstance(error, asyncpg.DataError):
            return InvalidArgument(f"{label}: a value that PostgreSQL cannot keep: {error}")
        if state in ("42P01", "42703", "42883", "XX001", "XX002"):
            return StoreCorrupt(text)
        failure = Unavailable(text)
        # An error of a statement has undone its transaction; after a lost connection the outcome is unknown. One of
        # another generation is undone too, but the current generation has to be asked for.
        failure.is_refused = state != SUPERSEDED and state[:2] not in ("08", "57", "58", "XX")
        return failure
    if isinstance(error, UnicodeEncodeError | OverflowError | asyncpg.DataError):
        return InvalidArgument(f"{label}: a value that PostgreSQL cannot keep: {error}")
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return Unavailable(f"{label}: the server there takes no writes: it is a replica that was not promoted")
    if isinstance(error, TimeoutError):
        return Unavailable(f"{label}: no answer in time")
    return Unavailable(f"{label}: {str(error) or type(error).__name__}")
