"""What an MQTT server counts, and how `/metrics` shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


class MqttNumbers(NamedTuple):
    """Gauges."""

    connections: int
    sessions: int
    retained: int
    retained_bytes: int
    unsettled: int


class MqttMeasures:
    """Counters of a server, and a callback for its gauges."""

    def __init__(self, numbers: Callable[[], MqttNumbers]) -> None:
        self._numbers = numbers
        self.connections_accepted = 0
        self.connections_refused = 0
        self.published = 0
        self.refused = 0
        self.delivered = 0

    def families(self) -> Iterator[Metric]:
        """The numbers as `/metrics` shows them."""
        numbers = self._numbers()
        for name, text, value in (
            ("connections", "Connections open now.", numbers.connections),
            ("sessions_kept", "Sessions that outlive their connection, connected or not.", numbers.sessions),
            ("retained_messages", "Retained messages.", numbers.retained),
            ("retained_bytes", "Bytes of topics and payloads of retained messages.", numbers.retained_bytes),
            ("unsettled", "Messages of $queue/… that version 5 clients have not settled.", numbers.unsettled),
        ):
            yield GaugeMetricFamily(f"penstock_mqtt_{name}", text, value)
        for name, text, value in (
            ("connections_accepted", "Connections accepted.", self.connections_accepted),
            ("connections_refused", "Connections refused.", self.connections_refused),
            ("published", "Messages that clients published.", self.published),
            ("publishes_refused", "Messages that clients tried to publish and that were refused.", self.refused),
            ("delivered", "Messages sent to clients.", self.delivered),
        ):
            yield CounterMetricFamily(f"penstock_mqtt_{name}", text, value)
