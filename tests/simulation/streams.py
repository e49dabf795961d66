"""Checks of stream groups: what is read is as it was stored, and whoever waits for a message gets it in time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.api.results import Received
from tests.simulation.court import Court, passes
from tests.simulation.ledger import GroupView
from tests.simulation.mirror import GroupMirror, LaneMirror

LATE_MS: Final = 12_000
"""What could be handed out for so long, while somebody waited for it, is late. Stalls and pauses are far shorter."""


class StreamChecker:
    """Judges reads without leases."""

    def __init__(self, court: Court) -> None:
        self._court = court

    def read(self, view: GroupView, lane: int, messages: Sequence[Received]) -> None:
        """A read was answered."""
        seen = view.read.setdefault(lane, set())
        last = -1
        for received in messages:
            where = f"{lane}:{received.offset} in {view.queue}/{view.group}"
            stored = self._court.mirror.lane(lane).messages.get(received.offset)
            if stored is None:
                self._court.report("early", f"{where} was read before it was stored")
            elif stored.message != received.message:
                self._court.report("corrupted", f"{where} is {stored.message}, {received.message} was read")
            elif not passes(view, stored):
                self._court.report("filter", f"{where} does not pass the group's filter")
            if received.offset <= last:
                self._court.report("reordered", f"{where} was read after {last}")
            last = received.offset
            seen.add(received.offset)

    def waited(self, view: GroupView, scope: int, waited_ms: int) -> None:
        """A read waited so long and got nothing: was there nothing all the time?"""
        if waited_ms < LATE_MS or view.reads_open or view.ever_paused:
            return
        since_ms = self._court.now_ms() - LATE_MS
        for lane in self._court.lanes_of(view.queue, scope):
            for group in lane.groups.values():
                described = self._court.mirror.describe(lane.id, group.id)
                if described is not None and described.group == view.group:
                    self._check_late(view, lane, group, since_ms)

    def _check_late(self, view: GroupView, lane: LaneMirror, group: GroupMirror, since_ms: int) -> None:
        seen = view.read.get(lane.id, set())
        for offset in range(max(group.start or 0, group.committed, lane.first), lane.end):
            stored = lane.messages[offset]
            if offset in seen or stored.landed_ms >= since_ms or not passes(view, stored):
                continue
            if stored.expires_ms(view.config) is None and offset >= view.sought_to.get(lane.id, 0):
                where = f"{stored.uid} at {lane.id}:{offset} in {view.queue}/{view.group}"
                self._court.report("late", f"{where} is there since {stored.landed_ms}, a reader waited all the time")

    def unread(self, scope: int) -> list[str]:
        """What a stream group could see and nobody has read, in words."""
        found: list[str] = []
        for view in list(self._court.views.values()):
            if view.settings.kind != "stream" or self._court.view(view.queue, view.group, scope) is not view:
                continue
            for lane in self._court.lanes_of(view.queue, scope):
                for group in lane.groups.values():
                    described = self._court.mirror.describe(lane.id, group.id)
                    if described is not None and described.group == view.group:
                        found += self._unread_on(view, lane, group)
        return found

    def _unread_on(self, view: GroupView, lane: LaneMirror, group: GroupMirror) -> list[str]:
        seen = view.read.get(lane.id, set())
        return [
            f"{lane.messages[offset].uid} at {lane.id}:{offset} in {view.queue}/{view.group} was never read; "
            f"the group has committed {group.committed}"
            for offset in range(group.start or 0, lane.end)
            if offset not in seen and not self._is_excused(view, lane, offset)
        ]

    def _is_excused(self, view: GroupView, lane: LaneMirror, offset: int) -> bool:
        stored = lane.messages[offset]
        return (
            not passes(view, stored)
            or stored.expires_ms(view.config) is not None
            or (offset < lane.first and view.config.retain_messages is not None)
            or offset < view.sought_to.get(lane.id, 0)
        )
