"""Checks of dead letters: who dies under `dead_letter_to` is copied to its target once, with the death it died."""

from __future__ import annotations

from collections import Counter

import msgspec

from penstock.model.rows import Commit
from penstock.node.cluster.remote_publish import is_remote_part
from tests.simulation.court import Court
from tests.simulation.mirror import Stored, scope_of, scoped
from tests.simulation.plan import GRAVEYARD

Key = tuple[str, str, str]
"""(queue, group, message)"""


class DeathChecker:
    """Counts deaths and copies."""

    def __init__(self, court: Court) -> None:
        self._court = court
        self.promised: dict[Key, int] = {}
        """(queue, group, message) → copies that were promised in the outbox, or made with the death"""
        self._rows: dict[int, Key] = {}
        """Of the outbox: what each row promises."""
        self.copies: dict[Key, int] = {}
        self.known: set[tuple[int, int, int, int]] = set()
        """(lane, group, offset, time) of deaths seen"""
        self.revived: set[tuple[str, str]] = set()
        """(queue, group) where dead letters were redriven, purged or sought: the copy may come too late, or alone"""

    def done(self, commit: Commit, scope: int) -> dict[tuple[int, int, int], Key]:
        """(lane, group, offset) of what is done in groups that keep no dead, of the lanes that a commit is about."""
        found: dict[tuple[int, int, int], Key] = {}
        for change in commit.lanes:
            lane = self._court.mirror.lane(scoped(change.lane, scope))
            for group in lane.groups.values():
                described = self._court.mirror.describe(lane.id, group.id)
                if described is None or described.settings.dead_kept:
                    continue
                unsettled = group.states(lane.end)
                for offset, stored in lane.messages.items():
                    if offset not in unsettled:
                        found[lane.id, group.id, offset] = (described.queue, described.group, stored.uid)
        return found

    def landed(self, commit: Commit, scope: int, left: Counter[Key], copies: list[Stored]) -> None:
        """Every new death is copied by the commit that tells of it, or promised a copy.

        `left` are those that are done with this commit and keep no dead, `copies` what it has put into the graveyard.
        """
        arrived = Counter(key for stored in copies if (key := _key_of(stored)) is not None)
        settled = Counter(self._rows.pop(id) for id in commit.outbox_deleted if id in self._rows)
        for key, count in arrived.items():
            moved = min(left[key], count) - settled[key]
            self.promised[key] = self.promised.get(key, 0) + max(0, moved)
        promised: set[tuple[int, int, str]] = set()
        for row in commit.outbox:
            if not is_remote_part(row):
                promised.add((scoped(row.lane, scope), row.offset, _letter(row.document)["group"]))
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
                    is_promised = (lane, offset, described.group) in promised
                    if death not in self.known and not is_promised and scope_of(lane) is None:
                        stored = self._court.mirror.lane(lane).messages[offset]
                        self._check_copied((described.queue, described.group, stored.uid), arrived, lane, offset)
                    self.known.add(death)

    def _check_copied(self, key: Key, arrived: Counter[Key], lane: int, offset: int) -> None:
        if not arrived[key]:
            self._court.report("dead letter", f"{lane}:{offset} died without a copy, and without a promise of one")
        arrived[key] -= 1
        self.promised[key] = self.promised.get(key, 0) + 1

    def _count_promises(self, commit: Commit, scope: int) -> None:
        for row in commit.outbox:
            if is_remote_part(row):
                continue
            lane = self._court.mirror.lane(scoped(row.lane, scope))
            document = _letter(row.document)
            uid = lane.messages[row.offset].uid if row.offset in lane.messages else "?"
            key = (document["queue"], document["group"], uid)
            self._rows[row.id] = key
            self.promised[key] = self.promised.get(key, 0) + 1

    def copied(self, stored: Stored) -> None:
        """A copy arrived at the target."""
        key = _key_of(stored)
        if key is None:
            self._court.report("phantom", f"{stored.uid} is in {GRAVEYARD!r} without a death")
            return
        self.copies[key] = self.copies.get(key, 0) + 1
        # Redriven by the commit in which it died, it is not seen dead.
        is_unclear = self._court.plan.queue(key[0]).is_ephemeral or key[:2] in self.revived
        if self.copies[key] > self.promised.get(key, 0) and not is_unclear:
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


def _key_of(stored: Stored) -> Key | None:
    """Whose copy it is; None where it says nothing of a death."""
    deaths = (stored.message.headers or {}).get("x-death")
    return (deaths[0]["queue"], deaths[0]["group"], stored.uid) if deaths else None


def _letter(document: bytes) -> dict[str, str]:
    letter = msgspec.json.decode(document, type=dict[str, object])
    return {name: str(value) for name, value in letter.items()}
