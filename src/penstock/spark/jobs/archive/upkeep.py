"""What keeps a lake small that `archive --watch` writes to all day: small files merged, the log cleaned, files freed.

Every minute the newest small files are merged, by size, so that a row is rewritten a few times at most. Every hour the
days that have ended are merged whole, the Delta log gets a checkpoint and loses what is older than the days that the
lake keeps, and files that left the lake so long ago are freed. Readers, and time travel within those days, go on.

Runs beside the archive's own commits and never ends it: what fails is told in the log, and tried again.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.spark.jobs.compact.merging import RunTasks, merge_files
from penstock.spark.jobs.frame import Progress
from penstock.spark.jobs.lakes import tables_there
from penstock.spark.lake import compaction
from penstock.spark.lake.files import DataFile
from penstock.spark.lake.storage import Storage
from penstock.spark.lake.table import LakeTable

MERGE_EVERY_S: Final = 60.0
CLEAN_EVERY_S: Final = 3_600.0
TARGET_BYTES: Final = 128 * 1024 * 1024

logger = logging.getLogger(__name__)


class Done(msgspec.Struct):
    """What was done so far."""

    merged: int = 0
    into: int = 0
    freed: int = 0


class Upkeep:
    """Looks now and then whether something is due; called between two looks at the archive's query."""

    def __init__(self, lake: Storage, progress: Progress, cores: int, run_tasks: RunTasks) -> None:
        self._lake = lake
        self._progress = progress
        self._cores = cores
        self._run_tasks = run_tasks
        self._merged_at = self._cleaned_at = float("-inf")
        self._told = ""
        self.done = Done()

    def look(self) -> None:
        """Do what is due."""
        now = time.monotonic()
        if now - self._merged_at < MERGE_EVERY_S or self._progress.stopping:
            return
        cleans = now - self._cleaned_at >= CLEAN_EVERY_S
        try:
            for name, table in tables_there(self._lake).items():
                self._tend(table, name, cleans)
            self._told = ""
        except Exception as error:
            if str(error) != self._told:
                logger.warning("the lake at %s was not tidied up, and will be later: %s", self._lake.url, error)
            self._told = str(error)
        self._merged_at = time.monotonic()
        if cleans:
            self._cleaned_at = self._merged_at

    def _tend(self, table: LakeTable, name: str, cleans: bool) -> None:
        table = self._merge(table, name, compaction.tiers(table.files(), TARGET_BYTES))
        if not cleans:
            return
        today = dt.datetime.now(dt.UTC).date().isoformat()
        table = self._merge(table, name, compaction.merges(table.files(), today, TARGET_BYTES))
        if not self._progress.stopping:
            table.clean_log()
            self.done.freed += len(table.vacuum(table.keep_days * 24))

    def _merge(self, table: LakeTable, name: str, plan: Sequence[list[DataFile]]) -> LakeTable:
        for changed, merges in merge_files(table, name, plan, self._cores, self._run_tasks):
            table = changed
            self.done.merged += merges.merged
            self.done.into += merges.into
            if self._progress.stopping:
                break
        return table
