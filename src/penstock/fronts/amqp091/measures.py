"""What the AMQP front counts, for `/metrics`."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


class AmqpMeasures:
    """Numbers of one server."""

    def __init__(self) -> None:
        self.connections = 0
        """Open now."""
        self.connections_accepted = 0
        self.connections_refused = 0
        self.channels = 0
        self.consumers = 0
        self.published = 0
        self.delivered = 0

    def families(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("penstock_amqp_connections", "Open connections.", self.connections)
        yield CounterMetricFamily("penstock_amqp_connections_accepted", "Connections taken.", self.connections_accepted)
        yield CounterMetricFamily("penstock_amqp_connections_refused", "Connections refused.", self.connections_refused)
        yield GaugeMetricFamily("penstock_amqp_channels", "Open channels.", self.channels)
        yield GaugeMetricFamily("penstock_amqp_consumers", "Consumers.", self.consumers)
        yield CounterMetricFamily("penstock_amqp_published", "Messages taken from publishers.", self.published)
        yield CounterMetricFamily("penstock_amqp_delivered", "Messages sent to consumers.", self.delivered)
