"""Every operation over HTTP: what it answers, and that the broker is then as the embedded API would have left it."""

from __future__ import annotations

import base64
from typing import Any, Final

import pytest

from penstock import Message
from tests.fronts.http.rig import Front, over_http

UNKNOWN: Final[list[tuple[str, str, Any]]] = [
    ("PATCH", "/v1/queues/none", {}), ("GET", "/v1/queues/none", None), ("DELETE", "/v1/queues/none", None),
    ("POST", "/v1/queues/none/pause", None), ("POST", "/v1/queues/none/resume", None), ("GET", "/v1/queues/none/stats",
    None),
    ("POST", "/v1/queues/none/messages", {"messages": [{}]}), ("GET", "/v1/queues/none/messages", None),
    ("GET", "/v1/queues/none/messages/0/0", None), ("GET", "/v1/queues/none/messages/0/0/history", None),
    ("GET", "/v1/queues/none/log", None), ("POST", "/v1/queues/none/claim", {}), ("GET", "/v1/queues/none/groups",
    None),
    ("PUT", "/v1/queues/none/groups/g", {}), ("PATCH", "/v1/queues/mail/groups/none", {}), ("GET",
    "/v1/queues/mail/groups/none", None),
    ("DELETE", "/v1/queues/mail/groups/none", None), ("POST", "/v1/queues/mail/groups/none/seek", {"to": "first"}),
    ("POST", "/v1/queues/mail/groups/none/pause", None), ("POST", "/v1/queues/mail/groups/none/resume", None),
    ("POST", "/v1/queues/mail/groups/none/purge", None), ("POST", "/v1/queues/mail/groups/none/attach",
    {"consumer": "c"}),
    ("POST", "/v1/queues/mail/groups/none/detach", {"consumer": "c"}), ("POST", "/v1/queues/mail/groups/none/read", {}),
    ("POST", "/v1/queues/mail/groups/none/commit", {"offset": 0}), ("GET", "/v1/queues/mail/groups/none/dead", None),
    ("GET", "/v1/queues/mail/groups/none/dead/reasons", None), ("GET", "/v1/queues/mail/groups/none/dead/export", None),
    ("POST", "/v1/queues/mail/groups/none/dead/redrive", {}), ("POST", "/v1/queues/mail/groups/none/dead/purge", {}),
    ("POST", "/v1/queues/mail/claim", {"group": "none"}), ("GET", "/v1/exchanges/none", None), ("DELETE",
    "/v1/exchanges/none", None),
    ("GET", "/v1/exchanges/none/bindings", None), ("POST", "/v1/exchanges/none/bind", {"target": "mail"}),
    ("POST", "/v1/exchanges/none/unbind", {"target": "mail"}), ("POST", "/v1/exchanges/none/messages",
    {"messages": [{}]}),
    ("GET", "/v1/schedules/none", None), ("DELETE", "/v1/schedules/none", None),
    ("PUT", "/v1/schedules/s", {"message": {}, "queue": "none", "interval_ms": 1_000}),
    ("PUT", "/v1/schedules/s", {"message": {}, "exchange": "none", "interval_ms": 1_000}),
    ("POST", "/v1/transactions", {"publish": [{"queue": "none", "messages": [{}]}]}),
    ("POST", "/v1/transactions", {"publish": [{"exchange": "none", "messages": [{}]}]}),
    ("POST", "/v1/traces/t/events", {"name": "x", "queue": "none", "offset": 0}),
    ("GET", "/v1/queues/mail/messages/0/99", None), ("POST", "/v1/exchanges/all/bind", {"target": "none"}),
    ("GET", "/v1/queues/mail?namespace=elsewhere", None), ("POST", "/v1/queues/mail/claim?namespace=elsewhere", {}),
]  # fmt: skip


@over_http()
async def test_what_does_not_exist(front: Front) -> None:
    await front.broker.declare_queue("mail")
    await front.broker.declare_exchange("all", kind="fanout")
    for method, path, body in UNKNOWN:
        reply = await front.call(method, path, body)
        assert (reply.status, reply.code) == (404, "not_found"), (method, path, reply)


