"""Claims, verdicts, transactions, groups, streams, browsing and dead letters over HTTP, beside the state they leave."""

from __future__ import annotations

from typing import Any, Final

from tests.fronts.http.rig import Front, over_http, until
from tests.nodes import node_of

GROUP: Final = "/v1/queues/mail/groups/default"

# Consume -------------------------------------------------------------------------------------------------


async def settle(front: Front, lease: str, *verdicts: dict[str, Any]) -> Any:
    return await front.call("POST", f"/v1/leases/{lease}/settle", {"verdicts": list(verdicts)})


@over_http(engine="sqlite")
async def test_any_mix_of_verdicts(front: Front) -> None:
    await front.broker.declare_queue("mail", backoff_ms=0)
    await front.publish("mail", *"abcdefgh")
    claim = await front.claim("mail", max=8, lease_seconds=60, consumer="me")
    assert [one["offset"] for one in claim["messages"]] == list(range(8))
    assert all(one["attempt"] == 1 and one["queue"] == "mail" for one in claim["messages"])
    reply = await settle(
        front,
        claim["lease"],
        {"action": "ack", "offsets": [0, 2]},
        {"action": "reject", "start": 3, "end": 5, "error": "bad"},
        {"action": "nack", "offsets": [1], "delay": 0, "error": "once more"},
        {"action": "postpone", "offsets": [5], "delay": 600},
        {"action": "release", "offsets": [6]},
    )
    assert reply.status == 204
    assert reply.body == b""
    states = {one.offset: one.state for one in (await front.broker.browse("mail", group="default")).messages}
    assert {states.pop(1), states.pop(6)} <= {"waiting", "ready"}  # due at once, whenever somebody looks
    assert states == {0: "done", 2: "done", 3: "dead", 4: "dead", 5: "waiting", 7: "leased"}
    assert (await settle(front, claim["lease"], {"action": "ack"})).status == 204  # what is left
    again = await front.claim("mail", max=8)
    assert [(one["offset"], one["attempt"]) for one in again["messages"]] == [(1, 2), (6, 1)]
    gone = await settle(front, claim["lease"], {"action": "ack"})
    assert (gone.status, gone.code) == (409, "lease_lost")
    assert gone.message


@over_http(engine="sqlite")
async def test_a_settle_that_claims(front: Front) -> None:
    await front.broker.declare_queue("mail", backoff_ms=0)
    await front.publish("mail", *"abcd")
    claim = await front.claim("mail")
    following = await front.ok("POST", f"/v1/leases/{claim['lease']}/next", {"max": 2, "consumer": "me"})
    assert [one["payload"] for one in following["messages"]] == ["b", "c"]
    assert (following["queue"], following["lane"]) == ("mail", 0)
    verdicts = [{"action": "ack", "offsets": [1]}, {"action": "nack", "offsets": [2], "delay": 0, "error": "once more"}]
    last = await front.ok("POST", f"/v1/leases/{following['lease']}/next", {"verdicts": verdicts, "max": 9})
    assert [(one["payload"], one["attempt"]) for one in last["messages"]] == [("c", 2), ("d", 1)]
    empty = await front.ok("POST", f"/v1/leases/{last['lease']}/next", {})
    assert (empty["messages"], empty["lease"]) == ([], None)
    for body, status, code in (
        ({}, 409, "lease_lost"),
        ({"verdicts": []}, 400, "invalid_argument"),
        ({"max": 0}, 400, "invalid_argument"),
        ({"wait": 5}, 400, "invalid_argument"),
        ({"lease_seconds": 0}, 400, "invalid_argument"),
    ):
        reply = await front.call("POST", f"/v1/leases/{last['lease']}/next", body)
        assert (reply.status, reply.code) == (status, code), body


@over_http()
async def test_a_lease_that_passed_on(front: Front) -> None:
    await front.broker.declare_queue("mail", backoff_ms=0)
    await front.publish("mail", "x")
    first = await front.claim("mail", lease_seconds=0.05)
    second = await front.claim("mail", wait=20)
    assert second["messages"][0]["attempt"] == 2
    for path, body in (("settle", {"verdicts": [{"action": "ack"}]}), ("extend", {"seconds": 5})):
        reply = await front.call("POST", f"/v1/leases/{first['lease']}/{path}", body)
        assert (reply.status, reply.code) == (409, "lease_lost")
    extended = await front.ok("POST", f"/v1/leases/{second['lease']}/extend", {"seconds": 500})
    assert extended["deadline_ms"] > second["deadline_ms"]
    assert (await settle(front, second["lease"], {"action": "ack"})).status == 204
    partial = await settle(front, second["lease"], {"action": "ack", "offsets": [0]})
    assert partial.status == 409


