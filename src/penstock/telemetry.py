"""OpenTelemetry traces that join producer to consumer through message headers. Off until `configure` turns it on.

The context of a publish travels in the message as the header `traceparent` (W3C Trace Context). A front opens a
`server_span` for a request and calls `inject_all` on messages that came as JSON; an encoded batch cannot be given
headers on its way, so the client injects before it encodes. A consumer handles messages inside a `consumer_span`. While
it is off, a function here looks at one variable, and opentelemetry (the extra `telemetry`) need not be installed. It
may not know brokers, sockets or the configuration's files.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Thread
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.api.results import Received
from penstock.model import Message
from penstock.model.errors import InvalidArgument

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Link, SpanContext, SpanKind

HEADER: Final = "traceparent"
LINKS_MAX: Final = 128
"""Messages of one batch that its span is linked to: what the SDK keeps of them, too."""
_HEADER_CHARACTERS_MAX: Final = 256

Attributes = dict[str, str | int | float | bool]


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What may be set of telemetry."""

    enabled: bool = False
    endpoint: str = ""
    """Where an OTLP/HTTP collector takes traces, such as http://127.0.0.1:4318/v1/traces; empty: the exporter's own."""
    headers: dict[str, str] = {}
    """Sent with every export, such as the collector's key."""
    service_name: str = "penstock"
    sample_ratio: float = 1.0
    """Share of the traces that begin here which is recorded; traces begun elsewhere follow their origin's choice."""
    timeout_seconds: float = 5.0
    """Of one export, and of the flush at the end."""


class Span:
    """A context manager that is entered once; this one, while telemetry is off, does nothing."""

    __slots__ = ()

    def __enter__(self) -> Span:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass

    def status(self, status: int) -> None:
        """The HTTP status of the answer; from 500 on the span failed."""


NO_SPAN: Final = Span()


class _OpenSpan(Span):
    """A span that is the current one while it is entered."""

    __slots__ = ("_entered", "_failed", "_manager")

    def __init__(self, manager: Any, failed: Any) -> None:
        self._manager = manager
        self._failed = failed
        self._entered: Any = None

    def __enter__(self) -> Span:
        self._entered = self._manager.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._manager.__exit__(kind, error, traceback)

    def status(self, status: int) -> None:
        self._entered.set_attribute("http.response.status_code", status)
        if status >= 500:
            self._entered.set_status(self._failed)


class _Tracing:
    """What is needed of opentelemetry, imported once."""

    def __init__(self, provider: TracerProvider, flush_seconds: float | None) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self.trace = trace
        self.provider = provider
        self.flush_seconds = flush_seconds
        """How long its shutdown may take; None for a provider that we did not make."""
        self.tracer = provider.get_tracer("penstock")
        self.propagator = TraceContextTextMapPropagator()
        self.failed = trace.Status(trace.StatusCode.ERROR)

    def span(
        self,
        name: str,
        kind: SpanKind,
        attributes: Attributes,
        context: Context | None,
        links: Sequence[Link] = (),
    ) -> Span:
        manager = self.tracer.start_as_current_span(name, context, kind, attributes=attributes, links=links)
        return _OpenSpan(manager, self.failed)

    def current(self) -> SpanContext:
        return self.trace.get_current_span().get_span_context()

    def remote(self, traceparent: object) -> tuple[Context, SpanContext] | None:
        """The context that a traceparent names, and its span; None where it names none."""
        if not isinstance(traceparent, str) or len(traceparent) > _HEADER_CHARACTERS_MAX:
            return None
        from opentelemetry.context import Context

        context = self.propagator.extract({HEADER: traceparent}, Context())
        span = self.trace.get_current_span(context).get_span_context()
        return (context, span) if span.is_valid else None


_tracing: _Tracing | None = None


def is_on() -> bool:
    return _tracing is not None


# Turning it on and off -----------------------------------------------------------------------------------


def configure(settings: Settings, *, provider: TracerProvider | None = None) -> None:
    """Turn it on, or off where `enabled` is not set. A program that has a tracer provider may pass its own.

    Nothing global of opentelemetry is changed. What was on before is shut down.
    """
    global _tracing  # noqa: PLW0603 - one process, one telemetry
    shutdown()
    if not settings.enabled:
        return
    if not 0.0 <= settings.sample_ratio <= 1.0:
        raise InvalidArgument(f"telemetry sample_ratio is {settings.sample_ratio}; it must be 0 to 1")
    if settings.endpoint and not settings.endpoint.startswith(("http://", "https://")):
        raise InvalidArgument(f"telemetry endpoint is {settings.endpoint!r}; it must begin with http:// or https://")
    try:
        if provider is None:
            _tracing = _Tracing(_exporting(settings), settings.timeout_seconds)
        else:
            _tracing = _Tracing(provider, None)
    except ModuleNotFoundError as error:
        raise InvalidArgument(
            f"telemetry is enabled but {error.name} is not installed; install penstock with the extra 'telemetry'"
        ) from None


