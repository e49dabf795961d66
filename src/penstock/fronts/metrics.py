"""`/metrics`: the numbers of the node, of each front and of the process in Prometheus' text form.

Names and help texts of the node's numbers are here, and how a queue becomes a label; counting is done elsewhere
(`node/observe/counters.py`, and each front's `FrontMeasures`). No registry is shared: every scrape makes its families
again. It may not know lanes, stores or sockets.

Queues past the cap are one sum, labelled queue="(other)" with an empty namespace, which no user's queue can have. Only
gauges have it: which queues it stands for changes from scrape to scrape, and a counter that falls would be read as a
restart. `penstock_messages_total` counts all queues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from penstock.api.front_broker import FrontBroker
from penstock.api.measures import COUNTERS, AlarmNumbers, Histogram, NodeNumbers, ScrubNumbers, SpoolNumbers
from penstock.version import VERSION

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
QUEUES_MAX: Final = 1_000
OTHER: Final = "(other)"

_QUEUE: Final = ("namespace", "queue")
_GROUP: Final = ("namespace", "queue", "group")
_IN_MEMORY: Final = " Queues that are not in memory are left out."
_KNOWN: Final = " Left out where it could not be read in time."

_GROUP_GAUGES: Final = (
    ("ready", "Messages that can be claimed now."),
    ("leased", "Messages in flight: handed out and not settled."),
    ("scheduled", "Messages that wait for a time: delays, retries, postponed."),
    ("dead", "Dead letters kept."),
    ("lag", "Messages not done and not dead; of stream groups, not committed."),
)
_COUNTER_TEXTS: Final = {
    "delivered": "Messages handed out",
    "acked": "Messages acknowledged",
    "nacked": "Messages that failed and were given back",
    "rejected": "Messages rejected for good",
    "released": "Messages given back without spending an attempt",
    "postponed": "Messages put off by their consumer",
    "lease_expired": "Messages whose lease ended before they were settled",
    "left": "Messages that came back because their consumer left",
    "dead": "Messages that became dead letters",
    "expired": "Messages that outlived their ttl, dropped or dead",
    "dropped": "Messages dropped because the queue was full",
    "redriven": "Dead letters given to their group again",
    "purged": "Messages purged",
    "committed": "Messages over which a stream group's commits moved",
}

_process: Final = ProcessCollector(registry=None)


async def render(broker: FrontBroker, queues_max: int = QUEUES_MAX, fronts: Sequence[FrontMeasures] = ()) -> bytes:
    """The page that a scraper reads, at most `queues_max` queues one by one, and what each front measures."""
    numbers = await broker.measures(queues_max=queues_max)
    # With a thousand queues the text takes longer to write than the loop may stand still.
    return await asyncio.to_thread(_write, numbers, fronts)


def _write(numbers: NodeNumbers, fronts: Sequence[FrontMeasures]) -> bytes:
    return generate_latest(_Page(numbers, fronts))


class _Page(Collector):
    def __init__(self, numbers: NodeNumbers, fronts: Sequence[FrontMeasures]) -> None:
        self._numbers = numbers
        self._fronts = fronts

    def collect(self) -> Iterator[Metric]:
        yield from _node_families(self._numbers)
        yield from _alarm_families(self._numbers.alarms)
        if self._numbers.spool is not None:
            yield from _spool_families(self._numbers.spool, self._numbers.now_ms)
        if self._numbers.scrub is not None:
            yield from _scrub_families(self._numbers.scrub)
        yield from _queue_families(self._numbers)
        yield from _group_gauges(self._numbers)
        yield from _group_counters(self._numbers)
        for front in self._fronts:
            yield from front.families()
        yield from _process.collect()


# The node ------------------------------------------------------------------------------------------------


def _node_families(numbers: NodeNumbers) -> Iterator[Metric]:
    counters, rest = numbers.counters, numbers.rest
    yield _labelled(GaugeMetricFamily("penstock_build", "1, with the version.", labels=["version"]), [VERSION], 1)
    queues = GaugeMetricFamily(
        "penstock_queues",
        "Queues: shown one by one, in memory and in the sum (other), not in memory.",
        labels=["state"],
    )
    unloaded = max(0, numbers.queues_declared - numbers.queues_in_memory)
    for state, count in (("shown", len(numbers.queues)), ("other", rest.queues), ("unloaded", unloaded)):
        _labelled(queues, [state], count)
    yield queues
    messages = CounterMetricFamily(
        "penstock_messages", "Messages of all queues and groups, by what happened to them.", labels=["event"]
    )
    for event, count in (("published", counters.published), *zip(COUNTERS, counters.totals, strict=True)):
        _labelled(messages, [event], count)
    yield messages
    yield from counter_families(
        ("commits", "Commits that the store took.", counters.commit_seconds.count),
        ("commits_failed", "Commits that failed.", counters.commits_failed),
        ("enqueued_published", "Messages published that applications had enqueued.", counters.enqueued_published),
        ("enqueued_failed", "Times that an enqueued message could not be published.", counters.enqueued_failed),
        ("schedules_fired", "Messages that schedules published.", counters.schedules_fired),
        ("schedules_refused", "Schedules that limits.schedule_rate has refused.", counters.schedules_refused),
        ("cache_hits", "Batches that deliveries found in memory.", numbers.cache_hits),
        ("cache_misses", "Batches that deliveries had to read.", numbers.cache_misses),
        ("alarm_delayed", "Publishes that had to wait for an alarm to end.", numbers.alarms.delayed),
        ("alarm_refused", "Publishes that were refused because of an alarm.", numbers.alarms.refused),
    )
    damaged = CounterMetricFamily("penstock_damaged_messages", "Messages found damaged in the store.", labels=["part"])
    for part, count in numbers.damaged_messages.items():
        _labelled(damaged, [part], count)
    yield damaged
    yield _histogram("penstock_commit_seconds", "Time that the store took for a commit.", counters.commit_seconds)
    yield _histogram("penstock_commit_messages", "Messages published in a commit.", counters.commit_messages)
    yield _histogram("penstock_commit_bytes", "Bytes of batches in a commit.", counters.commit_bytes)
    yield from gauge_families(
        ("cache_bytes", "Bytes in the cache of batches.", numbers.cache_bytes),
        ("cache_max_bytes", "Bytes that the cache may hold.", numbers.cache_bytes_max),
        ("pending_bytes", "Bytes published that wait for the next commit to begin.", numbers.pending_bytes),
        ("pending_max_bytes", "Bytes past which publishers wait.", numbers.pending_bytes_max),
        ("damage_notes", "What /readyz tells of damage in the store.", numbers.damage_notes),
        ("damaged_lanes", "Lanes that cannot be loaded: a row cannot be understood.", numbers.damaged_lanes),
        ("lanes_loaded", "Lanes in memory.", numbers.lanes_loaded),
        ("enqueued_failed_kept", "Enqueued messages that could not be published.", numbers.enqueued_failed),
        ("enqueued_lag_seconds", "Age of the oldest enqueued message, 0 without one.", numbers.enqueued_lag_seconds),
        ("claims_waiting", "Claims that wait for messages.", numbers.polls_waiting),
        ("reads_waiting", "Stream reads that wait for messages.", numbers.readers_waiting),
    )


def _alarm_families(alarms: AlarmNumbers) -> Iterator[Metric]:
    """One series a resource that is watched."""
    raised = GaugeMetricFamily(
        "penstock_alarm", "1 while this is low and publishes are held back.", labels=["resource"]
    )
    for name, is_raised in alarms.raised.items():
        _labelled(raised, [name], is_raised)
    yield raised
    free = GaugeMetricFamily("penstock_disk_free_bytes", "Room on the disk of this.", labels=["resource"])
    for name, count in alarms.disk_free_bytes.items():
        _labelled(free, [name], count)
    yield free
    yield from gauge_families(
        ("memory_mark_bytes", "Memory of the process at which its alarm begins, 0 for never.", alarms.memory_mark_bytes)
    )


def _spool_families(spool: SpoolNumbers, now_ms: int) -> Iterator[Metric]:
    age_s = 0.0 if spool.oldest_ms is None else max(0, now_ms - spool.oldest_ms) / 1000
    yield from gauge_families(
        ("store_away", "1 while the store takes no commits and publishes are buffered.", float(spool.is_away)),
        ("spool_messages", "Messages in the spool, answered and not in the store yet.", spool.messages),
        ("spool_bytes", "Bytes that the spool takes on its disk.", spool.bytes),
        ("spool_age_seconds", "Age of the oldest message in the spool.", age_s),
        ("spool_dead", "Publishes that could not be replayed: the spool's dead letters.", spool.dead),
    )
    yield from counter_families(("spool_buffered", "Messages that were answered as buffered.", spool.buffered))


def _scrub_families(scrub: ScrubNumbers) -> Iterator[Metric]:
    yield from counter_families(
        ("scrub_bytes", "Bytes of batches that the scrub has read.", scrub.bytes),
        ("scrub_batches", "Batches that the scrub has read.", scrub.batches),
        ("scrub_passes", "Passes of the scrub that came to their end.", scrub.passes),
    )
    yield from gauge_families(
        ("scrub_progress", "How much of its pass the scrub has done, 0 to 1.", scrub.lanes_done / max(scrub.lanes, 1)),
        ("scrub_passed_timestamp_seconds", "When the last pass ended; 0 for none.", scrub.passed_ms / 1000),
    )


# Queues and groups ---------------------------------------------------------------------------------------


def _queue_families(numbers: NodeNumbers) -> Iterable[Metric]:
    kept = GaugeMetricFamily("penstock_queue_messages", "Messages kept, done or not." + _IN_MEMORY, labels=_QUEUE)
    oldest = GaugeMetricFamily(
        "penstock_queue_oldest_seconds", "Age of the oldest message kept, 0 without one." + _KNOWN, labels=_QUEUE
    )
    published = CounterMetricFamily("penstock_queue_published", "Messages ever published." + _IN_MEMORY, labels=_QUEUE)
    size = CounterMetricFamily(
        "penstock_queue_published_bytes", "Bytes ever published, as stored." + _IN_MEMORY, labels=_QUEUE
    )
    for queue in numbers.queues:
        labels = [queue.stats.namespace, queue.stats.queue]
        _labelled(kept, labels, queue.stats.messages)
        _labelled(published, labels, queue.stats.published)
        _labelled(size, labels, queue.stats.bytes_published)
        if queue.oldest_seconds is not None:
            _labelled(oldest, labels, queue.oldest_seconds)
    if numbers.rest.queues:
        _labelled(kept, ["", OTHER], numbers.rest.messages)
    return kept, oldest, published, size


def _group_gauges(numbers: NodeNumbers) -> Iterator[Metric]:
    rest = numbers.rest
    for name, text in _GROUP_GAUGES:
        family = GaugeMetricFamily(f"penstock_group_{name}", text + _IN_MEMORY, labels=_GROUP)
        for queue in numbers.queues:
            for group in queue.stats.groups:
                _labelled(family, [queue.stats.namespace, queue.stats.queue, group.group], getattr(group, name))
        if rest.queues:
            _labelled(family, ["", OTHER, OTHER], getattr(rest, name))
        yield family
    age = GaugeMetricFamily(
        "penstock_group_lag_seconds",
        'Age of the oldest message not done, 0 without one; for "(other)" the largest known.' + _KNOWN,
        labels=_GROUP,
    )
    for queue in numbers.queues:
        for group, seconds in zip(queue.stats.groups, queue.lag_seconds, strict=True):
            if seconds is not None:
                _labelled(age, [queue.stats.namespace, queue.stats.queue, group.group], seconds)
    if rest.queues:
        _labelled(age, ["", OTHER, OTHER], rest.lag_seconds)
    yield age


def _group_counters(numbers: NodeNumbers) -> Iterator[Metric]:
    for index, name in enumerate(COUNTERS):
        text = f"{_COUNTER_TEXTS[name]}, since the start of the process."
        family = CounterMetricFamily(f"penstock_group_{name}", text, labels=_GROUP)
        for queue in numbers.queues:
            for group, counts in zip(queue.stats.groups, queue.counts, strict=True):
                _labelled(family, [queue.stats.namespace, queue.stats.queue, group.group], counts[index])
        yield family


# Fronts --------------------------------------------------------------------------------------------------

Families = Iterator[Metric]


class FrontMeasures:
    """What every front counts of its connections; each adds what is its own."""

    def __init__(self, front: str) -> None:
        self._front = front
        self.connections = 0
        """Open now."""
        self.connections_accepted = 0
        self.connections_refused = 0

    def families(self) -> Families:
        """The numbers as `/metrics` shows them."""
        yield from gauge_families((f"{self._front}_connections", "Open connections.", self.connections))
        yield from counter_families(
            (f"{self._front}_connections_accepted", "Connections taken.", self.connections_accepted),
            (f"{self._front}_connections_refused", "Connections refused.", self.connections_refused),
        )


# Families ------------------------------------------------------------------------------------------------

Row = tuple[str, str, float]
"""A number's name, what it says in words, and the number."""


def gauge_families(*rows: Row) -> Iterator[Metric]:
    for name, text, value in rows:
        yield GaugeMetricFamily(f"penstock_{name}", text, value)


def counter_families(*rows: Row) -> Iterator[Metric]:
    for name, text, value in rows:
        yield CounterMetricFamily(f"penstock_{name}", text, value)


def _labelled(family: GaugeMetricFamily | CounterMetricFamily, labels: list[str], value: float) -> Metric:
    family.add_metric(labels, value)
    return family


def _histogram(name: str, text: str, values: Histogram) -> Metric:
    return HistogramMetricFamily(name, text, buckets=values.cumulative(), sum_value=values.sum)
