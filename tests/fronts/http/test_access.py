"""Who may ask: the token, where the server may listen, pages of other sites; and spans that join both ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from penstock import telemetry
from penstock.node.broker.local import LocalBroker
from tests.fronts.http.rig import Front, over_http

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

# The token -----------------------------------------------------------------------------------------------


@over_http(token="correct horse")
async def test_a_token_is_wanted_everywhere_but_where_it_says_so(front: Front) -> None:
    for route in front.server.router.routes:
        path = route.path.replace("{lane}", "0").replace("{offset}", "0").replace("{", "").replace("}", "")
        if path == "/v1/events":
            continue
        reply = await front.call(route.method, path)
        if route.is_open:
            assert reply.status == 200, route.name
        else:
            assert (reply.status, reply.code) == (401, "unauthorized"), route.name
            assert reply.headers["www-authenticate"] == "Bearer"
    assert [route.path for route in front.server.router.routes if route.is_open] == [
        "/healthz",
        "/readyz",
        "/openapi.json",
        "/docs",
    ]


@over_http(token="correct horse")
async def test_tokens_that_are_right_and_wrong(front: Front) -> None:
    for value in (
        "Bearer wrong",
        "Bearer",
        "Bearer ",
        "Basic correct horse",
        "correct horse",
        "Bearer correct horse2",
        "Bearer correct hors",
        "bearer\tcorrect horse",
        "Bearer caf\u00e9",
    ):
        reply = await front.call("GET", "/v1/queues", headers={"Authorization": value})
        assert (reply.status, reply.code) == (401, "unauthorized"), value
    for value in ("Bearer correct horse", "bearer correct horse", "BEARER   correct horse"):
        assert (await front.call("GET", "/v1/queues", headers={"Authorization": value})).status == 200, value
    twice = b"Authorization: Bearer wrong\r\nAuthorization: Bearer correct horse\r\n"
    assert (await front.say(b"GET /v1/queues HTTP/1.1\r\nHost: t\r\n" + twice + b"\r\n")).status == 400


@over_http(token="caf\u00e9")
async def test_a_token_may_have_any_characters(front: Front) -> None:
    assert (await front.call("GET", "/v1/queues", headers={"Authorization": "Bearer caf\u00e9"})).status == 200


# Pages of other sites ------------------------------------------------------------------------------------


@over_http()
async def test_a_page_of_another_site_cannot_change_anything(front: Front) -> None:
    """A browser sends such a request for any page that is open in it; what it may not do is leave out the Origin."""
    await front.broker.declare_queue("mail")
    await front.publish("mail", "keep me")
    for origin in ("https://example.org", "null", "http://test.example.org", "http://test:81", ""):
        reply = await front.call("POST", "/v1/queues/mail/groups/default/purge", headers={"Origin": origin})
        assert (reply.status, reply.code) == (403, "forbidden"), origin
        assert (await front.call("DELETE", "/v1/queues/mail", headers={"Origin": origin})).status == 403
    assert len((await front.claim("mail"))["messages"]) == 1
    for origin in ("http://test", "https://test"):
        assert (await front.call("POST", "/v1/queues/mail/claim", {}, headers={"Origin": origin})).status == 200
    assert (await front.call("GET", "/v1/queues", headers={"Origin": "https://example.org"})).status == 200


@over_http(token="secret")
async def test_with_a_token_the_origin_does_not_matter(front: Front) -> None:
    front.token = "secret"
    assert (await front.call("PUT", "/v1/queues/mail", {}, headers={"Origin": "https://example.org"})).status == 201


# Spans ---------------------------------------------------------------------------------------------------


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


@over_http()
async def test_a_producer_s_trace_reaches_the_consumer(front: Front, spans: InMemorySpanExporter) -> None:
    await front.broker.declare_queue("mail")
    await front.broker.declare_exchange("all", kind="fanout")
    await front.broker.bind("all", "mail")
    message = {"messages": [{"payload": "x", "headers": {"mine": 1}}]}
    transaction = {"publish": [{"queue": "mail", "messages": [{"payload": "x"}]}]}
    for path, body in (
        ("/v1/queues/mail/messages", message),
        ("/v1/exchanges/all/messages", message),
        ("/v1/transactions", transaction),
    ):
        spans.clear()
        await front.ok("POST", path, body, headers={"traceparent": PARENT})
        [span] = spans.get_finished_spans()
        assert span.context is not None
        assert span.parent is not None
        assert (span.kind, f"{span.parent.span_id:016x}") == (SpanKind.SERVER, "b7ad6b7169203331")
        [received] = (await front.claim("mail"))["messages"]
        assert (
            received["headers"]["traceparent"] == f"00-0af7651916cd43dd8448eb211c80319c-{span.context.span_id:016x}-01"
        )
        assert received["trace_id"] == "0af7651916cd43dd8448eb211c80319c"


@over_http()
async def test_a_message_with_a_trace_of_its_own_keeps_it(front: Front, spans: InMemorySpanExporter) -> None:
    await front.broker.declare_queue("mail")
    own = {"messages": [{"payload": "x", "headers": {"traceparent": PARENT}}]}
    await front.ok("POST", "/v1/queues/mail/messages", own)
    assert (await front.claim("mail"))["messages"][0]["headers"] == {"traceparent": PARENT}


@over_http()
async def test_each_request_is_a_span_with_its_status(
    front: Front, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    await front.call("GET", "/v1/queues/none", headers={"traceparent": "nonsense"})
    monkeypatch.setattr(LocalBroker, "queues_page", broken)
    await front.call("GET", "/v1/queues")
    missing, failed = spans.get_finished_spans()
    assert (missing.name, missing.attributes, missing.status.status_code) == (
        "GET /v1/queues/{queue}",
        {"http.response.status_code": 404},
        StatusCode.UNSET,
    )
    assert missing.parent is None
    assert (failed.name, failed.status.status_code) == ("GET /v1/queues", StatusCode.ERROR)


@over_http()
async def test_without_telemetry_messages_are_left_as_they_are(front: Front) -> None:
    await front.broker.declare_queue("mail")
    await front.ok(
        "POST", "/v1/queues/mail/messages", {"messages": [{"payload": "x"}]}, headers={"traceparent": PARENT}
    )
    [received] = (await front.claim("mail"))["messages"]
    assert "headers" not in received
    assert "trace_id" not in received


def broken(_broker: LocalBroker, *_given: object, **_named: object) -> NoReturn:
    raise ZeroDivisionError


@over_http(token="secret")
async def test_what_nodes_say_to_each_other_is_not_believed_of_a_client(front: Front) -> None:
    said = {"x-penstock-forwarded": "1", "x-penstock-principal": "root", "x-penstock-secret": "guessed"}
    assert (await front.call("PUT", "/v1/queues/q", {}, headers=said)).status == 401
    front.token = "secret"
    await front.ok("PUT", "/v1/queues/q", {}, headers=said)  # as if nothing of it had been said
    assert (await front.call("POST", "/v1/cluster/handover", {"slots": [1], "to": 1}, headers=said)).status == 403