# Queues --------------------------------------------------------------------------------------------------


@over_http(engine="sqlite")
async def test_queues(front: Front) -> None:
    reply = await front.call("PUT", "/v1/queues/mail", {"max_attempts": 3, "lanes": 2})
    assert (reply.status, reply.json()) == (201, {"name": "mail", "options": {"max_attempts": 3, "lanes": 2}})
    assert (await front.broker.queues())["mail"] == {"max_attempts": 3, "lanes": 2}
    again = await front.call("PUT", "/v1/queues/mail", {"lease_ms": 5_000})
    assert (again.status, again.json()["options"]) == (200, {"max_attempts": 3, "lanes": 2, "lease_ms": 5_000})
    changed = await front.ok("PATCH", "/v1/queues/mail", {"max_attempts": 5, "description": "caf\u00e9"})
    assert changed["options"] == {"lanes": 2, "lease_ms": 5_000, "description": "caf\u00e9"}
    assert await front.ok("GET", "/v1/queues/mail") == changed
    reply = await front.call("PUT", "/v1/queues/mail", {"lanes": 3})
    assert (reply.status, reply.code) == (409, "already_exists")
    assert (await front.call("PATCH", "/v1/queues/mail", {"lanes": 3})).status == 409
    assert (await front.call("PUT", "/v1/queues/x", {"lans": 1})).code == "unknown_option"
    await front.ok("POST", "/v1/queues/mail/pause")
    assert (await front.broker.queues())["mail"]["paused"] is True
    await front.publish("mail", "held")
    assert (await front.claim("mail"))["messages"] == []
    await front.ok("POST", "/v1/queues/mail/resume")
    assert len((await front.claim("mail"))["messages"]) == 1
    assert (await front.call("DELETE", "/v1/queues/mail")).status == 204
    assert list(await front.broker.queues()) == ["$events"]


@over_http()
async def test_lists_come_in_pages(front: Front) -> None:
    for number in range(25):
        await front.broker.declare_queue(f"queue-{number:02}")
    for path, key in (("/v1/queues", "name"), ("/v1/stats", "queue")):
        found: list[str] = []
        after = ""
        while True:
            page = await front.ok("GET", path, prefix="queue-", limit=10, after=after)
            found += [one[key] for one in page["queues"]]
            if page["next"] is None:
                break
            assert len(page["queues"]) == 10
            after = page["next"]
        assert found == [f"queue-{number:02}" for number in range(25)]
    assert (await front.ok("GET", "/v1/queues", prefix="queue-2", limit=5))["next"] is None


@over_http()
async def test_stats_are_the_broker_s(front: Front) -> None:
    await front.broker.declare_queue("mail")
    await front.broker.publish_many("mail", [Message(b"12345"), Message(b"678")])
    await front.broker.claim("mail")
    body = await front.ok("GET", "/v1/queues/mail/stats")
    stats = await front.broker.stats("mail")
    assert body["published"] == stats.published == 2
    assert body["bytes_published"] == stats.bytes_published
    assert body["groups"] == [
        {
            "group": "default",
            "kind": "work",
            "ready": 1,
            "leased": 1,
            "scheduled": 0,
            "dead": 0,
            "lag": body["groups"][0]["lag"],
            "oldest_offset": stats.groups[0].oldest_offset,
            "paused": False,
        }
    ]
    assert (await front.ok("GET", "/v1/stats", prefix="mail"))["queues"] == [body]


@over_http()
async def test_namespaces_are_apart(front: Front) -> None:
    for namespace in ("red", "blue"):
        await front.ok("PUT", "/v1/queues/mail", {}, namespace=namespace)
        await front.ok("POST", "/v1/queues/mail/messages", {"messages": [{"payload": namespace}]}, namespace=namespace)
    for namespace in ("blue", "red"):
        claim = await front.ok("POST", "/v1/queues/mail/claim", {}, namespace=namespace)
        assert claim["messages"][0]["payload"] == namespace
        assert [one["name"] for one in (await front.ok("GET", "/v1/queues", namespace=namespace))["queues"]] == ["mail"]
    assert "mail" not in await front.broker.queues()


