"""Checks of hand-outs and verdicts: nothing twice, nothing early, nothing late, nothing after it was settled.

Clients tell of each operation when it begins and when it ends. Between the two, whatever it could have done is
allowed. What was answered is held against the broker from then on, until a seek or a redrive undoes it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.api.results import Claim, Lease, Received
from penstock.model.errors import LeaseLost, PenstockError
from penstock.model.verdict import Verdict
from tests.simulation.court import Court, passes
from tests.simulation.ledger import Fate, GroupView, Holder
from tests.simulation.mirror import HeldLease, Stored, scoped

SLACK_MS = 1
"""Rounding of virtual seconds to milliseconds."""


class Claiming(msgspec.Struct):
    """A claim that is under way."""

    view: GroupView
    scope: int
    seq: int
    started_ms: int
    lease_ms: int
    settle: bool


class Settling(msgspec.Struct):
    """Verdicts that are under way."""

    view: GroupView
    lane: int
    group: int
    lease: int
    verdicts: dict[int, Verdict]
    attempts: dict[int, int]
    seq: int
    started_ms: int
    alive: bool
    """Whether, when it began, the lease held all of it on the disk."""


class DeliveryChecker:
    """Judges claims, verdicts, extensions and what operators do to groups."""

    def __init__(self, court: Court) -> None:
        self._court = court
        self.count = 0

    # Claims -----------------------------------------------------------------------------------------------

    def claim_begins(self, view: GroupView, scope: int, lease_ms: int | None, *, settle: bool) -> Claiming:
        seq = self._court.next_seq()
        view.claims_open.add(seq)
        if settle:
            view.settling_open.add(seq)
        span_ms = view.settings.lease_ms if lease_ms is None else lease_ms
        return Claiming(view, scope, seq, self._court.now_ms(), span_ms, settle)

    def claim_failed(self, claiming: Claiming) -> None:
        """What it may have handed out, nobody knows."""
        view = claiming.view
        view.claims_open.discard(claiming.seq)
        view.settling_open.discard(claiming.seq)
        view.claims_failed.append(self._court.next_seq())
        view.swallowed = view.swallowed or claiming.settle

    def claim_answered(self, claiming: Claiming, claim: Claim, consumer: str) -> None:
        view = claiming.view
        view.claims_open.discard(claiming.seq)
        view.settling_open.discard(claiming.seq)
        if not len(claim):
            return
        lane = self._court.lane_id(claim.queue, claim.lane, claiming.scope)
        lease = None if claim.lease is None else claim.lease.id
        handed_ms = claim.deadline_ms - claiming.lease_ms if lease is not None else self._court.now_ms()
        stale = self._is_stale(claiming, claim)
        if lease is not None and not stale:
            self._check_deadline(claim, claim.lease, lane)
        if view.settings.rate is not None and lease is not None:
            view.hand_outs.setdefault(lane, []).append((handed_ms, len(claim)))
        if stale:
            view.claims_failed.append(self._court.next_seq())
        for received in claim.messages:
            self.count += 1
            stored = self._check_message(view, lane, received, handed_ms, claim.lease, stale=stale)
            if lease is None:
                view.fate(lane, received.offset).reasons.add("acknowledged as it was handed out")
            if stored is not None and not stale:
                self._check_fate(claiming, lane, received, handed_ms, stored)
                self._hand_out(claiming, lane, received, lease, consumer, claim.deadline_ms)

    def _is_stale(self, claiming: Claiming, claim: Claim) -> bool:
        """An answer so late that what it says may be true no more."""
        late = claim.lease is not None and claim.deadline_ms <= self._court.now_ms()
        return late or claiming.view.sought_since(claiming.seq)

    def _check_deadline(self, claim: Claim, lease: Lease | None, lane: int) -> None:
        held = None if lease is None else self._held(lane, lease.group, lease.id)
        if held is None:
            self._court.report("lost", f"the lease of {claim!r} is not on the disk")
        elif held.deadline_ms != claim.deadline_ms:
            text = f"the lease of {claim!r} ends at {held.deadline_ms}, its holder was told {claim.deadline_ms}"
            self._court.report("deadline", text)

    def _held(self, lane: int, group: int, lease: int) -> HeldLease | None:
        known = self._court.mirror.lanes.get(lane)
        found = None if known is None else known.groups.get(group)
        return None if found is None else found.leases.get(lease)

    def _check_message(
        self, view: GroupView, lane: int, received: Received, handed_ms: int, lease: Lease | None, *, stale: bool
    ) -> Stored | None:
        """What every hand-out must be, whatever happened before."""
        report = self._court.report
        stored = self._court.mirror.lane(lane).messages.get(received.offset)
        where = f"{lane}:{received.offset} in {view.queue}/{view.group}"
        if stored is None:
            report("early", f"{where} was handed out before it was stored")
            return None
        if stored.message != received.message or stored.published_ms != received.published_ms:
            report("corrupted", f"{where} is {stored.message}, {received.message} was handed out")
        is_first = self._handed_out(lane, lease) < stored.commit
        if handed_ms < stored.landed_ms - SLACK_MS and is_first and not stale:
            # A claim may take it before it is stored, if what it took is not stored before it. A stale one may have
            # ended before either was.
            report("early", f"{where} was handed out at {handed_ms}, its publish landed at {stored.landed_ms}")
        # Overflow makes dead whatever is oldest, filtered or not, and a redrive brings it back: known, not nice.
        if not passes(view, stored) and not (view.ever_redriven and view.config.overflow == "dead_letter_oldest"):
            report("filter", f"{where} does not pass the group's filter")
        most = view.settings.max_attempts
        if received.attempt < 1 or (most and received.attempt > most):
            report("attempt", f"{where} was handed out as attempt {received.attempt} of {most}")
        if not view.ever_redriven:  # a redrive gives messages back without delay and ttl
            self._check_times(view, stored, where, handed_ms, settled=lease is None)
        return stored

    def _handed_out(self, lane: int, lease: Lease | None) -> int:
        """The commit that made a lease; 0 for none."""
        known = self._court.mirror.lanes.get(lane)
        group = None if known is None or lease is None else known.groups.get(lease.group)
        return 0 if group is None or lease is None else group.handed_out.get(lease.id, 0)

    def _check_times(self, view: GroupView, stored: Stored, where: str, handed_ms: int, *, settled: bool) -> None:
        due_ms, expires_ms = stored.due_ms(view.config), stored.expires_ms(view.config)
        if handed_ms < due_ms:
            self._court.report("early", f"{where} was handed out at {handed_ms}, it is due at {due_ms}")
        if expires_ms is not None and handed_ms >= expires_ms and not settled:
            self._court.report("expired", f"{where} was handed out at {handed_ms}, it expired at {expires_ms}")
        paused_ms = view.paused_since_ms
        if paused_ms is not None and not view.pauses_open and handed_ms > paused_ms and not settled:
            self._court.report("paused", f"{where} was handed out at {handed_ms}, paused at {view.paused_since_ms}")

    def _check_fate(self, claiming: Claiming, lane: int, received: Received, handed_ms: int, stored: Stored) -> None:
        """What the answers so far say about the next hand-out."""
        view, report = claiming.view, self._court.report
        fate = view.fate(lane, received.offset)
        if view.sought_since(fate.seq) and fate.seq:
            return
        where = f"{stored.uid} at {lane}:{received.offset} in {view.queue}/{view.group}"
        if fate.acked:
            report("duplicated", f"{where} was handed out although its ack was answered")
        if fate.rejected and not view.redriven_since(fate.rejected):
            report("duplicated", f"{where} was handed out although its reject was answered")
        if fate.holder is not None and handed_ms < fate.holder.deadline_ms:
            report("concurrent", f"{where} was handed out at {handed_ms} while {fate.holder} had it")
        if handed_ms < fate.not_before_ms and not view.redriven_since(fate.seq):
            report("early", f"{where} was handed out at {handed_ms}, not before {fate.not_before_ms} was agreed")
        low = 1 if view.redriven_since(fate.seq) else fate.low
        # A claim whose messages could not be read waits on, and what it had leased unseen may have run out by then.
        outlived = claiming.started_ms + claiming.lease_ms <= self._court.now_ms()
        high = fate.high + view.ghosts(fate.seq, claiming.seq) + outlived
        if not low <= received.attempt <= high:
            report("attempt", f"{where} was handed out as attempt {received.attempt}, not {low} to {high}")

    def _hand_out(
        self, claiming: Claiming, lane: int, received: Received, lease: int | None, consumer: str, deadline_ms: int
    ) -> None:
        fate = claiming.view.fate(lane, received.offset)
        fate.seq = self._court.next_seq()
        fate.low = fate.high = received.attempt + 1
        fate.not_before_ms = fate.acked = fate.rejected = 0
        if lease is None:
            fate.acked = claiming.seq
            fate.holder = None
        else:
            fate.holder = Holder(lease, consumer, deadline_ms)

    # Verdicts ---------------------------------------------------------------------------------------------

    def settle_begins(self, view: GroupView, scope: int, claim: Claim, verdicts: dict[int, Verdict]) -> Settling:
        """Verdicts by offset on what a claim holds."""
        assert claim.lease is not None
        lane = scoped(claim.lease.lane, scope)
        held = self._held(lane, claim.lease.group, claim.lease.id)
        alive = held is not None and all(held.covers(offset) for offset in verdicts)
        attempts = {received.offset: received.attempt for received in claim.messages}
        settling = Settling(
            view,
            lane,
            claim.lease.group,
            claim.lease.id,
            verdicts,
            attempts,
            self._court.next_seq(),
            self._court.now_ms(),
            alive,
        )
        for offset, verdict in verdicts.items():
            fate = view.fate(lane, offset)
            fate.reasons.add(f"maybe {verdict.action}")
            if fate.holder is not None and fate.holder.lease == settling.lease:
                fate.holder = None
                fate.low = min(fate.low, attempts[offset])
        return settling

    def settle_failed(self, settling: Settling, error: PenstockError) -> None:
        """Nothing happened if the lease was lost; else nobody knows."""
        if not isinstance(error, LeaseLost) or settling.view.sought_since(settling.seq):
            return
        held = self._held(settling.lane, settling.group, settling.lease)
        if held is None or held.deadline_ms <= self._court.now_ms() or not settling.alive:
            return
        if all(held.covers(offset) for offset in settling.verdicts):
            self._court.report("lease", f"a verdict on live lease {settling.lease} was refused: {error}")

    def settle_answered(self, settling: Settling) -> None:
        view = settling.view
        if not settling.alive:
            self._court.report("lease", f"verdicts on lease {settling.lease} were taken, but it was gone before")
        for offset, verdict in settling.verdicts.items():
            fate = view.fate(settling.lane, offset)
            fate.reasons.discard(f"maybe {verdict.action}")
            if verdict.action in ("ack", "reject"):
                fate.reasons.add(verdict.action)
            if fate.seq > settling.seq or view.sought_since(settling.seq):
                continue  # handed out again meanwhile: that is what is known now
            self._judge(settling, fate, offset, verdict)

    def _judge(self, settling: Settling, fate: Fate, offset: int, verdict: Verdict) -> None:
        attempt = settling.attempts[offset]
        fate.seq = settling.seq  # from then on others may have had it
        redriven = settling.view.redriven_since(settling.seq)
        fate.low = fate.high = attempt + (verdict.action in ("nack", "ack", "reject"))
        if verdict.action == "ack":
            fate.acked = settling.seq
        elif verdict.action == "reject":
            fate.rejected = 0 if redriven else settling.seq
        elif verdict.action != "release":
            fate.not_before_ms = settling.started_ms + self._span(settling.view, verdict, attempt)
        if redriven:
            fate.low, fate.not_before_ms = 1, 0

    def _span(self, view: GroupView, verdict: Verdict, attempt: int) -> int:
        """At least so long a message stays away."""
        if verdict.delay_ms is not None or verdict.action == "postpone":
            return verdict.delay_ms or 0
        settings = view.settings
        span = min(settings.backoff_ms * settings.backoff_factor ** (attempt - 1), float(settings.backoff_max_ms))
        return int(span * (1.0 - settings.backoff_jitter))

    # Leases -----------------------------------------------------------------------------------------------

    def extend_begins(self, view: GroupView, scope: int, claim: Claim, span_ms: int) -> None:
        """From now on the lease may end at the old or at the new deadline."""
        for fate in self._fates_of(view, scope, claim):
            if fate.holder is not None:
                fate.holder.deadline_ms = min(fate.holder.deadline_ms, self._court.now_ms() + span_ms)

    def extend_answered(self, view: GroupView, scope: int, claim: Claim, deadline_ms: int) -> None:
        if view.ever_sought:
            return
        for fate in self._fates_of(view, scope, claim):
            if fate.holder is not None:
                fate.holder.deadline_ms = deadline_ms

    def _fates_of(self, view: GroupView, scope: int, claim: Claim) -> list[Fate]:
        assert claim.lease is not None
        fates = [view.fate(scoped(claim.lease.lane, scope), offset) for offset in claim.offsets()]
        return [fate for fate in fates if fate.holder is not None and fate.holder.lease == claim.lease.id]

    def detach_begins(self, view: GroupView, consumer: str) -> None:
        for fate in view.fates.values():
            if fate.holder is not None and fate.holder.consumer == consumer:
                fate.holder = None

    # Operators --------------------------------------------------------------------------------------------

    def seek_begins(self, view: GroupView, places: dict[int, int]) -> None:
        """Every lane may go to its place from now on."""
        view.seeks_open += 1
        for lane, place in places.items():
            view.sought_to[lane] = max(view.sought_to.get(lane, 0), place)

    def seek_ended(self, view: GroupView) -> None:
        view.seeks_open -= 1
        view.seek_seq = self._court.next_seq()
        for fate in view.fates.values():
            fate.acked = fate.rejected = fate.not_before_ms = 0
            fate.holder = None
            fate.low = 1

    def redrive_begins(self, view: GroupView) -> None:
        view.redrives_open += 1
        self._court.mirror.redriven.add((view.queue, view.group))

    def redrive_ended(self, view: GroupView) -> None:
        view.redrives_open -= 1
        view.redrive_seq = self._court.next_seq()

    def pause_begins(self, view: GroupView) -> None:
        view.pauses_open += 1
        view.ever_paused = True
        view.paused_since_ms = None

    def pause_ended(self, view: GroupView, *, paused: bool, known: bool) -> None:
        view.pauses_open -= 1
        if known and not view.pauses_open:
            view.paused_since_ms = self._court.now_ms() if paused else None

    # The end ----------------------------------------------------------------------------------------------

    def check_rates(self, resets: int) -> None:
        """In any span no more than the rate allows, with what one second may save up; a reload begins anew."""
        for view in self._court.views.values():
            rate = view.settings.rate
            for lane, hand_outs in view.hand_outs.items() if rate is not None else ():
                self._check_rate(view, lane, sorted(hand_outs), rate or 0.0, resets)

    def _check_rate(
        self, view: GroupView, lane: int, hand_outs: Sequence[tuple[int, int]], rate: float, resets: int
    ) -> None:
        saved = max(1.0, rate) * (1 + resets)
        for index, (start_ms, _) in enumerate(hand_outs):
            total = 0
            for time_ms, count in hand_outs[index:]:
                total += count
                if total > saved + (time_ms - start_ms + SLACK_MS) * rate / 1000 + 1e-6:
                    text = f"{total} messages of lane {lane} of {view.queue}/{view.group} in {time_ms - start_ms} ms"
                    self._court.report("rate", f"{text}; the rate is {rate}")
                    return
