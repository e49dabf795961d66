"""The MySQL and MariaDB engine: the store contract on a database that several nodes may share.

A commit is a handful of statements in one packet: one round trip and one transaction, however many messages it has.
`queries.sql` has the SQL, `commit.py` makes the statements of a commit, `pool.py` the connections and what their errors
mean; here is what a call of the contract does with them. It may not know what a lease or a due time means.
Next stop: the node.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from msgspec.structs import asdict

from penstock.api.ticket import in_task
from penstock.model import INTEGER_MAX
from penstock.model.errors import Closed, Unavailable
from penstock.model.rows import (
    BatchHead,
    BatchRow,
    CatalogChanges,
    CatalogRow,
    CheckedBatch,
    ClusterView,
    Commit,
    DedupRow,
    Joined,
    LaneImage,
    Member,
    OutboxRow,
    TraceRow,
)
from penstock.store.checking import check_batches
from penstock.store.closing import fenced
from penstock.store.contract import FAILS_CHECKSUM, Capabilities, Renewing, check_commit
from penstock.store.mysql import commit as writing
from penstock.store.mysql.enqueueing import MysqlEnqueueing
from penstock.store.mysql.pool import (
    GOODBYE_SECONDS,
    OUT_OF_RANGE,
    Answer,
    Connection,
    Pool,
    StoreAddress,
    all_of,
    number_of,
)
from penstock.store.mysql.reads import catalog_row, catalog_since, find_time, joined, load
from penstock.store.mysql.renewing import MysqlRenewing, heartbeat, view_of
from penstock.store.mysql.schema import MIGRATIONS, check_made, check_server, migrate
from penstock.store.mysql.statements import SQL, filled, filled_by_name, ids
from penstock.store.sql.lost_answer import Writer
from penstock.store.sql.queries import Migration
from penstock.store.sql.sweeping import LeftOver, Sweeper, apply_swept

READERS: Final = 4
SECONDS: Final = 30.0
"""How long one call of the database may take."""

Result = TypeVar("Result")


ROW_OVERHEAD_BYTES: Final = 64 * 1024
"""Of a packet with one large row: what stands around it. A sixteenth more is for bytes that must be escaped."""


class MysqlStore:
    """An open database of a MySQL or MariaDB server. Made by `MysqlStore.open`."""

    capabilities = Capabilities(is_remote=True)

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._packet_most = 0
        self._writer = Writer(self._supersede)
        self._sweeper = Sweeper(self._sweep)
        self.enqueueing = MysqlEnqueueing(lambda statement: self._read(lambda connection: connection.fetch(statement)))
        self._closed = False

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        readers: int = READERS,
        seconds: float = SECONDS,
        migrations: Sequence[Migration] = MIGRATIONS,
        must_exist: bool = False,
    ) -> MysqlStore:
        """Open `mysql://user:password@host/database`; the database is made where it is missing.

        Any number of processes may open the same one: a slot belongs to the last that acquired it, and the one
        before is `Fenced`. `tls=yes` in the URL encrypts, with `ca=FILE` for a certificate of one's own. With
        `must_exist`, nothing is made or brought up to date.
        """
        address = StoreAddress.parse(url)
        pool = await Pool.open(address, readers=readers, seconds=seconds)
        store = cls(pool)
        try:
            if must_exist:
                await pool.making.run(lambda connection: check_made(connection, address, migrations))
            await pool.making.run(lambda connection: migrate(connection, address, migrations))
            await pool.making.end()
            store._packet_most = await pool.writer.run(store._begin)
            most = store._packet_most - store._packet_most // 16 - ROW_OVERHEAD_BYTES
            store.capabilities = Capabilities(is_remote=True, row_bytes_max=most)
        except BaseException:
            await pool.close()
            raise
        store._sweeper.wake()  # leftovers of an earlier process
        return store

    def _begin(self, connection: Connection) -> int:
        packet_most = check_server(connection, self._pool.label)
        connection.run(filled(SQL.put_writer, self._writer.name.encode()))
        old = connection.fetch(SQL.old_writers.encode())
        if old:
            connection.run(filled(SQL.delete_writers, [writer for (writer,) in old]))
        return packet_most

    # Writing ----------------------------------------------------------------------------------------------

    async def acquire(self, slots: Sequence[int], owner: str) -> dict[int, int]:
        wanted = sorted(set(slots))
        self._check_open()
        await self._writer.settle()
        epochs: dict[int, int] = {}
        if wanted:
            statements = filled_by_name(SQL.acquire, {"slots": ids(wanted), "owner": owner})
            epochs = dict((await self._pool.writer.run(lambda connection: connection.run(statements)))[-2].rows)
        self._sweeper.wake()  # leftovers of the owner before
        return epochs

    @in_task
    async def apply(self, commit: Commit) -> None:
        check_commit(commit)
        self._check_open()
        await self._writer.commit(lambda: self._apply(commit))

    async def _apply(self, commit: Commit) -> None:
        lanes = [change.lane for change in commit.lanes]
        has_left = await apply_swept(
            lambda: self._pool.writer.run(lambda connection: self._commit(connection, commit)), lanes, self._sweep
        )
        if has_left:
            self._sweeper.wake()

    def _commit(self, connection: Connection, commit: Commit) -> bool:
        """Apply it; whether rows are left that have to be swept."""
        writer = self._writer
        fence = writing.fence(commit, writer.name, writer.generation)
        statements = [writing.BEGIN, *fence, *writing.changes(commit, writer.name), writing.END]
        try:
            answers = all_of(writing.packets(statements, self._packet_most), connection)
            noted = zip(statements, answers, strict=True)
            return any(answer.changed for statement, answer in noted if statement.startswith(writing.NOTE_LEFTOVERS))
        except Exception as error:
            if number_of(error) != OUT_OF_RANGE:
                raise
            connection.roll_back()
            raise self._why_fenced(connection, commit) from error

    def _why_fenced(self, connection: Connection, commit: Commit) -> Exception:
        """Epochs and generations only rise: what stopped the commit can still be seen."""
        if connection.fetch(filled(SQL.generation, self._writer.name.encode())) != ((self._writer.generation,),):
            return Unavailable(f"{self._pool.label}: this commit was given up before it arrived")
        held = {slot: (epoch, owner) for slot, epoch, owner in connection.fetch(SQL.slots.encode())}
        for slot, named in commit.epochs.items():
            epoch, owner = held.get(slot, ("none", "nobody"))
            if epoch != named:
                return fenced(f"slot {slot} is at epoch {epoch} of {owner}, not at epoch {named}")
        return LeftOver(f"{self._pool.label}: rows that are left of a lane have to be removed first")

    async def _supersede(self) -> int:
        values = {"writer": self._writer.name.encode(), "generation": self._writer.generation + 1}
        statements = filled_by_name(SQL.raise_generation, values)
        answers = await self._pool.writer.run(lambda connection: connection.run(statements))
        found: int = answers[-2].rows[0][0]
        return found

    async def _sweep(self, lane: int | None = None) -> bool:
        """Sweep a slice of a lane's leftovers, or of any that no other node sweeps; whether there was anything."""

        def slice_of(connection: Connection) -> bool:
            connection.run(writing.BEGIN)
            found = connection.fetch(SQL.any_leftover.encode() if lane is None else filled(SQL.leftover_of_lane, lane))
            for of, above, below in found:
                answers = all_of(writing.sweep_slice(of, above, below), connection)
                is_removed = any(answer.changed for answer in answers[1:])
                connection.run(filled(SQL.put_swept if is_removed else SQL.delete_leftover, of))
            connection.run(writing.END)
            # What a commit holds at this moment is passed over, and is there all the same.
            return bool(found) or (lane is None and bool(connection.fetch(SQL.has_leftovers.encode())))

        return await self._pool.sweeper.run(slice_of)

    # Reading ----------------------------------------------------------------------------------------------

    async def load(self, lanes: Sequence[int], dedup_most: int) -> list[LaneImage]:
        return await self._read(lambda connection: load(connection, lanes, max(dedup_most, 0)))

    async def read(self, lane: int, start: int, end: int, bytes_most: int) -> list[BatchRow]:
        if start >= end:
            self._check_open()
            return []
        values = {"lane": lane, "start": start, "end": end, "bytes_most": bytes_most}
        return list(joined(await self._fetch_by_name(SQL.read, values)))

    async def check(self, lane: int, start: int, bytes_most: int) -> list[CheckedBatch]:
        rows = await self.read(lane, start, INTEGER_MAX, bytes_most)
        return await asyncio.to_thread(check_batches, rows)

    async def heads(self, lane: int, start: int, batches_most: int, bytes_most: int) -> list[BatchHead]:
        values = {"lane": lane, "start": start, "batches_most": max(batches_most, 1), "bytes_most": bytes_most}
        return [BatchHead(*row) for row in await self._fetch_by_name(SQL.heads, values)]

    async def find_time(self, lane: int, time_ms: int) -> int | None:
        return await self._read(lambda connection: find_time(connection, lane, time_ms))

    async def find_dedup(self, lane: int, keys: Sequence[bytes]) -> list[DedupRow]:
        if not keys:
            self._check_open()
            return []
        return [DedupRow(*row) for row in await self._fetch(SQL.find_dedup, lane, list(keys))]

    async def catalog(self) -> list[CatalogRow]:
        return [catalog_row(row) for row in await self._fetch(SQL.catalog)]

    async def outbox(self, after: int, most: int, slots: Sequence[int] | None = None) -> list[OutboxRow]:
        if slots is None:
            rows = await self._fetch(SQL.outbox, after, max(most, 0))
        else:
            rows = await self._fetch(SQL.outbox_of_slots, after, list(slots), max(most, 0)) if slots else ()
        return [OutboxRow(*row) for row in rows]

    async def find_trace(self, namespace: str, trace_id: str, most: int) -> list[TraceRow]:
        rows = await self._fetch(SQL.find_trace, namespace.encode(), trace_id.encode(), max(most, 0))
        return [TraceRow(of.decode(), under.decode(), *values) for of, under, *values in rows]

    async def oldest_trace(self) -> int | None:
        found: int | None = (await self._fetch(SQL.oldest_trace))[0][0]
        return found

    async def lanes_in_use(self) -> list[int]:
        return [lane for (lane,) in await self._fetch(SQL.lanes_in_use)]

    # For the tools ----------------------------------------------------------------------------------------

    async def list_lanes(self, after: int, most: int) -> list[int]:
        return [lane for (lane,) in await self._fetch(SQL.list_lanes, after, max(most, 0))]

    async def list_dedup(self, lane: int, after: bytes | None, most: int, from_offset: int = 0) -> list[DedupRow]:
        if after is None:
            rows = await self._fetch(SQL.first_dedup, lane, from_offset, max(most, 0))
        else:
            rows = await self._fetch(SQL.list_dedup, lane, after, from_offset, max(most, 0))
        return [DedupRow(*row) for row in rows]

    async def list_traces(self, after_ms: int, most: int) -> list[TraceRow]:
        rows = await self._fetch(SQL.list_traces, after_ms, after_ms, max(most, 1))
        return [TraceRow(of.decode(), under.decode(), *values) for of, under, *values in rows]

    async def skip_incarnations(self, up_to: int) -> None:
        await self._member(SQL.skip_incarnations, {"up_to": up_to})

    # Several nodes ----------------------------------------------------------------------------------------

    async def join(self, member: Member) -> Joined:
        answers = await self._member(SQL.join, {"secret": secrets.token_hex(16).encode(), **asdict(member)})
        [(incarnation, secret)] = answers[-2].rows
        return Joined(incarnation, secret.decode())

    async def heartbeat(self, incarnation: int) -> ClusterView:
        self._check_open()
        answers = await self._pool.members.run(lambda connection: connection.run(heartbeat(incarnation)))
        return view_of(answers, incarnation)

    async def take(self, slots: Sequence[int], incarnation: int) -> dict[int, int]:
        self._check_open()
        await self._writer.settle()
        answers = await self._member(SQL.take, {"slots": ids(slots), "incarnation": incarnation})
        taken = dict(answers[-2].rows)
        if taken:
            self._sweeper.wake()  # leftovers of the owner before
        return taken

    async def release(self, slots: Sequence[int], incarnation: int, to: int = 0) -> None:
        await self._member(SQL.release, {"slots": ids(slots), "incarnation": incarnation, "to": to})

    async def leave(self, incarnation: int) -> None:
        await self._member(SQL.leave, {"incarnation": incarnation})

    async def reserve_ids(self, count: int, above: int = 0) -> int:
        answers = await self._member(SQL.reserve_ids, {"count": count, "above": above})
        last: int = answers[-1].rows[0][0]
        return last - count + 1

    async def catalog_since(self, version: int) -> CatalogChanges:
        return await self._read(lambda connection: catalog_since(connection, version))

    async def _member(self, statements: str, values: dict[str, Any]) -> list[Answer]:
        self._check_open()
        return await self._pool.members.run(lambda connection: connection.run(filled_by_name(statements, values)))

    def renewing(self, seconds: float) -> Renewing:
        return MysqlRenewing(self._pool.renewals(seconds))

    # Life -------------------------------------------------------------------------------------------------

    @property
    def place(self) -> str:
        return self._pool.label

    def body_place(self, lane: int, base: int) -> str:  # noqa: ARG002 - all is in one place
        return self.place

    def body_problem(self, lane: int, base: int) -> str:  # noqa: ARG002 - it is always the same
        return FAILS_CHECKSUM

    def damage(self) -> list[str]:
        return []

    async def close(self) -> None:
        """End every connection. Closing twice is fine."""
        if self._closed:
            return
        self._closed = True
        await self._sweeper.close()
        await self.enqueueing.close()
        await self._writer.end(self._say_goodbye)
        await self._pool.close()

    async def _say_goodbye(self) -> None:
        """A last statement that may fail: nothing depends on it."""
        statement = filled(SQL.delete_writers, [self._writer.name.encode()])
        goodbye = asyncio.ensure_future(self._pool.writer.run(lambda connection: connection.run(statement)))
        done, _ = await asyncio.wait([goodbye], timeout=GOODBYE_SECONDS)
        if done:
            goodbye.exception()  # retrieved, so that asyncio does not log it

    async def _fetch(self, statement: str, *values: Any) -> Any:
        return await self._read(lambda connection: connection.fetch(filled(statement, *values)))

    async def _fetch_by_name(self, statements: str, values: dict[str, Any]) -> Any:
        return await self._read(lambda connection: connection.fetch(filled_by_name(statements, values)))

    async def _read(self, work: Callable[[Connection], Result]) -> Result:
        self._check_open()
        await self._writer.settle()
        return await self._pool.readers.run(work)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"the store {self._pool.label} is closed")