# Publish -------------------------------------------------------------------------------------------------


@over_http(engine="sqlite")
async def test_a_message_with_everything(front: Front) -> None:
    await front.broker.declare_queue("mail")
    full = {
        "payload": "text \u2713",
        "partition": "customer-1",
        "key": "orders.new",
        "priority": 7,
        "delay_ms": 0,
        "not_before_ms": 1,
        "ttl_ms": 3_600_000,
        "dedup_id": "once",
        "content_type": "text/plain",
        "correlation_id": "c-1",
        "trace_id": "t-1",
        "headers": {
            "none": None,
            "yes": True,
            "int": -5,
            "big": 2**63 - 1,
            "float": 1.5,
            "text": "caf\u00e9",
            "list": [1, "a", None],
            "bytes": {"$base64": "AP8="},
            "time": {"$time": "2026-01-31T12:00:00+00:00"},
            "nested": {"deep": [{"$base64": ""}, {"a": {"$time": "2026-01-31T13:00:00+01:00"}}]},
            "looks like bytes": {"$object": {"$base64": "hello"}},
        },
    }
    answer = await front.ok("POST", "/v1/queues/mail/messages", {"messages": [full]})
    assert answer == {
        "count": 1,
        "results": [{"index": 0, "queue": "mail", "lane": 0, "offset": 0, "duplicate": False}],
    }
    [stored] = (await front.broker.browse("mail")).messages
    assert stored.payload == "text \u2713".encode()
    assert stored.message.ttl_ms == 3_600_000
    assert stored.headers["bytes"] == b"\x00\xff"
    assert stored.headers["time"].isoformat() == "2026-01-31T12:00:00+00:00"
    assert stored.headers["looks like bytes"] == {"$base64": "hello"}
    assert stored.headers["nested"]["deep"][0] == b""
    [received] = (await front.claim("mail"))["messages"]
    for name, value in full.items():
        if value != 0 and name != "headers":
            assert received[name] == value, name
    headers = full["headers"]
    assert isinstance(headers, dict)
    nested_time = received["headers"]["nested"]["deep"][1]["a"]["$time"]
    assert nested_time.startswith(("2026-01-31T12:00:00", "2026-01-31T13:00:00"))
    assert {**received["headers"], "nested": 0} == {**headers, "nested": 0}


@pytest.mark.parametrize(
    ("fields", "payload", "content_type"),
    [
        ({}, b"", None),
        ({"payload": ""}, b"", None),
        ({"payload": "a\u0000b"}, b"a\0b", None),
        ({"payload_base64": "AP/+"}, b"\x00\xff\xfe", None),
        ({"payload_json": {"b": [1, 2.50, None], "a": "\u00e9"}}, None, "application/json"),
        ({"payload_json": None}, b"null", "application/json"),
        ({"payload_json": 1, "content_type": "application/x"}, b"1", "application/x"),
    ],
)
@over_http()
async def test_payloads(front: Front, fields: dict[str, Any], payload: bytes | None, content_type: str | None) -> None:
    await front.broker.declare_queue("mail")
    await front.ok("POST", "/v1/queues/mail/messages", {"messages": [fields]})
    [stored] = (await front.broker.browse("mail")).messages
    if payload is None:  # any JSON value, as it was written
        assert stored.payload == b'{"b": [1, 2.5, null], "a": "\\u00e9"}'
    else:
        assert stored.payload == payload
    assert stored.message.content_type == content_type
    [received] = (await front.claim("mail"))["messages"]
    given = (
        base64.b64decode(received["payload_base64"]) if "payload_base64" in received else received["payload"].encode()
    )
    assert given == stored.payload


