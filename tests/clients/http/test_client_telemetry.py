"""One trace from the producer's program through the server to the consumer's handler."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from penstock import Message, Received, telemetry
from tests.clients.http.rig import connected, run


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry.configure(telemetry.Settings(enabled=True), provider=provider)
    yield exporter
    telemetry.shutdown()
    provider.shutdown()


@pytest.mark.parametrize("in_threads", [False, True], ids=["coroutine", "thread"])
def test_producer_server_and_handler_are_one_trace(spans: InMemorySpanExporter, in_threads: bool) -> None:
    current: list[str | None] = []

    async def main() -> None:
        async with connected() as (client, _):
            await client.declare_queue("orders")
            await client.publish("orders", Message(b"1", headers={"kept": True}))

            def handle(received: Received) -> None:
                current.append(telemetry.traceparent())
                assert received.headers["kept"] is True
                consumer.stop()

            async def handle_async(received: Received) -> None:
                handle(received)

            consumer = client.consumer("orders", handle if in_threads else handle_async)
            await consumer.run()

    run(main())
    by_name = {span.name: span for span in spans.get_finished_spans()}
    producer, server = by_name["publish orders"], by_name["POST /v1/queues/{queue}/messages"]
    consumer = by_name["process orders"]
    assert producer.context is not None
    for span in (server, consumer):
        assert span.context is not None
        assert span.parent is not None
        assert (span.context.trace_id, span.parent.span_id) == (producer.context.trace_id, producer.context.span_id)
    assert consumer.context is not None
    [seen] = current
    assert seen is not None
    assert f"{consumer.context.span_id:016x}" in seen
