"""Checks of dead letters: who dies under `dead_letter_to` is copied to its target once, with the death it died."""

from __future__ import annotations

import msgspec

from penstock.model.rows import Commit
from penstock.node.cluster.remote_publish import is_remote_part
from tests.simulation.court import Court
from tests.simulation.mirror import Stored, scope_of, scoped
from tests.simulation.plan import GRAVEYARD


class DeathChecker:
    """Counts deaths and copies."""

    def __init__(self, court: Court) -> None:
        self._court = court
        self.promised: dict[tuple[str, str, str], int] = {}
        """(queue, group, message) → outbox rows that promise a copy"""
        self.copies: dict[tuple[str, str, str], int] = {}
        self.known: set[tuple[int, int, int, int]] = set()
        """(lane, group, offset, time) of deaths seen"""
        self.revived: set[tuple[str, str]] = set()
        """(queue, group) where dead letters were redriven, purged or sought: the copy may come too late"""

    def landed(self, commit: Commit, scope: int) -> None:
        """Every new death is promised a copy in the commit that tells of it."""
        promised: set[tuple[int, int]] = set()
        for row in commit.outbox:
            if not is_remote_part(row):
                promised.add((scoped(row.lane, scope), row.offset))
        self._count_promises(commit, scope)
        for change in commit.lanes:
            lane = scoped(change.lane, scope)
            for dead in change.dead:
                described = self._court.mirror.describe(lane, dead.group)
                if described is None:
                    continue
                target = described.group_config.dead_letter_to or described.queue_config.dead_letter_to
                for offset in range(dead.start, dead.end) if target is not None else ():
                    death = (lane, dead.group, offset, dead.dead_ms)
                    if death not in self.known and (lane, offset) not in promised and scope_of(lane) is None:
                        self._court.report("dead letter", f"{lane}:{offset} died without a promise in the outbox")
                    self.known.add(death)

    def _count_promises(self, commit: Commit, scope: int) -> None:
        for row in commit.outbox:
            if is_remote_part(row):
                continue
            lane = self._court.mirror.lane(scoped(row.lane, scope))
            document = _letter(row.document)
            uid = lane.messages[row.offset].uid if row.offset in lane.messages else "?"
            key = (document["queue"], document["group"], uid)
            self.promised[key] = self.promised.get(key, 0) + 1

    def copied(self, stored: Stored) -> None:
        """A copy arrived at the target."""
        deaths = (stored.message.headers or {}).get("x-death")
        if not deaths:
            self._court.report("phantom", f"{stored.uid} is in {GRAVEYARD!r} without a death")
            return
        key = (deaths[0]["queue"], deaths[0]["group"], stored.uid)
        self.copies[key] = self.copies.get(key, 0) + 1
        ephemeral = self._court.plan.queue(key[0]).is_ephemeral
        if self.copies[key] > self.promised.get(key, 0) and not ephemeral:
            died, copies = self.promised.get(key, 0), self.copies[key]
            text = f"{stored.uid} died {died} times in {key[0]}/{key[1]}, copy {copies} came"
            self._court.report("dead letter", text)

    def check_end(self) -> None:
        """All promises are kept, but for letters that were gone before they could be copied."""
        if self._court.mirror.outbox:
            self._court.report("stuck", f"{len(self._court.mirror.outbox)} rows are still in the outbox")
        for key, count in self.promised.items():
            queue, group, uid = key
            if self._court.plan.queue(queue).is_ephemeral or (queue, group) in self.revived:
                continue
            if self.copies.get(key, 0) < count:
                text = f"{uid} died {count} times in {queue}/{group}, but {self.copies.get(key, 0)} copies came"
                self._court.report("dead letter", text)


def _letter(document: bytes) -> dict[str, str]:
    letter = msgspec.json.decode(document, type=dict[str, object])
    return {name: str(value) for name, value in letter.items()}
