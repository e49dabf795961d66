"""Bad input above HTTP: bodies, types, names, queries. Each is answered with what is wrong, and nothing happens."""

from __future__ import annotations

import json
from typing import Any, Final, NoReturn

import pytest

from penstock.node.broker.local import LocalBroker
from tests.fronts.http.rig import Front, name, over_http
from tests.fronts.http.wrong_input import WRONG_FIELDS, WRONG_QUERIES

MESSAGES: Final = "/v1/queues/mail/messages"


async def refused(front: Front, method: str, path: str, body: Any, **options: Any) -> str:
    """The code of a 400, after which the queue is as it was."""
    reply = await front.call(method, path, body, **options)
    assert reply.status == 400, reply
    assert (await front.broker.stats("mail")).published == 0
    return reply.code


BROKEN_JSON: Final = {
    "deep lists": b"[" * 100_000,
    "deep lists that end": b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": b'{"messages":[{"headers":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}]}",
    "a number past all bounds": b'{"messages":[{"headers":{"a":1e999}}]}',
    "NaN": b'{"messages":[{"headers":{"a":NaN}}]}',
    "Infinity": b'{"messages":[{"headers":{"a":-Infinity}}]}',
    "no UTF-8": b'{"messages":[{"payload":"\xff\xfe"}]}',
    "no UTF-8 in a name": b'{"mess\xe9ages":[]}',
    "UTF-8 of a surrogate": b'{"messages":[{"payload":"\xed\xa0\x80"}]}',
    "half a surrogate pair": b'{"messages":[{"payload":"\\ud83d"}]}',
    "the second half of one": b'{"messages":[{"key":"\\ude00"}]}',
    "a byte order mark": b'\xef\xbb\xbf{"messages":[]}',
    "UTF-16": '{"messages":[{"payload":"x"}]}'.encode("utf-16"),
    "cut short": b'{"messages":[{"payload":"x"}',
    "more than one": b'{"messages":[{"payload":"x"}]}{"messages":[{"payload":"x"}]}',
    "a comment": b'{"messages":[{"payload":"x"}]} // comment',
    "single quotes": b"{'messages':[]}",
    "NUL": b'{"messages":[{"payload":"\0"}]}',
    "a list": b"[]",
    "null": b"null",
    "text": b'"messages"',
    "a very long number": b'{"messages":[{"priority":' + b"9" * 100_000 + b"}]}",
    "a long number in a header": b'{"messages":[{"headers":{"a":' + b"9" * 5_000 + b"}}]}",
    "white space": b"   ",
}


@pytest.mark.parametrize("what", BROKEN_JSON)
@over_http()
async def test_what_is_no_json_or_not_this_json(front: Front, what: str) -> None:
    await front.broker.declare_queue("mail")
    code = await refused(front, "POST", MESSAGES, BROKEN_JSON[what], headers={"Content-Type": "application/json"})
    assert code in ("malformed", "invalid_argument")
    assert await front.is_alive()


WRONG_MESSAGES: Final[dict[str, Any]] = {
    "no messages": {},
    "an empty list": {"messages": []},
    "not a list": {"messages": {"payload": "x"}},
    "not objects": {"messages": ["x"]},
    "an unknown field": {"messages": [{"payload": "x"}], "delay": 3},
    "an unknown field of a message": {"messages": [{"payload": "x", "colour": "blue"}]},
    "payload is a number": {"messages": [{"payload": 1}]},
    "payload is a list": {"messages": [{"payload": [1]}]},
    "two payloads": {"messages": [{"payload": "x", "payload_base64": "eA=="}]},
    "three payloads": {"messages": [{"payload": "x", "payload_base64": "eA==", "payload_json": 1}]},
    "no base64": {"messages": [{"payload_base64": "!!"}]},
    "partition is a number": {"messages": [{"partition": 1}]},
    "partition is long": {"messages": [{"partition": "x" * 1_025}]},
    "key is long": {"messages": [{"key": "x" * 256}]},
    "headers are a list": {"messages": [{"headers": []}]},
    "a header's name is long": {"messages": [{"headers": {"x" * 256: 1}}]},
    "too many headers": {"messages": [{"headers": {str(one): 1 for one in range(257)}}]},
    "headers too deep": {"messages": [{"headers": {"a": [[[[[[[[[1]]]]]]]]]}}]},
    "a header past 64 bits": {"messages": [{"headers": {"a": 2**63}}]},
    "a header that is no base64": {"messages": [{"headers": {"a": {"$base64": "?"}}}]},
    "a header that is no time": {"messages": [{"headers": {"a": {"$time": "yesterday"}}}]},
    "a header's time without a zone": {"messages": [{"headers": {"a": {"$time": "2026-01-01T00:00:00"}}}]},
    "priority is text": {"messages": [{"priority": "high"}]},
    "priority is true": {"messages": [{"priority": True}]},
    "priority is large": {"messages": [{"priority": 256}]},
    "priority is negative": {"messages": [{"priority": -1}]},
    "priority is a fraction": {"messages": [{"priority": 1.5}]},
    "delay is negative": {"messages": [{"delay_ms": -1}]},
    "delay is past 64 bits": {"messages": [{"delay_ms": 2**64}]},
    "not before is past the years": {"messages": [{"not_before_ms": 2**62}]},
    "ttl is negative": {"messages": [{"ttl_ms": -1}]},
    "ttl is text": {"messages": [{"ttl_ms": "1"}]},
    "dedup id is long": {"messages": [{"dedup_id": "x" * 256}]},
    "content type is long": {"messages": [{"content_type": "x" * 256}]},
    "correlation id is a number": {"messages": [{"correlation_id": 1}]},
    "trace id is an object": {"messages": [{"trace_id": {}}]},
    "the second is wrong": {"messages": [{"payload": "x"}, {"payload": 2}]},
}


