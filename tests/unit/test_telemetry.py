"""Traces: nothing while off, one trace from producer to consumer while on, and bytes that reach a collector."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from penstock import InvalidArgument, Message, telemetry
from penstock.api.results import Received

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """Telemetry on, with what it makes in memory."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry.configure(telemetry.Settings(enabled=True), provider=provider)
    yield exporter
    telemetry.shutdown()
    provider.shutdown()


def received(message: Message, offset: int = 0) -> Received:
    return Received(message, "orders", 0, offset, 1, 1)


def trace_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.trace_id)


def span_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


def test_off_it_does_nothing() -> None:
    message = Message(b"x")
    assert not telemetry.is_on()
    assert telemetry.inject_all([message]) == [message]
    assert telemetry.traceparent() is None
    assert telemetry.links_of([received(message)]) == []
    for span in (
        telemetry.server_span("publish", PARENT),
        telemetry.producer_span("orders"),
        telemetry.consumer_span(received(message)),
    ):
        assert span is telemetry.NO_SPAN
        with span as entered:
            entered.status(500)


def test_the_package_works_without_opentelemetry() -> None:
    code = """
import sys
class Absent:
    def find_spec(self, name, *_):
        if name.partition(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
from penstock import telemetry
telemetry.configure(telemetry.Settings())
with telemetry.server_span("x"):
    pass
try:
    telemetry.configure(telemetry.Settings(enabled=True))
except ValueError as error:
    print(error)
print(telemetry.is_on())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "not installed; install penstock with the extra 'telemetry'" in done.stdout
    assert done.stdout.endswith("False\n")


def test_a_server_span_joins_the_request(spans: InMemorySpanExporter) -> None:
    with telemetry.server_span("publish", PARENT) as span:
        span.status(503)
    [made] = spans.get_finished_spans()
    assert made.kind is SpanKind.SERVER
    assert f"{trace_of(made):032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert made.parent is not None
    assert f"{made.parent.span_id:016x}" == "b7ad6b7169203331"
    assert made.attributes is not None
    assert made.attributes["http.response.status_code"] == 503
    assert made.status.status_code is StatusCode.ERROR


@pytest.mark.parametrize("header", ["", "nonsense", "00-" + "0" * 32 + "-b7ad6b7169203331-01", "x" * 10_000, None])
def test_a_bad_traceparent_begins_a_trace(spans: InMemorySpanExporter, header: str | None) -> None:
    with telemetry.server_span("publish", header) as span:
        span.status(200)
    [made] = spans.get_finished_spans()
    assert made.parent is None
    assert made.status.status_code is StatusCode.UNSET


def test_one_trace_from_producer_to_consumer(spans: InMemorySpanExporter) -> None:
    with telemetry.producer_span("orders"):
        [message] = telemetry.inject_all([Message(b"x", headers={"a": 1})])
        header = telemetry.traceparent()
    assert message.headers == {"a": 1, "traceparent": header}
    with pytest.raises(RuntimeError), telemetry.consumer_span(received(message)):
        raise RuntimeError("no")
    producer, consumer = spans.get_finished_spans()
    assert trace_of(producer) == trace_of(consumer)
    assert message.trace_id == f"{trace_of(producer):032x}"
    assert consumer.parent is not None
    assert consumer.parent.span_id == span_of(producer)
    assert (producer.kind, consumer.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert consumer.status.status_code is StatusCode.ERROR
    assert [event.name for event in consumer.events] == ["exception"]


def test_what_a_message_has_is_left_to_it(spans: InMemorySpanExporter) -> None:
    own = Message(b"x", headers={"traceparent": PARENT}, trace_id="mine")
    named = Message(b"x", trace_id="mine")
    assert telemetry.inject_all([named])[0] is named  # no span is current
    with telemetry.producer_span("orders"):
        assert telemetry.inject_all([own])[0] is own
        many = telemetry.inject_all([named, Message(b"y")])
    assert many[0].trace_id == "mine"
    assert many[0].headers is not None
    assert many[1].headers == many[0].headers


def test_a_batch_is_linked_to_each_producer_once(spans: InMemorySpanExporter) -> None:
    messages: list[Message] = []
    for _ in range(3):
        with telemetry.producer_span("orders"):
            messages += telemetry.inject_all([Message(b"x"), Message(b"y")])
    messages += [Message(b"z"), Message(b"z", headers={"traceparent": 7}), Message(b"z", headers={"traceparent": "?"})]
    with telemetry.consumer_span([received(message, offset) for offset, message in enumerate(messages)]):
        pass
    *producers, consumer = spans.get_finished_spans()
    assert [link.context.span_id for link in consumer.links] == [span_of(span) for span in producers]
    assert consumer.attributes is not None
    assert consumer.attributes["messaging.batch.message_count"] == 9


def test_links_are_bounded(spans: InMemorySpanExporter) -> None:
    headers = [f"00-{number:032x}-b7ad6b7169203331-01" for number in range(1, telemetry.LINKS_MAX + 2)]
    batch = [received(Message(b"x", headers={"traceparent": header})) for header in headers]
    assert len(telemetry.links_of(batch[:-1])) == telemetry.LINKS_MAX
    assert len(telemetry.links_of(batch)) == telemetry.LINKS_MAX


@pytest.mark.parametrize("wrong", [{"sample_ratio": 1.1}, {"sample_ratio": -0.1}, {"endpoint": "collector:4318"}])
def test_a_wrong_setting_is_told(wrong: dict[str, float | str]) -> None:
    with pytest.raises(InvalidArgument, match=r"1\.1|-0\.1|collector:4318"):
        telemetry.configure(telemetry.Settings(enabled=True, **wrong))  # type: ignore[arg-type]
    assert not telemetry.is_on()


def test_spans_reach_a_collector_when_it_is_shut_down() -> None:
    bodies: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_address[1]}/v1/traces"
        telemetry.configure(telemetry.Settings(enabled=True, endpoint=endpoint, service_name="tested"))
        with telemetry.server_span("publish", PARENT):
            pass
        telemetry.shutdown()
        server.shutdown()
    request = ExportTraceServiceRequest.FromString(bodies[0])
    [resource] = request.resource_spans
    assert "tested" in [attribute.value.string_value for attribute in resource.resource.attributes]
    assert [span.name for scope in resource.scope_spans for span in scope.spans] == ["publish"]
