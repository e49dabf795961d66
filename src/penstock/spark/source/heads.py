"""Asks a server what its queues hold now, not more often than it is good for the server.

Spark asks a stream for its latest offset a hundred times a second while nothing happens; what was seen is given again
for a while. Next stop: `planning.py`, which plans with it.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from time import monotonic
from typing import Final

import msgspec

from penstock.api.scan import LanePlace
from penstock.model import EVENTS_PATTERN, EVENTS_QUEUE, is_events_queue
from penstock.model.errors import InvalidArgument, NotFound
from penstock.spark.clients import Access, client_of
from penstock.spark.source.options import Bound, QueueChoice, chosen_queues, prefixes
from penstock.spark.source.planning import Heads, QueueHead, check_lanes

AGE_S_MIN: Final = 0.05
AGE_FACTOR: Final = 10
"""What takes long to ask for is asked for less often: at most a tenth of the time is spent with it. What took long only
once, because a server had died, does not count: nothing would be seen for ten times as long as it was away."""


class HeadReader:
    """The heads of the chosen queues. Pickled without a connection: `client_of` finds it again."""

    def __init__(self, access: Access, choice: QueueChoice) -> None:
        self._access = access
        self._choice = choice
        self._seen: Heads | None = None
        self._seen_at = 0.0
        self._age_s = AGE_S_MIN
        self._took_s = 0.0

    def now(self) -> Heads:
        """What is there at this moment. What is gone is left out."""
        client = client_of(self._access)
        existing = [name for prefix in prefixes(self._choice) for name in client.queues(prefix)]
        heads: Heads = {}
        for name in chosen_queues(self._choice, existing):
            try:
                found = client.lanes(name)
            except NotFound:
                continue
            heads[name] = QueueHead(found.queue_id, self._assigned(name, {one.lane: one for one in found.lanes}))
        return heads

    def _assigned(self, queue: str, lanes: dict[int, LanePlace]) -> dict[int, LanePlace]:
        """The lanes that are to be read: all of them, unless some were named."""
        wanted = self._choice.lanes.get(queue)
        if wanted is None:
            return lanes
        if missing := sorted(set(wanted) - set(lanes)):
            raise InvalidArgument(
                f"option assign names lane {missing[0]} of queue {queue!r}, which has lanes 0 to {len(lanes) - 1}"
            )
        return {lane: lanes[lane] for lane in wanted}

    def at_times(self, place: Bound, heads: Heads) -> Heads:
        """The heads, with where each lane was at the time that the place says for it."""
        check_lanes(place, heads)
        client = client_of(self._access)
        found: Heads = {}
        for queue, head in heads.items():
            lanes = dict(head.lanes)
            for time_ms in {place.time_of(queue, lane) for lane in lanes}:
                with suppress(NotFound):  # gone meanwhile: planning says so
                    for one in client.lanes(queue, time_ms).lanes:
                        if one.lane in lanes and place.time_of(queue, one.lane) == time_ms:
                            lanes[one.lane] = msgspec.structs.replace(lanes[one.lane], at_time=one.at_time)
            found[queue] = QueueHead(head.id, lanes)
        return found

    def recent(self) -> Heads:
        """The same, up to a moment old."""
        began = monotonic()
        if self._seen is None or began - self._seen_at >= self._age_s:
            self._seen = self.now()
            self._seen_at = monotonic()
            took_s = self._seen_at - began
            self._age_s = max(AGE_S_MIN, AGE_FACTOR * min(took_s, self._took_s))
            self._took_s = took_s
        return self._seen

    def check_names(self, found: Collection[str]) -> None:
        """Raise where a queue that was named is not there; `$events` is there where any server's events are."""
        for name in self._choice.names:
            if name == EVENTS_QUEUE and EVENTS_PATTERN in self._choice.patterns and any(map(is_events_queue, found)):
                continue
            if name not in found:
                raise NotFound(f"there is no queue {name!r} in namespace {self._access.namespace!r}")
