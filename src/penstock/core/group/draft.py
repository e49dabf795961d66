"""Many verdicts on one lease: carried out aside in steps, and taken over at once.

The steps change a copy of the lease and collect what becomes of its messages in indexes of their own, so that others go
on meanwhile and a step that fails leaves nothing behind. Taking over joins whole indexes. It is refused where the lease
or the group's options changed meanwhile: then the verdicts are carried out anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.core.group.leases import Lease
from penstock.core.group.settle import settle
from penstock.core.group.state import WorkState
from penstock.core.log import Log
from penstock.model.errors import InvalidArgument, LeaseLost
from penstock.model.verdict import Verdict
from penstock.model.work import Steps

VERDICTS_AT_ONCE: Final = 500


class _Aside:
    """The lane of a draft, which nobody commits."""

    def __init__(self) -> None:
        self.log = Log()
        self.first = self.end = self.visible_end = 0
        self.has_died = False

    def mark(self, group: WorkState) -> None:
        """Nothing is sealed here: who adopts the draft marks the lane."""


class Draft:
    """What verdicts make of a lease."""

    __slots__ = ("before", "lease", "state")

    def __init__(self, group: WorkState, lease: Lease) -> None:
        self.before = list(lease.entries)
        """What the lease held."""
        self.lease = Lease(lease.id, lease.consumer, lease.deadline_ms, list(lease.entries), lease.session)
        self.state = WorkState(group.id, group.settings, _Aside(), group.next)
        self.state.leases.add(self.lease)


def can_draft(group: WorkState, lease_id: int) -> bool:
    """Whether what verdicts do depends on the lease alone: not where it holds partitions that others wait for."""
    return not group.settings.ordered or not any(entry.partition for entry in group.lease(lease_id).entries)


def draft(group: WorkState, now_ms: int, lease_id: int, verdicts: Sequence[Verdict]) -> Steps[Draft]:
    """Carry out verdicts by rising offset aside: all of them, or an error."""
    made = Draft(group, group.lease(lease_id))
    end = 0
    for first in range(0, len(verdicts), VERDICTS_AT_ONCE):
        if first:
            yield None
        some = verdicts[first : first + VERDICTS_AT_ONCE]
        start = some[0].start
        assert start is not None, "verdicts on all that is left of a lease are not drafted"
        if start < end:
            raise InvalidArgument(f"offset {start} is settled twice in one call")
        if lease_id not in made.state.leases.by_id:
            raise LeaseLost(f"offset {start} is not in lease {lease_id}: settled, or never there")
        settle(made.state, now_ms, lease_id, some)
        end = some[-1].end
    return made


def fits(group: WorkState, made: Draft) -> bool:
    """Whether the lease and the options are as they were when a draft was begun."""
    lease = group.leases.by_id.get(made.lease.id)
    return lease is not None and lease.entries == made.before and group.settings == made.state.settings


def adopt(group: WorkState, now_ms: int, made: Draft) -> None:
    """Take over a draft that fits."""
    assert fits(group, made), f"lease {made.lease.id} changed since its draft"
    lease, state = group.leases.by_id[made.lease.id], made.state
    group.lane.mark(group)
    if group.settings.single_active_consumer and group.active_consumer == lease.consumer:
        group.active_until_ms = now_ms + group.settings.lease_ms
    if made.lease.id in state.leases.by_id:
        group.leases.keep(lease, made.lease.entries)
    else:
        group.leases.take_all(lease)
    group.waiting.join(state.waiting)
    group.dead.join(state.dead)
    group.events.join(state.events)
    if state.died:
        group.died += state.died
        group.lane.has_died = True