@over_http()
async def test_claims_that_settle_at_once_and_claims_by_partition(front: Front) -> None:
    await front.broker.declare_queue("mail", ordered=True)
    await front.ok(
        "POST",
        "/v1/queues/mail/messages",
        {"messages": [{"payload": one, "partition": one} for one in ("a", "b", "c")]},
    )
    claim = await front.claim("mail", partition="b")
    assert [one["payload"] for one in claim["messages"]] == ["b"]
    claim = await front.claim("mail", ack=True, max=10)
    assert (claim["lease"], [one["payload"] for one in claim["messages"]]) == (None, ["a", "c"])
    assert (await front.broker.stats("mail")).groups[0].ready == 0
    empty = await front.claim("mail", wait=0.05)
    assert empty == {"queue": "mail", "lane": 0, "lease": None, "deadline_ms": 0, "messages": []}


@over_http()
async def test_a_consumer_has_its_connection_s_name_unless_it_says_so(front: Front) -> None:
    await front.broker.declare_queue("mail")
    await front.publish("mail", "a", "b")
    for body in ({}, {"consumer": "worker-7"}):
        claim = await front.claim("mail", **body)
        await settle(front, claim["lease"], {"action": "reject"})
    dead = (await front.ok("GET", f"{GROUP}/dead"))["dead"]
    assert dead[0]["consumer"].startswith("127.0.0.1:")
    assert dead[1]["consumer"] == "worker-7"


@over_http()
async def test_work_and_stream_groups_are_not_the_same(front: Front) -> None:
    await front.broker.declare_queue("mail")
    await front.broker.declare_group("mail", "watch", kind="stream")
    await front.broker.declare_group("mail", "default")
    for method, path, body in (
        ("POST", "/v1/queues/mail/claim", {"group": "watch"}),
        ("POST", "/v1/queues/mail/groups/default/read", {}),
        ("POST", "/v1/queues/mail/groups/default/commit", {"offset": 0}),
        ("POST", "/v1/queues/mail/groups/watch/purge", None),
        ("GET", "/v1/queues/mail/groups/watch/dead", None),
        ("GET", "/v1/queues/mail/groups/watch/dead/reasons", None),
        ("GET", "/v1/queues/mail/groups/watch/dead/export", None),
        ("POST", "/v1/queues/mail/groups/watch/dead/redrive", {}),
        ("POST", "/v1/queues/mail/groups/watch/dead/purge", {}),
    ):
        reply = await front.call(method, path, body)
        assert (reply.status, reply.code) == (409, "wrong_kind"), (path, reply)


@over_http(engine="sqlite")
async def test_transactions(front: Front) -> None:
    for queue in ("in", "out"):
        await front.broker.declare_queue(queue)
    await front.broker.declare_exchange("all", kind="fanout")
    await front.broker.bind("all", "out")
    await front.publish("in", "a", "b")
    claim = await front.claim("in", max=2)
    body = {
        "settle": [{"lease": claim["lease"], "verdicts": [{"action": "ack", "offsets": [0]}]}],
        "publish": [
            {"queue": "out", "messages": [{"payload": "A"}]},
            {"exchange": "all", "messages": [{"payload": "B"}]},
        ],
    }
    answer = await front.ok("POST", "/v1/transactions", body)
    assert [(one["index"], one["queue"], one["offset"]) for one in answer["results"]] == [(0, "out", 0), (1, "out", 1)]
    reply = await front.call("POST", "/v1/transactions", body)  # the ack was done before: nothing of it happens again
    assert (reply.status, reply.code) == (409, "lease_lost")
    assert (await front.broker.stats("out")).published == 2
    body["settle"] = [{"lease": claim["lease"], "verdicts": [{"action": "nack", "delay": 0}]}]
    body["publish"] = []
    assert await front.ok("POST", "/v1/transactions", body) == {"count": 0, "results": []}


# Groups --------------------------------------------------------------------------------------------------