@pytest.mark.parametrize("what", WRONG_MESSAGES)
@over_http()
async def test_messages_that_cannot_be_published(front: Front, what: str) -> None:
    await front.broker.declare_queue("mail")
    assert await refused(front, "POST", MESSAGES, WRONG_MESSAGES[what]) == "invalid_argument"


@over_http()
async def test_fields_of_the_wrong_type_or_past_their_limits(front: Front) -> None:
    await front.broker.declare_queue("mail")
    await front.broker.declare_group("mail", "default")
    await front.broker.declare_group("mail", "watch", kind="stream")
    await front.broker.declare_exchange("topics", kind="headers")
    for method, path, body in [(*operation, body) for operation, of in WRONG_FIELDS.items() for body in of]:
        reply = await front.call(method, path, body)
        assert reply.status == 400, (method, path, body, reply)
        assert reply.code in ("invalid_argument", "unknown_option", "invalid_filter", "malformed"), (path, body, reply)
    assert sorted(await front.broker.queues()) == ["$events", "mail"]
    assert sorted(await front.broker.groups("mail")) == ["default", "watch"]
    assert await front.broker.bindings("topics") == []
    assert await front.broker.schedules() == []


@over_http()
async def test_queries_and_numbers_in_paths(front: Front) -> None:
    await front.broker.declare_queue("mail")
    await front.broker.declare_group("mail", "default")
    for path, query in [(path, query) for path, of in WRONG_QUERIES.items() for query in of]:
        reply = await front.call("GET", f"{path}?{query}" if query else path)
        assert reply.status == 400, (path, query[:60], reply)
        assert reply.code in ("invalid_argument", "invalid_filter"), (path, query, reply)


@over_http(max_header_bytes=100_000)
async def test_a_query_has_a_limit_of_its_own(front: Front) -> None:
    from penstock.fronts.http.routes import QUERY_BYTES_MAX

    for size, status in ((QUERY_BYTES_MAX, 200), (QUERY_BYTES_MAX + 1, 400)):
        query = "prefix=" + "x" * (size - 7)
        assert (await front.call("GET", f"/v1/queues?{query}")).status == status


# Media types ---------------------------------------------------------------------------------------------


@over_http()
async def test_media_types(front: Front) -> None:
    await front.broker.declare_queue("mail")
    body = b'{"messages":[{"payload":"x"}]}'
    good = ("application/json", "application/json; charset=utf-8", "APPLICATION/JSON", "application/json;x=y")
    for media_type in good:
        assert (await front.call("POST", MESSAGES, body, headers={"Content-Type": media_type})).status == 200
    bad = (
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/jsonx",
        "",
        "application/vnd.penstock.batches+msgpack",
        "*/*",
    )
    for media_type in bad:
        reply = await front.call("POST", MESSAGES, body, headers={"Content-Type": media_type})
        assert (reply.status, reply.code) == (415, "unsupported_media_type"), media_type
        assert "application/json or application/vnd.penstock.batch" in reply.message
    assert (await front.call("POST", MESSAGES, body)).status == 415
    assert (await front.broker.stats("mail")).published == len(good)


@over_http()
async def test_a_batch_is_taken_only_where_one_is_wanted(front: Front) -> None:
    await front.broker.declare_queue("mail")
    batch = {"Content-Type": "application/vnd.penstock.batch"}
    assert (await front.call("POST", "/v1/queues/mail/claim", b"PBAT", headers=batch)).status == 415
    assert (await front.call("PUT", "/v1/queues/other", b"PBAT", headers=batch)).status == 415


@over_http()
async def test_a_request_without_a_body_needs_no_media_type(front: Front) -> None:
    assert (await front.call("PUT", "/v1/queues/mail")).status == 201
    assert (await front.call("POST", "/v1/queues/mail/claim")).json()["messages"] == []
    assert (await front.call("POST", "/v1/queues/mail/messages")).status == 400
    text = {"Content-Type": "text/plain"}
    assert (await front.call("POST", "/v1/queues/mail/claim", b"", headers=text)).status == 415


@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd", "deflate, gzip", "identity, gzip"])
@over_http()
async def test_compressed_bodies_are_refused(front: Front, encoding: str) -> None:
    await front.broker.declare_queue("mail")
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    reply = await front.call("POST", MESSAGES, b"\x1f\x8b\x08", headers=headers)
    assert (reply.status, reply.code) == (415, "unsupported_media_type")
    headers["Content-Encoding"] = "Identity"
    assert (await front.call("POST", MESSAGES, b'{"messages":[{}]}', headers=headers)).status == 200


