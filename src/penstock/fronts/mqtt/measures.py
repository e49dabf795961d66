"""What an MQTT server counts, and how `/metrics` shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.fronts.metrics import Families, FrontMeasures, Row, counter_families, gauge_families


class MqttMeasures(FrontMeasures):
    """Counters of a server, and a callback for its gauges."""

    def __init__(self, gauges: Callable[[], Iterable[Row]]) -> None:
        super().__init__("mqtt")
        self._gauges = gauges
        self.published = 0
        self.refused = 0
        self.delivered = 0
        self.bytes_received = 0
        self.bytes_sent = 0

    def families(self) -> Families:
        yield from super().families()
        yield from gauge_families(*self._gauges())
        yield from counter_families(
            ("mqtt_published", "Messages that clients published.", self.published),
            ("mqtt_publishes_refused", "Messages that clients tried to publish and that were refused.", self.refused),
            ("mqtt_delivered", "Messages sent to clients.", self.delivered),
            ("mqtt_received_bytes", "Bytes that came from clients.", self.bytes_received),
            ("mqtt_sent_bytes", "Bytes sent to clients.", self.bytes_sent),
        )
