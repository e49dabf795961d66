"""Syncs left out on purpose, to see that the loss is found. Each patches the process that is recorded, for good."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from penstock.node.spool import folder as spool_folder
from penstock.store.sqlite import backup, file, shipping
from penstock.store.sqlite.log import segments, space
from penstock.store.sqlite.log.segments import Segment

MUTATIONS: Final[dict[str, Callable[[], None]]] = {}
FOUND: Final[dict[str, tuple[str, str]]] = {}
"""By mutation: the workload that finds it, and after which events it is found."""


def mutation(workload: str, after: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def add(patch: Callable[[], None]) -> Callable[[], None]:
        MUTATIONS[patch.__name__] = patch
        FOUND[patch.__name__] = (workload, after)
        return patch

    return add


def _no_sync(*_: Any) -> None:
    """Nothing."""


def _put(place: Any, name: str, value: Any) -> None:
    setattr(place, name, value)


@mutation("store", after="note")
def answers_before_the_record_is_synced() -> None:
    _put(Segment, "sync", _no_sync)
    _put(Segment, "start_sync", lambda *_: False)


@mutation("store", after="note")
def makes_a_segment_without_syncing_its_folder() -> None:
    _put(segments, "sync_folder", _no_sync)


@mutation("store", after=".log")
def makes_a_segment_without_syncing_its_head() -> None:
    make = segments.Segments.make

    def made(*arguments: Any) -> Segment:
        sync = segments._sync
        _put(segments, "_sync", _no_sync)
        try:
            return make(*arguments)
        finally:
            _put(segments, "_sync", sync)

    _put(segments.Segments, "make", made)


@mutation("store", after="remove")
def deletes_segments_before_the_tables_are_synced() -> None:
    _put(space, "durably", lambda connection, work: file.in_transaction(connection, "BEGIN IMMEDIATE", work))


@mutation("store", after="penstock.db ")
def checkpoints_without_syncs() -> None:
    """Pages reach the file before the WAL that holds them is on the disk."""
    for name in ("copy_wal", "restart_wal", "truncate_wal"):
        _put(file.File, name, _without_syncs(getattr(file.File, name)))


def _without_syncs(checkpoint: Callable[[file.File, sqlite3.Connection], None]) -> Any:
    def run(self: file.File, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA synchronous = OFF")
        try:
            checkpoint(self, connection)
        finally:
            connection.execute("PRAGMA synchronous = NORMAL")

    return run


@mutation("spool", after="note")
def buffers_without_a_sync() -> None:
    append = spool_folder.DiskFolder._append

    def appended(self: spool_folder.DiskFolder, name: str, data: bytes) -> None:
        sync = os.fdatasync
        _put(os, "fdatasync", _no_sync)
        try:
            append(self, name, data)
        finally:
            _put(os, "fdatasync", sync)

    _put(spool_folder.DiskFolder, "_append", appended)


@mutation("spool", after="note")
def buffers_in_a_file_whose_name_is_not_synced() -> None:
    _put(spool_folder, "sync_folder", _no_sync)


@mutation("backup", after="note")
def names_a_backup_without_syncing_its_folder() -> None:
    _put(backup, "sync_folder", _no_sync)


@mutation("backup", after="note")
def copies_the_log_without_a_sync() -> None:
    copy = shipping.Shipping._copy

    def copied(self: shipping.Shipping, live: Segment) -> int:
        sync = os.fsync
        _put(os, "fsync", _no_sync)
        try:
            return copy(self, live)
        finally:
            _put(os, "fsync", sync)

    _put(shipping.Shipping, "_copy", copied)


@mutation("backup", after="note")
def copies_a_segment_without_a_sync() -> None:
    copy = backup.copy_file

    def copied(source: Path, target: Path) -> str:
        sync = os.fsync
        _put(os, "fsync", _no_sync)
        try:
            return copy(source, target)
        finally:
            _put(os, "fsync", sync)

    _put(backup, "copy_file", copied)