@over_http()
async def test_a_name_given_twice_counts_once_and_the_last_one_counts(front: Front) -> None:
    await front.broker.declare_queue("mail")
    body = b'{"messages":[{"payload":"first","payload":"last"}]}'
    assert (await front.call("POST", MESSAGES, body, headers={"Content-Type": "application/json"})).status == 200
    assert (await front.broker.browse("mail")).messages[0].payload == b"last"


# Names ---------------------------------------------------------------------------------------------------

NAMES: Final = [
    "a/b",
    "..",
    ".",
    "a b",
    "a?b",
    "a#b",
    "a%2Fb",
    "100%",
    "caf\u00e9",
    "\U0001f600" * 60,
    "x" * 255,
    "\u6d77" * 255,
    "a+b",
    "a&b=c",
    "messages",
    "~",
    "a:b",
    "'; drop table queues; --",
    "<script>",
    "a\\b",
    '"',
]


@over_http(engine="sqlite")
async def test_every_name_goes_through_a_path(front: Front) -> None:
    for text in NAMES:
        path = f"/v1/queues/{name(text)}"
        assert (await front.call("PUT", path, {})).json() == {"name": text, "options": {}}
        await front.publish(text, text)
        assert (await front.claim(text))["messages"][0]["payload"] == text
        assert (await front.call("PUT", f"{path}/groups/{name(text)}", {})).json()["name"] == text
        assert (await front.ok("GET", f"{path}/groups/{name(text)}"))["name"] == text
        assert (await front.call("PUT", f"/v1/exchanges/{name(text)}", {"kind": "fanout"})).json()["name"] == text
        await front.ok("POST", f"/v1/exchanges/{name(text)}/bind", {"target": text})
        published = await front.ok("POST", f"/v1/exchanges/{name(text)}/messages", {"messages": [{"payload": "by"}]})
        assert published["results"][0]["queue"] == text
    listed = await front.ok("GET", "/v1/queues")
    assert sorted(queue["name"] for queue in listed["queues"]) == sorted([*NAMES, "$events"])
    for text in NAMES:
        await front.ok("DELETE", f"/v1/queues/{name(text)}")
    assert list(await front.broker.queues()) == ["$events"]


@over_http()
async def test_names_that_cannot_be(front: Front) -> None:
    for raw in ("%00", "a%0Ab", "%7F", "x" * 256, "%ED%A0%80", "%FF", "%C3%28", ""):
        reply = await front.call("PUT", f"/v1/queues/{raw}", {})
        assert reply.status in (400, 404), raw
        if raw:
            assert reply.status == 400, raw
    assert list(await front.broker.queues()) == ["$events"]


@over_http()
async def test_half_an_escape_is_text(front: Front) -> None:
    for raw, text in (("a%", "a%"), ("a%2", "a%2"), ("a%zz", "a%zz")):
        assert (await front.call("PUT", f"/v1/queues/{raw}", {})).json()["name"] == text


@over_http()
async def test_paths_that_lead_nowhere(front: Front) -> None:
    for path in (
        "/",
        "//",
        "/v1",
        "/v1/",
        "/v1/queues/",
        "/v1/queue",
        "/v1/queues/a/b",
        "/v2/queues",
        "/V1/queues",
        "/healthz/",
        "/v1/queues//messages",
        "/../etc/passwd",
        "/%2e%2e/etc/passwd",
        "/v1/queues/../../etc",
    ):
        reply = await front.call("GET", path)
        assert reply.status == 404, path
        assert reply.code in ("no_such_path", "not_found"), path
    assert (await front.call("GET", "/" + "x" * 5_000)).status == 404


@over_http()
async def test_methods_that_a_path_does_not_take(front: Front) -> None:
    for method, path, allowed in (
        ("POST", "/v1/queues", "GET"),
        ("POST", "/v1/queues/x", "DELETE, GET, PATCH, PUT"),
        ("GET", "/v1/queues/x/claim", "POST"),
        ("HEAD", "/v1/queues/x/claim", "POST"),
        ("OPTIONS", "/v1/queues", "GET"),
        ("TRACE", "/healthz", "GET"),
        ("DELETE", "/healthz", "GET"),
    ):
        reply = await front.call(method, path)
        assert (reply.status, reply.headers["allow"]) == (405, allowed)


@over_http()
async def test_an_error_of_the_server_s_own_says_nothing_of_its_inside(
    front: Front, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalBroker, "queues_page", broken)
    reply = await front.call("GET", "/v1/queues")
    assert (reply.status, reply.code) == (500, "internal")
    assert "ZeroDivision" not in json.dumps(reply.json())
    assert "ZeroDivisionError" in caplog.text
    assert await front.is_alive()


def broken(_broker: LocalBroker, *_given: object, **_named: object) -> NoReturn:
    raise ZeroDivisionError