@over_http()
async def test_groups(front: Front) -> None:
    await front.broker.declare_queue("mail")
    path = "/v1/queues/mail/groups/audit"
    reply = await front.call("PUT", path, {"kind": "work", "max_attempts": 2})
    assert (reply.status, reply.json()) == (201, {"name": "audit", "options": {"max_attempts": 2}})
    assert (await front.call("PUT", path, {"lease_ms": 1_000})).json()["options"] == {
        "max_attempts": 2,
        "lease_ms": 1_000,
    }
    assert (await front.call("PUT", path, {"kind": "stream"})).code == "already_exists"
    assert (await front.ok("PATCH", path, {"rate": 5.5}))["options"]["rate"] == 5.5
    assert [one["name"] for one in (await front.ok("GET", "/v1/queues/mail/groups"))["groups"]] == ["audit"]
    await front.publish("mail", "a", "b", "c")
    await front.ok("POST", f"{path}/pause")
    assert (await front.claim("mail", group="audit"))["messages"] == []
    await front.ok("POST", f"{path}/resume")
    assert (await front.broker.groups("mail"))["audit"] == {"max_attempts": 2, "lease_ms": 1_000, "rate": 5.5}
    await front.ok("POST", f"{path}/seek", {"offset": 2})
    assert (await front.claim("mail", group="audit", max=5))["messages"][0]["payload"] == "c"
    await front.ok("POST", f"{path}/seek", {"to": "first"})
    assert await front.ok("POST", f"{path}/purge") == {"count": 3}
    await front.ok("POST", f"{path}/seek", {"to": "last"})
    await front.ok("POST", f"{path}/seek", {"time_ms": 0})
    await front.ok("DELETE", path)
    assert await front.broker.groups("mail") == {}


@over_http()
async def test_consumers_that_come_and_go(front: Front) -> None:
    await front.broker.declare_queue("mail", auto_delete=True, backoff_ms=0)
    await front.publish("mail", "x")
    await front.ok("POST", f"{GROUP}/attach", {"consumer": "one"})
    await front.claim("mail", consumer="one", lease_seconds=600)
    await front.ok("POST", f"{GROUP}/attach", {"consumer": "two"})
    await front.ok("POST", f"{GROUP}/detach", {"consumer": "one"})
    again = await front.claim("mail", consumer="two", wait=20)
    assert again["messages"][0]["attempt"] == 2
    await front.ok("POST", f"{GROUP}/detach", {"consumer": "two"})
    assert "mail" not in await front.broker.queues()


# Streams and looking -------------------------------------------------------------------------------------


@over_http()
async def test_streams(front: Front) -> None:
    await front.broker.declare_queue("mail", primary_group="default", retain_messages=1_000)
    await front.broker.declare_group("mail", "default")
    await front.broker.declare_group("mail", "watch", kind="stream", auto_commit=False)
    await front.publish("mail", "a", "b", "c")
    await front.broker.ack(await front.broker.claim("mail"))
    read = await front.ok("POST", "/v1/queues/mail/groups/watch/read", {"max": 2})
    assert ([one["payload"] for one in read["messages"]], read["next_offset"]) == (["a", "b"], 2)
    assert [one["done"] for one in read["messages"]] == [True, False]
    assert read["primary_committed"] == 1
    await front.ok("POST", "/v1/queues/mail/groups/watch/commit", {"offset": 2, "lane": 0})
    log = await front.ok("GET", "/v1/queues/mail/log", offset=1, max=10)
    assert [one["payload"] for one in log["messages"]] == ["b", "c"]
    assert [one["offset"] for one in (await front.ok("GET", "/v1/queues/mail/log", time_ms=0))["messages"]] == [0, 1, 2]
    assert (await front.ok("GET", "/v1/queues/mail/log", offset=50))["messages"] == []


@over_http()
async def test_offsets_that_are_gone(front: Front) -> None:
    await front.broker.declare_queue("mail")
    for number in range(3):
        await front.publish("mail", str(number))
    await front.broker.ack(await front.broker.claim("mail", max=2))
    await front.broker.ack(await front.broker.claim("mail"))
    node = node_of(front.broker)
    lane = front.broker._queue("mail", "consume").lanes[0]

    async def is_trimmed() -> bool:
        return await node.lanes.run(lane, lambda one: one.first) > 0

    await until(is_trimmed)
    reply = await front.call("GET", "/v1/queues/mail/log", offset=0)
    assert (reply.status, reply.code) == (410, "offset_gone")
    assert (await front.call("GET", "/v1/queues/mail/messages/0/0")).status in (404, 410)