@over_http()
async def test_duplicates_are_told(front: Front) -> None:
    await front.broker.declare_queue("mail")
    once = {"messages": [{"payload": "a", "dedup_id": "1"}, {"payload": "b"}]}
    await front.ok("POST", "/v1/queues/mail/messages", once)
    again = await front.ok("POST", "/v1/queues/mail/messages", once)
    assert [(one["offset"], one["duplicate"]) for one in again["results"]] == [(0, True), (2, False)]
    named = [
        await front.ok("POST", "/v1/queues/mail/messages", {"messages": [{}, {}]}, publish_id="p") for _ in range(2)
    ]
    assert [one["offset"] for one in named[0]["results"]] == [one["offset"] for one in named[1]["results"]] == [3, 4]
    assert [one["duplicate"] for one in named[1]["results"]] == [True, True]
    assert (await front.broker.stats("mail")).published == 5
    for bad in ("", "x" * 256):
        assert (await front.call("POST", "/v1/queues/mail/messages", {"messages": [{}]}, publish_id=bad)).status == 400


@over_http()
async def test_a_full_queue_and_a_large_message(front: Front) -> None:
    await front.broker.declare_queue("mail", max_length=2, max_message_bytes=10)
    await front.broker.declare_group("mail", "default")
    await front.publish("mail", "1", "2")
    full = await front.call("POST", "/v1/queues/mail/messages", {"messages": [{"payload": "3"}]})
    assert (full.status, full.code, full.headers["retry-after"]) == (429, "queue_full", "1")
    large = await front.call("POST", "/v1/queues/mail/messages", {"messages": [{"payload": "x" * 11}]})
    assert (large.status, large.code) == (413, "too_large")
    assert (await front.broker.stats("mail")).published == 2
    forbidden = await front.call("POST", "/v1/queues/%24events/messages", {"messages": [{}]})
    assert (forbidden.status, forbidden.code) == (403, "forbidden")


@over_http()
async def test_exchanges(front: Front) -> None:
    for queue in ("eu", "all"):
        await front.broker.declare_queue(queue)
    reply = await front.call("PUT", "/v1/exchanges/orders", {"kind": "topic"})
    assert (reply.status, reply.json()) == (201, {"name": "orders", "options": {"kind": "topic"}})
    assert (await front.call("PUT", "/v1/exchanges/orders", {"kind": "topic"})).status == 200
    assert (await front.call("PUT", "/v1/exchanges/orders", {"kind": "fanout"})).code == "already_exists"
    assert await front.ok("GET", "/v1/exchanges/orders") == {"name": "orders", "options": {"kind": "topic"}}
    bindings = [{"target": "eu", "pattern": "eu.#"}, {"target": "all", "pattern": "#"}]
    for binding in bindings:
        await front.ok("POST", "/v1/exchanges/orders/bind", binding)
    assert (await front.ok("GET", "/v1/exchanges/orders/bindings"))["bindings"] == bindings
    assert [one.target for one in await front.broker.bindings("orders")] == ["eu", "all"]
    answer = await front.ok("POST", "/v1/exchanges/orders/messages", {"messages": [{"key": "eu.1"}, {"key": "us.1"}]})
    assert [(one["index"], one["queue"]) for one in answer["results"]] == [(0, "all"), (0, "eu"), (1, "all")]
    await front.ok("POST", "/v1/exchanges/orders/unbind", bindings[1])
    assert (await front.ok("GET", "/v1/exchanges/orders/bindings"))["bindings"] == bindings[:1]
    nowhere = await front.ok("POST", "/v1/exchanges/orders/messages", {"messages": [{"key": "us.1"}]})
    assert nowhere == {"count": 1, "results": []}
    reply = await front.call("POST", "/v1/exchanges/orders/messages", {"messages": [{"key": "us.1"}]}, mandatory="true")
    assert (reply.status, reply.code) == (422, "unroutable")
    await front.ok("DELETE", "/v1/exchanges/orders")
    assert (await front.ok("GET", "/v1/exchanges"))["exchanges"] == []


