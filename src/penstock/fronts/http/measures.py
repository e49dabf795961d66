"""What the HTTP front counts, and how `/metrics` shows it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from penstock.api.front_broker import ClusterNumbers
from penstock.api.measures import SECONDS_BOUNDS, Histogram
from penstock.fronts.metrics import FrontMeasures, counter_families, gauge_families

ROUTES_MAX: Final = 500
OTHER: Final = "(other)"
"""The route of requests past that limit."""


class HttpMeasures(FrontMeasures):
    """What an HTTP server counts. `request` costs about half a microsecond."""

    def __init__(self) -> None:
        super().__init__("http")
        self.routes: dict[str, _Route] = {}
        self.bytes_in = 0
        self.bytes_out = 0
        self.long_polls = 0
        """Requests that wait now."""
        self.answer_bytes = self.answers_waiting = 0
        """Of large answers: what is under way, and how many wait for their turn."""
        self.cluster: ClusterNumbers | None = None
        """Of a node among several."""

    def request(self, route: str, status: int, seconds: float, received: int, sent: int) -> None:
        """A request was answered. `route` is the pattern of the path, never the path itself."""
        self.bytes_in += received
        self.bytes_out += sent
        found = self.routes.get(route)
        if found is None:
            found = self._route(route)
        found.statuses[status // 100] += 1
        found.counts[bisect_left(SECONDS_BOUNDS, seconds)] += 1
        found.seconds.sum += seconds

    def _route(self, route: str) -> _Route:
        """Past the limit all are one: a mistake in naming them must not eat memory."""
        if len(self.routes) >= ROUTES_MAX:
            route = OTHER
        return self.routes.setdefault(route, _Route())

    def families(self) -> Iterator[Metric]:
        requests = CounterMetricFamily("penstock_http_requests", "Requests answered.", labels=["route", "status"])
        seconds = HistogramMetricFamily(
            "penstock_http_request_seconds",
            "Time from a request to its answer, long polls with their wait.",
            labels=["route"],
        )
        for name, route in list(self.routes.items()):
            for digit, count in enumerate(route.statuses):
                if count:
                    requests.add_metric([name, f"{digit}xx"], count)
            seconds.add_metric([name], route.seconds.cumulative(), route.seconds.sum)
        yield requests
        yield seconds
        yield from super().families()
        yield from counter_families(
            ("http_received_bytes", "Bytes received.", self.bytes_in),
            ("http_sent_bytes", "Bytes sent.", self.bytes_out),
        )
        yield from gauge_families(
            ("http_long_polls", "Requests that wait for messages.", self.long_polls),
            ("http_answer_bytes", "Bytes of large answers that are made or sent.", self.answer_bytes),
            ("http_answers_waiting", "Large answers that wait for others to be sent.", self.answers_waiting),
        )
        if self.cluster is not None:
            yield from _cluster_families(self.cluster)


class _Route:
    __slots__ = ("counts", "seconds", "statuses")

    def __init__(self) -> None:
        self.statuses = [0] * 10
        """By the status's first digit."""
        self.seconds = Histogram(SECONDS_BOUNDS)
        self.counts = self.seconds.counts


def _cluster_families(cluster: ClusterNumbers) -> Iterator[Metric]:
    yield from gauge_families(
        ("cluster_slots", "Slots that this node owns.", cluster.slots),
        ("cluster_heartbeat_seconds", "Since the store last heard of this node.", cluster.heartbeat_age_s),
    )
    yield from counter_families(
        ("cluster_heartbeats_failed", "Heartbeats that failed.", cluster.heartbeats_failed),
        ("cluster_renewals", "Renewals of the lease by a thread: the event loop was busy.", cluster.renewals),
        ("cluster_forwards", "Requests that another node answered.", cluster.forwarded),
        ("cluster_forwards_failed", "Requests for which no owner was found in time.", cluster.forwards_failed),
    )