def _exporting(settings: Settings) -> TracerProvider:
    """Spans are queued and sent by a thread of their own; when the queue is full they are dropped; no caller waits."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    provider = TracerProvider(
        resource=Resource.create({"service.name": settings.service_name}),
        sampler=ParentBased(TraceIdRatioBased(settings.sample_ratio)),
        shutdown_on_exit=False,
    )
    exporter = OTLPSpanExporter(
        endpoint=settings.endpoint or None, headers=settings.headers or None, timeout=settings.timeout_seconds
    )
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def shutdown() -> None:
    """Send what is left and turn it off. Waits for the collector up to the settings' timeout: call it in a thread."""
    global _tracing
    tracing, _tracing = _tracing, None
    if tracing is not None and tracing.flush_seconds is not None:
        # The SDK would wait for as many exports as are queued; a collector that is away must not hold up a stop.
        flush = Thread(target=tracing.provider.shutdown, name="penstock-telemetry-flush", daemon=True)
        flush.start()
        flush.join(tracing.flush_seconds)


# Spans ---------------------------------------------------------------------------------------------------


def server_span(name: str, traceparent: str | None = None) -> Span:
    """The span of a request, child of what its `traceparent` header names. Use it with `with`, in one task."""
    if _tracing is None:
        return NO_SPAN
    remote = None if traceparent is None else _tracing.remote(traceparent)
    return _tracing.span(name, _tracing.trace.SpanKind.SERVER, {}, None if remote is None else remote[0])


def producer_span(queue: str) -> Span:
    """The span of a publish in a client: `inject_all` and `traceparent` inside of it join what follows to it."""
    if _tracing is None:
        return NO_SPAN
    attributes = _messaging("publish", "send", queue)
    return _tracing.span(f"publish {queue}", _tracing.trace.SpanKind.PRODUCER, attributes, None)


def traceparent() -> str | None:
    """The header to send with a request, where a span is current."""
    if _tracing is None:
        return None
    return _header_of(_tracing.current())


def inject_all(messages: Sequence[Message]) -> Sequence[Message]:
    """Messages with the current span as their `traceparent`, and its trace id; what they have of their own stays."""
    if _tracing is None:
        return messages
    span = _tracing.current()
    return [_injected(message, span) for message in messages]


def consumer_span(received: Received | Sequence[Received]) -> Span:
    """The span of handling messages.

    Of one message: child of the producer's span, linked to what is current here. Of several: linked to each producer.
    """
    if _tracing is None:
        return NO_SPAN
    kind = _tracing.trace.SpanKind.CONSUMER
    if isinstance(received, Received):
        attributes = _messaging("process", "process", received.queue) | {
            "penstock.lane": received.lane,
            "penstock.offset": received.offset,
            "penstock.attempt": received.attempt,
        }
        remote = _remote_of(_tracing, received)
        if remote is None:
            return _tracing.span(f"process {received.queue}", kind, attributes, None)
        here = _tracing.current()
        links = [_tracing.trace.Link(here)] if here.is_valid else []
        return _tracing.span(f"process {received.queue}", kind, attributes, remote[0], links)
    queue = received[0].queue if received else ""
    attributes = _messaging("process", "process", queue) | {"messaging.batch.message_count": len(received)}
    return _tracing.span(f"process {queue}", kind, attributes, None, links_of(received))


def links_of(received: Sequence[Received]) -> list[Link]:
    """A link to each producer's span that the messages name, every span once; empty while telemetry is off."""
    if _tracing is None:
        return []
    spans: dict[tuple[int, int], SpanContext] = {}
    for one in received:
        remote = _remote_of(_tracing, one)
        if remote is not None:
            spans.setdefault((remote[1].trace_id, remote[1].span_id), remote[1])
            if len(spans) == LINKS_MAX:
                break
    return [_tracing.trace.Link(span) for span in spans.values()]


def _remote_of(tracing: _Tracing, received: Received) -> tuple[Context, SpanContext] | None:
    headers = received.message.headers
    return None if headers is None else tracing.remote(headers.get(HEADER))


def _injected(message: Message, span: SpanContext) -> Message:
    header = _header_of(span)
    headers = message.headers
    if header is None or (headers is not None and HEADER in headers):
        return message
    trace_id = message.trace_id or f"{span.trace_id:032x}"
    return msgspec.structs.replace(message, headers={**(headers or {}), HEADER: header}, trace_id=trace_id)


def _header_of(span: SpanContext) -> str | None:
    if not span.is_valid:
        return None
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{int(span.trace_flags):02x}"


def _messaging(operation: str, kind: str, queue: str) -> Attributes:
    """Attributes by the names of OpenTelemetry's messaging conventions."""
    return {
        "messaging.system": "penstock",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": queue,
    }
