"""Real damage: bytes of stored batches and rows are flipped where they are, in the files or in the database."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg

from tests.databases import mariadb

if TYPE_CHECKING:
    import pytest


def flipped(data: bytes, position: int) -> bytes:
    """The same bytes with all bits of one changed."""
    index = position % len(data)
    return data[:index] + bytes([data[index] ^ 0xFF]) + data[index + 1 :]


def lane_of(path: Path, queue: str) -> int:
    """The number of the only lane of a queue."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT document FROM catalog WHERE kind = 'queue' AND name = ?", (queue,))
        [document] = rows.fetchone()
    [lane] = json.loads(document)["lanes"]
    return int(lane)


def flip_body(path: Path, lane: int, base: int, position: int = -1) -> Path:
    """Damage the stored body of a batch; the log file that has it."""
    with closing(sqlite3.connect(path)) as connection:
        [segment, start, size] = connection.execute(
            "SELECT segment, position, size - length(meta) FROM batches WHERE lane = ? AND base = ?", (lane, base)
        ).fetchone()
    file = Path(f"{path}-log", f"{segment:010d}.log")
    data = file.read_bytes()
    file.write_bytes(data[:start] + flipped(data[start : start + size], position) + data[start + size :])
    return file


def flip_meta(path: Path, lane: int, base: int, position: int = -1) -> Path:
    """Damage the stored metadata of a batch; the file that has it."""
    with closing(sqlite3.connect(path)) as connection:
        place = lane, base
        [meta] = connection.execute("SELECT meta FROM batches WHERE lane = ? AND base = ?", place).fetchone()
        connection.execute("UPDATE batches SET meta = ? WHERE lane = ? AND base = ?", (flipped(meta, position), *place))
        connection.commit()
    return path


FLIP = {"body": flip_body, "meta": flip_meta}


def flip_column(engine: str, url: str, table: str, column: str, where: str, position: int = -1) -> None:
    """Damage the bytes in a column of one row of a store in PostgreSQL or MySQL."""
    if engine == "postgres":
        asyncio.run(_flip_in_postgres(url, table, column, where, position))
        return
    with mariadb.connected(url) as session, session.cursor() as cursor:
        cursor.execute(f"SELECT {column} FROM {table} WHERE {where}")
        [(data,)] = cursor.fetchall()
        cursor.execute(f"UPDATE {table} SET {column} = %s WHERE {where}", (flipped(data, position),))
        session.commit()


async def _flip_in_postgres(url: str, table: str, column: str, where: str, position: int) -> None:
    url, _, schema = url.partition("?schema=")
    connection = await asyncpg.connect(url)
    try:
        [(data,)] = await connection.fetch(f"SELECT {column} FROM {schema}.{table} WHERE {where}")
        await connection.execute(f"UPDATE {schema}.{table} SET {column} = $1 WHERE {where}", flipped(data, position))
    finally:
        await connection.close()


def refuse_reads(monkeypatch: pytest.MonkeyPatch, file: Path, code: int = errno.EIO) -> None:
    """The system refuses every read of a file that is open, as it does where the disk cannot give a sector back."""
    wanted = file.stat().st_ino

    def refusing(read: Callable[..., Any]) -> Callable[..., Any]:
        def attempt(descriptor: int, *arguments: Any) -> Any:
            if os.fstat(descriptor).st_ino == wanted:
                raise OSError(code, os.strerror(code))
            return read(descriptor, *arguments)

        return attempt

    monkeypatch.setattr(os, "pread", refusing(os.pread))
    monkeypatch.setattr(os, "preadv", refusing(os.preadv))


def segment_of(path: Path, lane: int, base: int) -> Path:
    """The log file that has the body of a batch."""
    with closing(sqlite3.connect(path)) as connection:
        place = lane, base
        [segment] = connection.execute("SELECT segment FROM batches WHERE lane = ? AND base = ?", place).fetchone()
    return Path(f"{path}-log", f"{segment:010d}.log")
