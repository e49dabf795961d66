"""What an MQTT server counts, and how `/metrics` shows it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


class MqttMeasures:
    """Counted by a server."""

    def __init__(self) -> None:
        self.connections_accepted = 0
        self.connections_refused = 0
        self.published = 0
        self.refused = 0
        self.delivered = 0


class MqttNumbers(NamedTuple):
    """How things stand now."""

    connections: int
    sessions: int
    retained: int
    retained_bytes: int
    unsettled: int


def families(measures: MqttMeasures, numbers: MqttNumbers) -> Iterator[Metric]:
    """The metrics of one server."""
    for name, text, value in (
        ("connections", "Connections open now.", numbers.connections),
        ("sessions_kept", "Sessions that outlive their connection, connected or not.", numbers.sessions),
        ("retained_messages", "Retained messages.", numbers.retained),
        ("retained_bytes", "Bytes of topics and payloads of retained messages.", numbers.retained_bytes),
        ("unsettled", "Messages of $queue/… that version 5 clients have not settled.", numbers.unsettled),
    ):
        yield GaugeMetricFamily(f"penstock_mqtt_{name}", text, value)
    for name, text, value in (
        ("connections_accepted", "Connections accepted.", measures.connections_accepted),
        ("connections_refused", "Connections refused.", measures.connections_refused),
        ("published", "Messages that clients published.", measures.published),
        ("publishes_refused", "Messages that clients tried to publish and that were refused.", measures.refused),
        ("delivered", "Messages sent to clients.", measures.delivered),
    ):
        yield CounterMetricFamily(f"penstock_mqtt_{name}", text, value)
