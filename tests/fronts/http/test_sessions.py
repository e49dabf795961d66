"""Sessions over HTTP: exclusive queues, what ends with a session and when it ends."""

from __future__ import annotations

import asyncio

import pytest

from penstock.api.ticket import in_task
from penstock.fronts.http.sessions import NAMESPACES_KEPT
from penstock.model.errors import Unavailable
from penstock.model.rows import Commit
from tests.fronts.http.rig import Front, over_http, until
from tests.nodes import node_of


async def begin(front: Front, seconds: float = 30) -> dict[str, str]:
    session: dict[str, str] = await front.ok("POST", "/v1/sessions", {"seconds": seconds})
    return session


@over_http()
async def test_an_exclusive_queue_is_its_sessions_alone_and_goes_with_it(front: Front) -> None:
    refused = await front.call("PUT", "/v1/queues/replies", {"exclusive": True})
    assert (refused.status, refused.code) == (403, "forbidden")
    session = await begin(front)
    id = session["id"]
    assert id not in session["consumer"], "the name is for everybody to see, the id is not"
    await front.ok("PUT", "/v1/queues/replies", {"exclusive": True}, session=id)
    assert [each["queue"] for each in (await front.ok("GET", "/v1/stats", prefix="r"))["queues"]] == ["replies"]

    assert (await front.call("POST", "/v1/queues/replies/claim", {})).status == 403
    await front.publish("replies", "an answer")
    claimed = await front.ok("POST", "/v1/queues/replies/claim", {}, session=id)
    assert [message["payload"] for message in claimed["messages"]] == ["an answer"]

    await front.ok("DELETE", f"/v1/sessions/{id}")
    assert (await front.call("GET", "/v1/queues/replies")).status == 404
    gone = await front.call("POST", "/v1/queues/replies/claim", {}, session=id)
    assert (gone.status, gone.code) == (404, "not_found")
    assert "session" in gone.message
    assert (await front.call("DELETE", f"/v1/sessions/{id}")).status == 404


@over_http()
async def test_what_a_session_has_leased_returns_when_it_ends_in_any_namespace(front: Front) -> None:
    for namespace in ("default", "other"):
        await front.ok("PUT", "/v1/queues/work", {}, namespace=namespace)
        await front.ok("POST", "/v1/queues/work/messages", {"messages": [{"payload": "a"}]}, namespace=namespace)
    session = await begin(front)
    for namespace in ("default", "other"):
        claimed = await front.ok(
            "POST", "/v1/queues/work/claim", {"lease_seconds": 600}, session=session["id"], namespace=namespace
        )
        assert claimed["messages"][0]["attempt"] == 1
        nothing = await front.ok("POST", "/v1/queues/work/claim", {}, namespace=namespace)
        assert nothing["messages"] == []
    await front.ok("DELETE", f"/v1/sessions/{session['id']}")
    for namespace in ("default", "other"):
        again = await front.ok("POST", "/v1/queues/work/claim", {"wait": 10}, namespace=namespace)
        assert again["messages"][0]["attempt"] == 2


@over_http(max_sessions=2)
async def test_a_session_that_nobody_names_ends_and_one_that_is_used_does_not(front: Front) -> None:
    left, kept = [(await begin(front, 1))["id"] for _ in range(2)]
    await front.ok("PUT", "/v1/queues/kept", {"exclusive": True}, session=kept)
    # A request that waits is use for as long as it waits: longer than the session would live without.
    waiting = asyncio.ensure_future(front.ok("POST", "/v1/queues/kept/claim", {"wait": 20}, session=kept))
    await front.ok("PUT", "/v1/queues/left", {"exclusive": True}, session=left)
    full = await front.call("POST", "/v1/sessions", {})
    assert (full.status, full.code) == (429, "overloaded")

    async def left_has_ended() -> bool:
        return (await front.call("GET", "/v1/queues/left")).status == 404

    await until(left_has_ended)
    assert (await front.call("PUT", f"/v1/sessions/{left}")).status == 404
    await front.publish("kept", "m")
    assert (await waiting)["messages"]
    await front.ok("PUT", f"/v1/sessions/{kept}")
    assert (await front.call("GET", "/v1/queues/kept", session=kept)).status == 200


@pytest.mark.parametrize("seconds", [0, 0.5, 3_601, "x", None])
@over_http()
async def test_a_wrong_time_is_refused(front: Front, seconds: object) -> None:
    assert (await front.call("POST", "/v1/sessions", {"seconds": seconds})).status == 400


@over_http()
async def test_what_a_request_declares_while_its_session_is_ended_goes_too(front: Front) -> None:
    session = await begin(front)
    answered, went_on = asyncio.Event(), asyncio.Event()
    apply = node_of(front.broker).store.apply

    @in_task
    async def slowly(commit: Commit) -> None:
        answered.set()
        await went_on.wait()
        await apply(commit)

    node_of(front.broker).store.apply = slowly  # type: ignore[method-assign]
    declaring = asyncio.ensure_future(front.call("PUT", "/v1/queues/late", {"exclusive": True}, session=session["id"]))
    await answered.wait()
    ending = asyncio.ensure_future(front.call("DELETE", f"/v1/sessions/{session['id']}"))
    await until(lambda: not front.server.sessions)
    went_on.set()
    assert (await declaring).status in (200, 201)
    assert (await ending).status == 204

    async def is_gone() -> bool:
        return (await front.call("GET", "/v1/queues/late")).status == 404

    await until(is_gone)


@over_http()
async def test_a_session_that_could_not_be_ended_can_be_ended_again(front: Front) -> None:
    session = await begin(front)
    await front.ok("PUT", "/v1/queues/replies", {"exclusive": True}, session=session["id"])
    store = node_of(front.broker).store
    apply = store.apply

    @in_task
    async def away(commit: Commit) -> None:
        store.apply = apply  # type: ignore[method-assign]
        raise Unavailable("the store is away")

    store.apply = away  # type: ignore[method-assign]
    assert (await front.call("DELETE", f"/v1/sessions/{session['id']}")).status == 503
    assert (await front.call("DELETE", f"/v1/sessions/{session['id']}")).status == 204
    assert (await front.call("GET", "/v1/queues/replies")).status == 404


@over_http()
async def test_a_session_that_names_many_namespaces_keeps_few_of_them(front: Front) -> None:
    session = await begin(front)
    for number in range(NAMESPACES_KEPT + 5):
        await front.ok("GET", "/v1/queues", session=session["id"], namespace=f"n{number}")
    assert len(front.server.sessions.find(session["id"]).namespaces.known) == NAMESPACES_KEPT
