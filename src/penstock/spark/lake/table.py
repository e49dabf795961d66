"""One Delta table of the lake: its files, how far it goes, and commits that are durable when they return.

A lane's high-water offset is the first that is not in the lake yet. It is kept in the Delta log as an app transaction,
in the same commit as the files that it speaks of: either both are there or neither is. A handle stands for one version;
what it commits is refused if another writer moved one of the same offsets after that version.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from penstock.spark.lake import log_files
from penstock.spark.lake.errors import LakeConflict, LakeDamaged, LakeError, LakeFull, LakeMissing, WrongLake
from penstock.spark.lake.files import DataFile, files_of_log
from penstock.spark.lake.layout import (
    LAYOUT_PROPERTY,
    LAYOUT_VERSION,
    NAMESPACE_PROPERTY,
    PARTITION_BY,
    SERVER_PROPERTY,
    floor_id,
    mark_id,
    offset_column,
    time_column,
)
from penstock.spark.lake.storage import Storage, full_disk
from penstock.spark.times import now_ms

CHECKPOINT_EVERY: Final = 50
"""Commits between two checkpoints of the log: what a reader must go through at most."""

KEEP_DAYS: Final = 7
"""How many days old a version may be and still be read, unless the lake is told otherwise."""
RETENTION: Final = ("delta.logRetentionDuration", "delta.deletedFileRetentionDuration")
"""Delta's own properties for that, which other programs go by too: of the log, and of files that left the table."""
_DAYS: Final = {"day": 1, "week": 7}
_INTERVAL: Final = re.compile(r"interval (\d+) (day|week)s?")

LaneKey = tuple[int, int]
"""(queue id, lane)."""

logger = logging.getLogger(__name__)

# The hooks of deltalake would write checkpoints without fsync: we write them ourselves.
_NO_HOOKS: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


