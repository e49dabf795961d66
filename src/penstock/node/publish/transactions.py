"""Transactions: any verdicts and publishes, over several queues, as one commit; all of it or nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from penstock.api.results import Lease, Receipt
from penstock.core.group.draft import Draft
from penstock.core.lane import Lane
from penstock.core.log import Missing
from penstock.model.rows import slot_of
from penstock.model.verdict import Verdict
from penstock.node.cluster.remote_publish import RemotePublish
from penstock.node.commit.commits import Commits
from penstock.node.consume.claims import Claims
from penstock.node.lanes import LaneSet
from penstock.node.publish.append import Known, Publisher
from penstock.node.publish.parts import Part, Results

Settles = Mapping[Lease, Sequence[Verdict]]
Drafts = Mapping[Lease, Draft | None]


@dataclass(eq=False, repr=False)
class Transactions:
    """Commits verdicts and publishes together."""

    _lanes: LaneSet
    _commits: Commits
    _claims: Claims
    _publisher: Publisher
    _remote: RemotePublish
    _check_free: Callable[[Sequence[Part]], None]
    """Raises while something published before to the same queues is in the spool."""

    async def commit(self, settles: Settles, count: int, parts: Sequence[Part]) -> Receipt:
        """Check everything, then do everything, without a wait between the two."""
        slots = {slot_of(lease.lane) for lease in settles}
        await self._remote.gather(slots)
        self._check_free(parts)  # before it is sent to an owner, who does not know what this node's spool holds
        if not settles:
            self._remote.check_owners(parts)
        self._remote.check_rows(parts)
        home = min(slots) if slots else self._remote.home_of(parts)
        await self._commits.room(self._publisher.check_limits(count, parts), home)
        while True:
            drafts = {lease: await self._claims.draft(lease, verdicts) for lease, verdicts in settles.items()}
            known = await self._publisher.known_ids(parts, home)
            try:
                results = await self._try(settles, drafts, parts, known, home)
            finally:
                known.close()
            if results is not None:
                await self._commits.commit(slot=home)
                return Receipt(count, await self._remote.landed(results))

    async def _try(
        self, settles: Settles, drafts: Drafts, parts: Sequence[Part], known: Known, home: int | None
    ) -> Results | None:
        """Do it all, if everything it needs is in memory at one and the same moment; None to try again."""
        lanes = await self._lanes_of(settles, parts, home)
        if lanes is None or not known.is_true_of(lanes):
            return None
        try:
            if not self._check(lanes, settles, drafts, parts):
                return None
        except Missing:
            return None  # what was in memory a moment ago was pushed out: ready_lanes feeds it again
        for lease, verdicts in settles.items():
            lane = lanes[lease.lane]
            self._claims.judge(lane, lease, verdicts, drafts[lease])
            self._commits.touch(lane)
        own = {id: lanes[id] for id in self._remote.at_home(parts, home)}
        return self._publisher.append_ready(parts, [own.get(part.lane) for part in parts], known.rows, home)

    async def _lanes_of(self, settles: Settles, parts: Sequence[Part], home: int | None) -> dict[int, Lane] | None:
        """Every lane concerned, loaded at one and the same moment; None to try again."""
        for lease in settles:
            self._claims.home_of(lease)
            if self._lanes.get(lease.lane) is None:
                await self._lanes.load(lease.lane)
        ready = await self._publisher.ready_lanes(parts, home)
        settled = {lease.lane: self._lanes.get(lease.lane) for lease in settles}
        if ready is None or None in settled.values():
            return None
        return ready | {id: lane for id, lane in settled.items() if lane is not None}

    def _check(self, lanes: Mapping[int, Lane], settles: Settles, drafts: Drafts, parts: Sequence[Part]) -> bool:
        """Raise where it cannot be done; False where a lease changed since its verdicts were drafted."""
        for lease, verdicts in settles.items():
            group, made = lanes[lease.lane].work(lease.group), drafts[lease]
            if made is None:
                group.check_settle(lease.id, verdicts)
            elif not group.fits(made):
                return False
        for lane in lanes.values():
            self._publisher.check_room(lane, parts)
        return True