@over_http()
async def test_bindings_by_typed_headers(front: Front) -> None:
    await front.broker.declare_queue("mail")
    await front.broker.declare_exchange("by", kind="headers")
    binding = {"target": "mail", "headers": {"tag": {"$base64": "AAE="}, "n": 1}, "match": "any"}
    await front.ok("POST", "/v1/exchanges/by/bind", binding)
    assert (await front.broker.bindings("by"))[0].headers == {"tag": b"\x00\x01", "n": 1}
    assert (await front.ok("GET", "/v1/exchanges/by/bindings"))["bindings"] == [binding]
    message = {"messages": [{"headers": {"tag": {"$base64": "AAE="}}}]}
    assert len((await front.ok("POST", "/v1/exchanges/by/messages", message))["results"]) == 1


# Traces and schedules ------------------------------------------------------------------------------------


@over_http()
async def test_traces(front: Front) -> None:
    await front.broker.declare_queue("mail")
    await front.publish("mail", "x", trace_id="order-1")
    await front.ok("POST", "/v1/traces/order-1/events", {"name": "packed", "detail": "box 7"})
    await front.ok(
        "POST", "/v1/traces/order-1/events", {"name": "sent", "queue": "mail", "offset": 0, "consumer": "me"}
    )
    trace = await front.ok("GET", "/v1/traces/order-1")
    assert trace["trace_id"] == "order-1"
    kinds = [(one["kind"], one.get("name", "")) for one in trace["entries"]]
    assert kinds == [("published", ""), ("event", "packed"), ("event", "sent")]
    assert trace["entries"][2] | {"at_ms": 0} == {
        "at_ms": 0,
        "kind": "event",
        "queue": "mail",
        "lane": 0,
        "offset": 0,
        "consumer": "me",
        "name": "sent",
    }
    assert (await front.ok("GET", "/v1/traces/unknown"))["entries"] == []
    assert len((await front.ok("GET", "/v1/traces/order-1", max=1))["entries"]) == 1


@over_http(engine="sqlite")
async def test_schedules(front: Front) -> None:
    await front.broker.declare_queue("mail")
    wanted = {
        "queue": "mail",
        "cron": "0 3 * * *",
        "timezone": "Europe/Berlin",
        "description": "nightly",
        "paused": True,
        "message": {"payload": "go", "headers": {"raw": {"$base64": "AA=="}}, "priority": 3},
    }
    reply = await front.call("PUT", "/v1/schedules/nightly", wanted)
    assert reply.status == 201
    assert reply.json() == {"name": "nightly", **wanted}
    assert (await front.broker.schedule("nightly")).message.headers == {"raw": b"\0"}
    again = await front.call("PUT", "/v1/schedules/nightly", wanted | {"paused": False})
    assert (again.status, again.json()["next_ms"] > 0) == (200, True)
    assert await front.ok("GET", "/v1/schedules/nightly") == again.json()
    assert (await front.ok("GET", "/v1/schedules"))["schedules"] == [again.json()]
    await front.ok("PUT", "/v1/schedules/often", {"queue": "mail", "interval_ms": 100, "message": {"payload": "tick"}})
    claim = await front.claim("mail", wait=20)
    assert claim["messages"][0]["payload"] == "tick"
    assert claim["messages"][0]["headers"]["schedule"] == "often"
    for name in ("often", "nightly"):
        await front.ok("DELETE", f"/v1/schedules/{name}")
    assert await front.broker.schedules() == []


# The server itself ---------------------------------------------------------------------------------------


@over_http()
async def test_what_the_server_says_of_itself(front: Front) -> None:
    assert await front.ok("GET", "/healthz") == {"status": "alive"}
    assert await front.ok("GET", "/readyz") == {"status": "ready"}
    metrics = await front.call("GET", "/metrics")
    assert metrics.headers["content-type"].startswith("text/plain; version=")
    assert b"penstock_http_requests" in metrics.body
    page = await front.call("GET", "/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert b"/v1/queues/{queue}/claim" in page.body
    assert b"<script" not in page.body