class LakeTable:
    """A table at one version."""

    def __init__(self, storage: Storage, delta: DeltaTable) -> None:
        self.storage = storage
        self._delta = delta
        self._settled = -1
        """The log is known to be on the disk up to this version."""

    @classmethod
    def open(cls, storage: Storage, version: int | None = None) -> LakeTable:
        """The newest version, or the one that is asked for."""
        try:
            delta = DeltaTable(storage.uri, version=version, storage_options=storage.options or None)
        except TableNotFoundError as error:
            raise LakeMissing(f"there is no lake table at {storage.url}: {error}") from error
        except DeltaError as error:
            raise LakeDamaged(f"the Delta log of {storage.url} cannot be read: {error}") from error
        table = cls(storage, delta)
        layout = table.properties.get(LAYOUT_PROPERTY)
        if layout != LAYOUT_VERSION:
            raise WrongLake(
                f"{storage.url} is a Delta table of layout {layout}; this version of Penstock knows {LAYOUT_VERSION}"
                + ("" if layout else ": it is not a lake of Penstock's")
            )
        return table

    @classmethod
    def open_for(cls, storage: Storage, schema: pa.Schema, server: str, namespace: str) -> LakeTable:
        """To write to: made if it is not there, mended after a power cut, refused if it is another server's."""
        log_files.mend(storage.root)
        try:
            table = cls.open(storage)
        except LakeMissing:
            table = cls._create(storage, schema, server, namespace)
        table.check_owner(server, namespace)
        table.settle()
        return table

    @classmethod
    def _create(cls, storage: Storage, schema: pa.Schema, server: str, namespace: str) -> LakeTable:
        properties = {LAYOUT_PROPERTY: LAYOUT_VERSION, SERVER_PROPERTY: server, NAMESPACE_PROPERTY: namespace}
        properties |= _retention(KEEP_DAYS)
        if storage.root is not None:
            storage.root.mkdir(parents=True, exist_ok=True)
        try:
            DeltaTable.create(
                storage.uri,
                Schema.from_arrow(schema),
                partition_by=PARTITION_BY,
                configuration=properties,
                storage_options=storage.options or None,
                raise_if_key_not_exists=False,
            )
        except (DeltaError, OSError) as error:
            try:  # another archive may have been first
                return cls.open(storage)
            except LakeMissing:
                raise _explained(error, f"the table {storage.url} cannot be made") from error
        log_files.settle_new_table(storage.root)
        return cls.open(storage)

    # What it says -----------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        return self._delta.version()

    @property
    def properties(self) -> Mapping[str, str]:
        return self._delta.metadata().configuration

    @property
    def keep_days(self) -> int:
        """How many days old a version may be and still be read, as far as the table says so in days or weeks."""
        found = [_INTERVAL.fullmatch(self.properties.get(name, "").lower()) for name in RETENTION]
        return min((int(one[1]) * _DAYS[one[2]] for one in found if one), default=KEEP_DAYS)

    @property
    def says_what_it_keeps(self) -> bool:
        """Whether it has Delta's properties for that: lakes of 0.1.0 have not."""
        return all(name in self.properties for name in RETENTION)

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(self._delta.schema().to_arrow())

    def check_owner(self, server: str, namespace: str) -> None:
        owner = self.properties.get(SERVER_PROPERTY), self.properties.get(NAMESPACE_PROPERTY)
        if owner != (server, namespace):
            raise WrongLake(
                f"the lake at {self.storage.url} holds queues of another server or namespace (server {owner[0]}, "
                f"namespace {owner[1]!r}; this one is {server}, {namespace!r}). Offsets of two servers would be taken "
                "for each other's: give each its own lake"
            )

    def mark(self, queue_id: int, lane: int) -> int | None:
        """The lane's high-water offset: the first that is not in the lake; None if nothing of it ever was."""
        return self._delta.transaction_version(mark_id(queue_id, lane))

    def floor(self, queue_id: int, lane: int) -> int | None:
        """The first offset of the lane that the lake promises to have: what came first, or what expiry left."""
        return self._delta.transaction_version(floor_id(queue_id, lane))

    def files(self) -> list[DataFile]:
        """Every file of this version, those of one lane in the order of their offsets."""
        rows = pa.table(self._delta.get_add_actions(flatten=True)).to_pylist()
        found = files_of_log(rows, time_column(self.schema), offset_column(self.schema))
        return sorted(found, key=lambda file: (file.queue, file.queue_ids or (), file.lanes or (), file.offsets or ()))

    def reopened(self) -> LakeTable:
        """At the newest version."""
        table = LakeTable.open(self.storage)
        table._settled = self._settled
        return table

    # What changes it --------------------------------------------------------------------------------------

    def append(
        self,
        files: Sequence[DataFile],
        marks: Mapping[LaneKey, int],
        floors: Mapping[LaneKey, int] | None = None,
        notes: Mapping[str, Any] | None = None,
    ) -> LakeTable:
        """Make files visible and move high-water offsets, together.

        Durable when this returns the table at its new version.
        """
        now = now_ms()
        adds = [self._add(file, now, data_change=True) for file in files]
        moved = [Transaction(mark_id(*lane), offset, now) for lane, offset in sorted(marks.items())]
        moved += _floors(floors, now)
        properties = CommitProperties(custom_metadata=dict(notes or {}), app_transactions=moved)
        return self._commit(adds, properties, list(marks))

    def replace(
        self,
        removed: Sequence[DataFile],
        added: Sequence[DataFile],
        floors: Mapping[LaneKey, int] | None = None,
    ) -> LakeTable:
        """Put `added` in the place of `removed`: the same rows where both are given, gone rows where nothing is added.

        Refused if any commit came after this handle's version: deltalake would not notice that a file was removed
        twice, and rows would double.
        """
        now = now_ms()
        same_rows = bool(added)
        actions: list[AddAction | RemoveAction] = [
            RemoveAction(file.path, not same_rows, now, file.size, file.partition) for file in removed
        ]
        actions += [self._add(file, now, data_change=not same_rows) for file in added]
        properties = CommitProperties(app_transactions=_floors(floors, now), max_commit_retries=0)
        return self._commit(actions, properties, [])

    def _add(self, file: DataFile, now_ms: int, *, data_change: bool) -> AddAction:
        statistics = file.statistics(time_column(self.schema), offset_column(self.schema))
        return AddAction(file.path, file.size, file.partition, now_ms, data_change, statistics)

    def _commit(
        self, actions: Sequence[AddAction | RemoveAction], properties: CommitProperties, lanes: Sequence[LaneKey]
    ) -> LakeTable:
        before = self.version
        try:
            self._delta.create_write_transaction(
                list(actions),
                "append",
                self._delta.schema(),
                PARTITION_BY,
                commit_properties=properties,
                post_commithook_properties=_NO_HOOKS,
            )
        except (DeltaError, OSError) as error:
            raise self._failure(error, before, lanes) from error
        table = self.reopened()
        table.settle()
        if table.version // CHECKPOINT_EVERY > before // CHECKPOINT_EVERY:
            table.checkpoint()
        return table

    def _failure(self, error: Exception, before: int, lanes: Sequence[LaneKey]) -> LakeError:
        """Why a commit failed, from what is there now: the error's own words may be those of any object store."""
        now = self.reopened()
        moved = [lane for lane in lanes if now.mark(*lane) != self.mark(*lane)]
        if moved or (not lanes and now.version != before) or now.properties != self.properties:
            what = f"the high-water offset of queue {moved[0][0]}, lane {moved[0][1]}" if moved else f"version {before}"
            return LakeConflict(
                f"another writer of {self.storage.url} was first: {what} has moved; nothing was written twice"
            )
        return _explained(error, f"a commit to {self.storage.url} failed")

    def settle(self) -> None:
        """Make this version survive a power cut, whichever process wrote it."""
        log_files.settle(self.storage.root, self._settled, self.version)
        self._settled = self.version

    def keep_for(self, days: int) -> LakeTable:
        """Let versions be read for so many days; the table that says so."""
        wanted = _retention(days)
        if all(self.properties.get(name) == value for name, value in wanted.items()):
            return self
        table = self.reopened()
        before = table.version
        try:
            table._delta.alter.set_table_properties(wanted, post_commithook_properties=_NO_HOOKS)
        except (DeltaError, OSError) as error:
            raise table._failure(error, before, []) from error
        table.settle()
        return table

    def clean_log(self) -> None:
        """A checkpoint of this version, and no log entries or checkpoints that no version of the kept days needs."""
        if not self.checkpoint():
            return
        for name in log_files.spare_checkpoints(self.storage.names(log_files.LOG)):
            self.storage.remove(f"{log_files.LOG}/{name}")
        try:
            self.reopened()._delta.cleanup_metadata()
        except (DeltaError, OSError) as error:
            raise _explained(error, f"the log of {self.storage.url} cannot be cleaned") from error

    def checkpoint(self) -> bool:
        """Shorten what a reader of the log must go through. Nothing depends on it, so a failure is only told."""
        try:
            self._delta.create_checkpoint()
            log_files.settle_checkpoint(self.storage.root, self.version)
        except (DeltaError, OSError) as error:
            logger.warning("no checkpoint of %s at version %d: %s", self.storage.url, self.version, error)
            return False
        return True

    def vacuum(self, hours: int, *, dry_run: bool = False) -> list[str]:
        """Remove files that no version younger than `hours` names, those of failed attempts among them."""
        removed: list[str] = self._delta.vacuum(
            hours,
            dry_run=dry_run,
            enforce_retention_duration=False,
            post_commithook_properties=_NO_HOOKS,
            full=True,
        )
        if not dry_run:
            self.reopened().settle()
        return removed


def _retention(days: int) -> dict[str, str]:
    return dict.fromkeys(RETENTION, f"interval {days} days")


def _floors(floors: Mapping[LaneKey, int] | None, now_ms: int) -> list[Transaction]:
    return [Transaction(floor_id(*lane), offset, now_ms) for lane, offset in sorted((floors or {}).items())]


def _explained(error: Exception, what: str) -> LakeError:
    if isinstance(error, OSError):
        known = full_disk(error, what)
        if isinstance(known, LakeFull):
            return known
    if "No space left" in str(error):  # of the Delta library, which has no number for it
        return LakeFull(f"{what}: no space is left. Nothing of it is visible; free some and run the job again: {error}")
    return LakeError(f"{what}: {error}")