@over_http()
async def test_browsing_and_one_message(front: Front) -> None:
    await front.broker.declare_queue("mail", lanes=2)
    await front.broker.declare_group("mail", "default")
    messages = [{"payload": str(one), "partition": f"p{one % 5}", "headers": {"n": one}} for one in range(20)]
    await front.ok("POST", "/v1/queues/mail/messages", {"messages": messages})
    found: list[str] = []
    query: dict[str, Any] = {"max": 3}
    while True:
        page = await front.ok("GET", "/v1/queues/mail/messages", **query)
        found += [one["payload"] for one in page["messages"]]
        if page["next"] is None:
            break
        query["after"] = page["next"]
    assert sorted(found, key=int) == [str(one) for one in range(20)]
    page = await front.ok("GET", "/v1/queues/mail/messages", filter="n >= 15 AND n < 17")
    assert sorted(one["payload"] for one in page["messages"]) == ["15", "16"]
    page = await front.ok("GET", "/v1/queues/mail/messages", partition="p3", state="ready")
    assert [one["payload"] for one in page["messages"]] == ["3", "8", "13", "18"]
    place = page["messages"][0]
    one = await front.ok("GET", f"/v1/queues/mail/messages/{place['lane']}/{place['offset']}")
    assert (one["payload"], one["state"], one["headers"]) == ("3", "ready", {"n": 3})
    reply = await front.call("GET", "/v1/queues/mail/messages", filter="n = = 1")
    assert (reply.status, reply.code) == (400, "invalid_filter")
    assert reply.json()["error"]["detail"]["column"] > 0


@over_http()
async def test_the_history_of_a_message(front: Front) -> None:
    await front.broker.declare_queue("mail", backoff_ms=0)
    await front.publish("mail", "x")
    claim = await front.claim("mail", consumer="me")
    await settle(front, claim["lease"], {"action": "nack", "delay": 0, "error": "not yet"})
    entries = (await front.ok("GET", "/v1/queues/mail/messages/0/0/history"))["history"]
    assert (entries[0]["kind"], entries[0]["consumer"]) == ("claimed", "me")
    expected = await front.broker.history("mail", 0)
    assert [one["kind"] for one in entries] == [one.kind for one in expected]
    assert "not yet" in [one["detail"] for one in entries]


# Dead letters --------------------------------------------------------------------------------------------


@over_http(engine="sqlite")
async def test_dead_letters(front: Front) -> None:
    await front.broker.declare_queue("mail")
    await front.publish("mail", *"abcd")
    claim = await front.claim("mail", max=4)
    await settle(
        front,
        claim["lease"],
        {"action": "reject", "offsets": [0, 1, 2], "error": "no address"},
        {"action": "reject", "offsets": [3], "error": "too old"},
    )
    dead = (await front.ok("GET", f"{GROUP}/dead"))["dead"]
    assert [(one["message"]["payload"], one["reason"], one["error"], one["attempts"]) for one in dead] == [
        ("a", "rejected", "no address", 1),
        ("b", "rejected", "no address", 1),
        ("c", "rejected", "no address", 1),
        ("d", "rejected", "too old", 1),
    ]
    assert len((await front.ok("GET", f"{GROUP}/dead", error="old"))["dead"]) == 1
    assert len((await front.ok("GET", f"{GROUP}/dead", start=1, end=3, reason="rejected"))["dead"]) == 2
    assert len((await front.ok("GET", f"{GROUP}/dead", max=3))["dead"]) == 3
    reasons = (await front.ok("GET", f"{GROUP}/dead/reasons"))["reasons"]
    assert [(one["reason"], one["error"], one["count"]) for one in reasons] == [
        ("rejected", "no address", 3),
        ("rejected", "too old", 1),
    ]
    assert await front.ok("POST", f"{GROUP}/dead/redrive", {"offsets": [0, 2]}) == {"count": 2}
    assert [one["payload"] for one in (await front.claim("mail", max=9))["messages"]] == ["a", "b"]
    assert await front.ok("POST", f"{GROUP}/dead/purge", {"error": "old"}) == {"count": 1}
    assert [one.received.payload for one in await front.broker.dead("mail")] == [b"c"]
    assert await front.ok("POST", f"{GROUP}/dead/purge") == {"count": 1}
