"""Marks and staging over HTTP: paths, statuses, shapes and what is refused."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from penstock import Message, encode
from penstock.api.staging import VALUE_BYTES_MAX
from penstock.batch import EncodedBatch, to_bytes
from penstock.wire.http.shapes import BATCH_TYPE
from tests.fronts.http.rig import Front, over_http

BATCH: Final = {"Content-Type": BATCH_TYPE}


def frame(*payloads: bytes, **fields: Any) -> bytes:
    return to_bytes(encode([Message(payload, **fields) for payload in payloads]))


async def payloads(front: Front, queue: str) -> list[str]:
    reply = await front.call("POST", f"/v1/queues/{queue}/claim", {"max": 1_000, "ack": True})
    return [message["payload"] for message in reply.json()["messages"]]


# Marks ---------------------------------------------------------------------------------------------------


@over_http()
async def test_marks_are_put_read_listed_and_deleted(front: Front) -> None:
    value = {"z": 1, "a": [1.50, "ü", None]}
    reply = await front.call("PUT", "/v1/marks/job%2F1", {"value": value})
    assert reply.status == 200
    assert reply.json().keys() == {"name", "version", "value", "updated_ms"}
    reply = await front.call("GET", "/v1/marks/job%2F1")
    assert (reply.json()["name"], reply.json()["version"], reply.json()["value"]) == ("job/1", 1, value)
    # Kept as it was written: no number is changed, no name sorted.
    text = b'{"value": {"n": 1.50, "big": 123456789012345678901234567890, "a":   0}}'
    await front.call("PUT", "/v1/marks/raw", text, headers={"Content-Type": "application/json"})
    for path in ("/v1/marks", "/v1/marks/raw"):
        kept = (await front.call("GET", path)).body
        assert b'{"n": 1.50, "big": 123456789012345678901234567890, "a":   0}' in kept
    for number in range(5):
        await front.call("PUT", f"/v1/marks/many-{number}", {"value": number})
    found: list[int] = []
    after: str | None = ""
    while after is not None:
        page = (await front.call("GET", "/v1/marks", prefix="many-", limit=2, after=after)).json()
        assert len(page["marks"]) <= 2
        found += [mark["value"] for mark in page["marks"]]
        after = page["next"]
    assert found == [0, 1, 2, 3, 4]
    assert (await front.call("DELETE", "/v1/marks/raw")).status == 204
    for method in ("GET", "DELETE"):
        reply = await front.call(method, "/v1/marks/raw")
        assert (reply.status, reply.code) == (404, "not_found")
    assert (await front.call("GET", "/v1/marks/job%2F1", namespace="other")).status == 404


@over_http()
async def test_a_mark_that_has_moved(front: Front) -> None:
    for version, status in ((1, 409), (0, 200), (0, 409), (1, 200), (None, 200)):
        reply = await front.call("PUT", "/v1/marks/m", {"value": 1, "expected_version": version})
        assert reply.status == status
        if status == 409:
            assert reply.code == "mark_moved"
    assert (await front.call("GET", "/v1/marks/m")).json()["version"] == 3


@over_http()
async def test_marks_that_are_refused(front: Front) -> None:
    for body in (
        {},
        {"value": 1, "other": 2},
        {"value": 1, "expected_version": "1"},
        {"value": 1, "expected_version": -1},
    ):
        assert (await front.call("PUT", "/v1/marks/m", body)).status == 400
    large = json.dumps({"value": "x" * VALUE_BYTES_MAX}).encode()
    reply = await front.call("PUT", "/v1/marks/m", large, headers={"Content-Type": "application/json"})
    assert (reply.status, reply.code) == (413, "too_large")
    assert (await front.call("GET", "/v1/marks", limit=1_001)).status == 400
    assert (await front.call("GET", "/v1/marks", limit=0)).status == 400


# Staging -------------------------------------------------------------------------------------------------


@over_http()
async def test_chunks_are_staged_and_committed(front: Front) -> None:
    await front.call("PUT", "/v1/queues/q", {})
    await front.call("PUT", "/v1/exchanges/x", {"kind": "fanout"})
    await front.call("POST", "/v1/exchanges/x/bind", {"target": "q"})
    stage = "/v1/staged/t%2F1/"
    assert (await front.call("PUT", stage + "b", frame(b"3", b"4"), headers=BATCH, queue="q")).status == 204
    assert (await front.call("PUT", stage + "a", frame(b"1", b"2"), headers=BATCH, queue="q")).status == 204
    assert (await front.call("PUT", stage + "a", frame(b"no"), headers=BATCH, queue="q")).status == 204
    query: dict[str, Any] = {"exchange": "x", "routing_key": "k"}
    assert (await front.call("PUT", stage + "c", {"messages": [{"payload": "5"}]}, **query)).status == 204
    shown = (await front.call("GET", "/v1/staged/t%2F1")).json()
    assert (shown["transaction"], shown["state"], shown["published"]) == ("t/1", "open", 0)
    assert shown["expires_ms"] > 0
    assert [part["chunk"] for part in shown["chunks"]] == ["b", "a", "c"]
    assert shown["chunks"][2] == {
        "chunk": "c",
        "exchange": "x",
        "routing_key": "k",
        "messages": 1,
        "bytes": shown["chunks"][2]["bytes"],
    }
    body = {"chunks": ["a", "b", "c"], "marks": [{"name": "m", "value": {"x": 1}, "expected_version": 0}]}
    reply = await front.call("POST", "/v1/staged/t%2F1/commit", body)
    assert (reply.status, reply.json()) == (200, {"published": 5, "repeated": False})
    reply = await front.call("POST", "/v1/staged/t%2F1/commit", body)
    assert (reply.status, reply.json()) == (200, {"published": 5, "repeated": True})
    assert await payloads(front, "q") == ["1", "2", "3", "4", "5"]
    assert (await front.call("GET", "/v1/marks/m")).json()["value"] == {"x": 1}
    shown = (await front.call("GET", "/v1/staged/t%2F1")).json()
    assert (shown["state"], shown["published"], shown["chunks"], shown["expires_ms"]) == ("committed", 5, [], None)
    reply = await front.call("DELETE", "/v1/staged/t%2F1")
    assert (reply.status, reply.code) == (409, "already_committed")


@over_http()
async def test_an_abort_and_what_is_unknown(front: Front) -> None:
    await front.call("PUT", "/v1/queues/q", {})
    await front.call("PUT", "/v1/staged/t/a", frame(b"1"), headers=BATCH, queue="q")
    for _ in range(2):
        assert (await front.call("DELETE", "/v1/staged/t")).status == 204
    assert (await front.call("GET", "/v1/staged/t")).json()["state"] == "unknown"
    reply = await front.call("POST", "/v1/staged/t/commit", {"chunks": ["a"]})
    assert (reply.status, reply.code) == (409, "chunk_missing")
    assert await payloads(front, "q") == []


@over_http()
async def test_commits_that_are_refused_publish_nothing(front: Front) -> None:
    await front.call("PUT", "/v1/queues/q", {"max_length": 1})
    await front.call("PUT", "/v1/staged/t/a", frame(b"1", b"2"), headers=BATCH, queue="q")
    commit = "/v1/staged/t/commit"
    for body, status, code in (
        ({"chunks": ["a", "z"]}, 409, "chunk_missing"),
        ({"chunks": ["a"], "marks": [{"name": "m", "value": 1, "expected_version": 4}]}, 409, "mark_moved"),
        ({"chunks": ["a"], "marks": [{"name": "m", "value": 1}]}, 429, "queue_full"),
        ({"chunks": ["a", "a"]}, 400, "invalid_argument"),
        ({"chunks": "a"}, 400, "invalid_argument"),
        ({}, 400, "invalid_argument"),
        ({"chunks": [], "publish_id": ""}, 400, "invalid_argument"),
    ):
        reply = await front.call("POST", commit, body)
        assert (reply.status, reply.code) == (status, code), body
    assert await payloads(front, "q") == []
    assert (await front.call("GET", "/v1/marks")).json()["marks"] == []


@over_http()
async def test_chunks_that_are_refused(front: Front) -> None:
    await front.call("PUT", "/v1/queues/q", {})
    good = frame(b"1")
    for query, status in (
        ({}, 400),
        ({"queue": "q", "exchange": "x"}, 400),
        ({"queue": "q", "routing_key": "k"}, 400),
        ({"queue": "none"}, 404),
        ({"exchange": "none"}, 404),
        ({"queue": "$events"}, 403),
        ({"queue": "q", "other": "1"}, 400),
    ):
        assert (await front.call("PUT", "/v1/staged/t/a", good, headers=BATCH, **query)).status == status, query
    batch = encode([Message(b"1" * 100)] * 50)
    cut = to_bytes(EncodedBatch(batch.count, batch.meta, batch.body[:-1]))
    for body in (b"", b"nonsense", good[:-1], cut):
        reply = await front.call("PUT", "/v1/staged/t/a", body, headers=BATCH, queue="q")
        assert (reply.status, reply.code) == (400, "invalid_batch")
    assert (await front.call("PUT", "/v1/staged/t/commit", good, headers=BATCH, queue="q")).status == 405
    assert (
        await front.call("PUT", "/v1/staged/t/a", good, headers={"Content-Type": "text/plain"}, queue="q")
    ).status == 415
    assert (await front.call("GET", "/v1/staged/t")).json()["state"] == "unknown"


@pytest.mark.parametrize("path", ["/v1/marks/m", "/v1/staged/t"])
def test_a_token_is_asked_for(path: str) -> None:
    @over_http(token="secret")
    async def scenario(front: Front) -> None:
        assert (await front.call("GET", path)).status == 401

    scenario()
