"""What an operator should know of a store and the machine below it: what is fine, what to mind, what is wrong.

Nothing is changed, and a server may go on. It looks at what is cheap to look at: whether every checksum is right,
`verify.py` tells. Ports and limits are the command's: it knows the configuration.
"""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter, time_ns
from typing import Final, Literal

import msgspec

from penstock.maintenance.verify import LANES_AT_ONCE, Rows, list_all_lanes
from penstock.model.errors import NotFound, PenstockError
from penstock.model.rows import SLOTS
from penstock.store.closing import CLOSED
from penstock.store.contract import FullStore
from penstock.store.open import label_of, open_engine, scheme_of
from penstock.store.sqlite import server_lock, snapshot
from penstock.store.sqlite.statements import SQL
from penstock.version import VERSION

State = Literal["fine", "mind", "wrong"]

SQLITE_LEAST: Final = (3, 37, 0)
FREE_LEAST: Final = 1 << 30
FREE_SHARE_LEAST: Final = 0.1
SYNC_MS_MOST: Final = 20.0
"""A sync that takes longer makes every confirmed publish slow."""
SYNCS: Final = 5
SKEW_MS_MOST: Final = 1_000
WAL_BYTES_MOST: Final = 256 << 20
NETWORK: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "fuse.sshfs"})
"""File systems on which neither SQLite's shared memory nor the kernel's locks reach the other machines."""
IN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})


class Check(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that was looked at."""

    about: str
    state: State
    text: str
    advice: str = ""


# Programs ------------------------------------------------------------------------------------------------


def check_programs() -> Iterator[Check]:
    yield Check("version", "fine", f"Penstock {VERSION}, Python {platform.python_version()}, {platform.platform()}")
    if sqlite3.sqlite_version_info < SQLITE_LEAST:
        least = ".".join(map(str, SQLITE_LEAST))
        advice = f"use a Python whose SQLite is {least} or newer, or a database"
        yield Check("sqlite", "wrong", f"SQLite {sqlite3.sqlite_version}, which is too old", advice)
    else:
        yield Check("sqlite", "fine", f"SQLite {sqlite3.sqlite_version}")


# The store -----------------------------------------------------------------------------------------------


async def check_store(place: str) -> list[Check]:
    """The store, its disk and its clock."""
    try:
        if scheme_of(place):
            return await _check_database(place)
        return await _check_file(Path(place))
    except NotFound:
        return [
            Check("store", "mind", f"there is no store at {label_of(place)} yet", "a server makes it when it starts")
        ]
    except PenstockError as error:
        advice = "'penstock store verify' looks at all of it; docs/store.md says what the message means"
        return [Check("store", "wrong", f"{label_of(place)}: {error}", advice)]


async def _check_file(path: Path) -> list[Check]:
    with snapshot.taken(path) as taken:
        queues = sum(row.kind == "queue" for row in await taken.catalog())
        log = sum(taken.segments.path(number).stat().st_size for number in taken.segments.numbers())
        newest_ms = await _newest_ms(taken)
        members = [row[1] for row in taken.connection.execute(SQL.nodes, (0,))]
    text = f"{label_of(path)}: {queues} queues, a file of {_size(path)} and a log of {_bytes(log)}"
    checks = [Check("store", "fine", text), *_closed(members), *_check_files(path)]
    return [*checks, _served(path), _clock_of_messages(newest_ms)]


def _closed(members: Iterable[str]) -> Iterator[Check]:
    for name in members:
        if name.startswith(CLOSED):
            advice = "start servers with the copy; 'penstock store reopen' opens this one again"
            text = f"it was copied to {name.removeprefix(CLOSED)} and closed: servers are refused"
            yield Check("store", "wrong", text, advice)


def _served(path: Path) -> Check:
    holder = server_lock.holder(path)
    if holder is None:
        return Check("server", "mind", "no server uses the store")
    return Check("server", "fine", f"a server uses the store: process {holder}")


def _check_files(path: Path) -> Iterator[Check]:
    open_to_all = [one for one in (path, Path(f"{path}-log")) if one.stat().st_mode & 0o077]
    if open_to_all:
        names = " and ".join(one.name for one in open_to_all)
        yield Check("store", "mind", f"others on this machine may read {names}", f"chmod -R go= {path} {path}-log")
    wal = Path(f"{path}-wal")
    if wal.exists() and wal.stat().st_size > WAL_BYTES_MOST:
        advice = "another program has read the file for long: end its transaction"
        yield Check("store", "mind", f"SQLite's own log {wal.name} has {_size(wal)}", advice)


async def _newest_ms(rows: Rows) -> int:
    lanes = await list_all_lanes(rows)
    newest = 0
    for start in range(0, len(lanes), LANES_AT_ONCE):
        images = await rows.load(lanes[start : start + LANES_AT_ONCE], 0)
        newest = max([newest, *(image.published_ms for image in images)])
    return newest


def _clock_of_messages(newest_ms: int) -> Check:
    ahead = newest_ms - time_ns() // 1_000_000
    if ahead > SKEW_MS_MOST:
        advice = "set the clock right; until it catches up, new messages bear the time of the newest"
        return Check("clock", "wrong", f"the newest message was published {ahead / 1000:.1f} s in the future", advice)
    return Check("clock", "fine", "no message is from the future")


async def _check_database(place: str) -> list[Check]:
    store = await open_engine(place, must_exist=True)
    try:
        queues = sum(row.kind == "queue" for row in await store.catalog())
        checks = [Check("store", "fine", f"{label_of(place)}: {queues} queues; its settings keep what was answered")]
        checks += await _check_members(store)
        if store.enqueueing is not None and (failed := await store.enqueueing.count_failed()):
            advice = "'penstock enqueued list' shows them, 'retry' tries again"
            checks.append(Check("enqueued", "mind", f"{failed} enqueued messages could not be published", advice))
        return checks
    finally:
        await store.close()


async def _check_members(store: FullStore) -> Iterator[Check]:
    before, sent = time_ns(), perf_counter()
    view = await store.heartbeat(0)
    took = (perf_counter() - sent) * 1000
    skew = view.now_ms - before / 1e6 - took / 2
    text = f"the database's clock is {abs(skew):.0f} ms {'ahead' if skew > 0 else 'behind'}, ± {took / 2:.0f} ms"
    advice = "let both machines follow the same time servers" if abs(skew) > SKEW_MS_MOST + took / 2 else ""
    clock = Check("clock", "mind" if advice else "fine", text, advice)
    live = {row.incarnation: row for row in view.nodes if row.is_live and not row.name.startswith(CLOSED)}
    owned = sum(row.node in live for row in view.slots)
    names = ", ".join(f"{row.name} ({row.version})" for row in live.values())
    versions = {row.version for row in live.values()}
    checks = [Check("database", "fine" if took < SYNC_MS_MOST else "mind", f"a round trip takes {took:.1f} ms"), clock]
    checks += _closed(row.name for row in view.nodes)
    if not live:
        checks.append(Check("server", "mind", "no server uses the store"))
    elif owned < SLOTS:
        advice = "normal for seconds after a change; 'penstock cluster' shows who has what"
        checks.append(Check("server", "mind", f"{names}; {SLOTS - owned} of {SLOTS} slots have no owner", advice))
    elif len(versions) > 1:
        checks.append(Check("server", "mind", f"several versions: {names}", "finish the upgrade"))
    else:
        checks.append(Check("server", "fine", f"{len(live)} at work: {names}"))
    return iter(checks)


# Disks ---------------------------------------------------------------------------------------------------


def check_disk(folder: Path, what: str) -> Iterator[Check]:
    """Room, kind and speed of the disk that a folder is on, or will be."""
    while not folder.exists():
        folder = folder.parent
    usage = shutil.disk_usage(folder)
    free = f"{_bytes(usage.free)} of {_bytes(usage.total)} are free"
    is_tight = usage.free < FREE_LEAST or usage.free < FREE_SHARE_LEAST * usage.total
    advice = "make room: without it publishes are refused" if is_tight else ""
    state: State = "mind" if is_tight else "fine"
    yield Check(what, "wrong" if usage.free < FREE_LEAST // 4 else state, f"{folder.absolute()}: {free}", advice)
    yield from _check_kind(folder, what)
    yield _check_sync(folder, what)


def _check_kind(folder: Path, what: str) -> Iterator[Check]:
    kind = file_system(folder)
    if kind in NETWORK:
        advice = "put the store on a disk of this machine, or use a database"
        yield Check(what, "wrong", f"it is on {kind}, a file system of the network: SQLite's locks do not hold", advice)
    elif kind in IN_MEMORY:
        yield Check(what, "wrong", f"it is on {kind}, in memory: gone with a restart", "put the store on a disk")
    elif kind == "overlay":
        yield Check(what, "mind", "it is in a container's own layer, and gone with it", "mount a volume there")


def file_system(folder: Path) -> str | None:
    """The kind of file system that a folder is on; None where the system does not tell."""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return None
    place = folder.resolve()
    found: tuple[int, str | None] = (-1, None)
    for line in lines:
        before, _, after = line.partition(" - ")
        mount = Path(before.split()[4].encode().decode("unicode_escape"))
        if place.is_relative_to(mount):
            found = max(found, (len(mount.parts), after.split()[0]), key=lambda one: one[0])
    return found[1]


def _check_sync(folder: Path, what: str) -> Check:
    times = []
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            for _ in range(SYNCS):
                file.write(bytes(4096))
                file.flush()
                started = perf_counter()
                os.fsync(file.fileno())
                times.append((perf_counter() - started) * 1000)
    except OSError as error:
        return Check(what, "wrong", f"nothing can be written: {error.strerror}", "the server's user must be able to")
    took = median(times)
    if took > SYNC_MS_MOST:
        return Check(what, "mind", f"a sync takes {took:.1f} ms: so does each confirmed publish", "use a faster disk")
    return Check(what, "fine", f"a sync takes {took:.1f} ms")


def _size(path: Path) -> str:
    return _bytes(path.stat().st_size)


def _bytes(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
