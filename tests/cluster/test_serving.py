"""Any server serves any request, whoever owns the queue."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from pathlib import Path

from penstock.client.client import AsyncClient
from tests.cli.servers import until
from tests.cluster.rig import nodes


def test_any_server_serves_any_request(tmp_path: Path) -> None:
    with nodes(tmp_path) as cluster:
        first = cluster.start()
        second = cluster.start()
        cluster.until_balanced(first, second)
        for index in range(6):
            a, b = (first, second) if index % 2 else (second, first)
            queue = f"/v1/queues/q{index}"
            assert a.request("PUT", queue, {})[0] == 201
            assert b.request("PUT", queue, {})[0] == 200
            assert b.request("PUT", f"{queue}/groups/g", {"kind": "stream"})[0] == 201
            assert set(a.request("GET", f"{queue}/groups")[1]["groups"][0]) >= {"name"}
            status, answer = a.request("POST", f"{queue}/messages", {"messages": [{"payload": "one"}]})
            assert status == 200, answer
            status, claim = b.request("POST", f"{queue}/claim", {"max": 10})
            assert [message["payload"] for message in claim["messages"]] == ["one"]
            assert a.request("POST", f"{queue}/messages", {"messages": [{"payload": "two"}]})[0] == 200
            for asked in (a, b):  # one of them is not the owner
                status, following = asked.request("POST", f"/v1/leases/{claim['lease']}/next", {})
                assert (status, [message["payload"] for message in following["messages"]]) == (200, ["two"])
                assert asked.request("POST", f"/v1/leases/{claim['lease']}/next", {})[0] == 409
                assert a.request("POST", f"{queue}/messages", {"messages": [{"payload": "two"}]})[0] == 200
                claim = following
            assert a.request("POST", f"/v1/leases/{claim['lease']}/settle", {"verdicts": [{"action": "ack"}]})[0] == 204
            status, claim = a.request("POST", f"{queue}/claim", {"ack": True})
            assert len(claim["messages"]) == 1
            status, found = b.request("GET", f"{queue}/stats")
            counts = {group["group"]: (group["ready"], group["leased"]) for group in found["groups"]}
            assert (status, counts["default"]) == (200, (0, 0))
        assert [one["name"] for one in first.request("GET", "/v1/queues?prefix=q")[1]["queues"]] == [
            f"q{index}" for index in range(6)
        ]
        for server in (first, second):
            counts = server.request("GET", "/v1/stats?prefix=q")[1]["queues"]
            assert [(one["queue"], one["published"]) for one in counts] == [(f"q{index}", 4) for index in range(6)]
            page = urllib.request.urlopen(f"{server.url}/metrics").read().decode()
            assert "penstock_cluster_slots 32.0" in page
            assert re.search(r"penstock_cluster_forwards_total [1-9]", page)
        assert first.request("GET", "/v1/queues/nothing")[0] == 404
        assert second.request("GET", "/v1/queues/nothing")[0] == 404


def test_declarations_of_two_servers_at_once_are_one(tmp_path: Path) -> None:
    with nodes(tmp_path) as cluster:
        first, second = cluster.start(), cluster.start()
        cluster.until_balanced(first, second)

        async def declare(url: str) -> None:
            async with AsyncClient(url) as client:
                for number in range(30):
                    await client.declare_queue(f"d{number}", lanes=2)
                    await client.declare_exchange(f"e{number}", kind="topic")
                    await client.bind(f"e{number}", f"d{number}", "#")

        async def both() -> None:
            await asyncio.gather(declare(first.url), declare(second.url), declare(first.url))

        asyncio.run(both())
        for server in (first, second):
            names = [one["name"] for one in server.request("GET", "/v1/queues?prefix=d")[1]["queues"]]
            assert sorted(names) == sorted(f"d{number}" for number in range(30))
            for number in (0, 29):
                bindings = server.request("GET", f"/v1/exchanges/e{number}/bindings")[1]["bindings"]
                assert [one["target"] for one in bindings] == [f"d{number}"]


def test_a_binding_does_not_outlive_its_queue(tmp_path: Path) -> None:
    """Whoever owns the queue, and whoever is the registrar."""
    with nodes(tmp_path) as cluster:
        first, second = cluster.start(), cluster.start()
        cluster.until_balanced(first, second)
        for index, owner in enumerate((first, second)):
            queue, other = cluster.queue_of(owner, f"b{index}-"), second if owner is first else first
            assert other.request("PUT", f"/v1/exchanges/x{index}", {"kind": "fanout"})[0] == 201
            assert other.request("PUT", f"/v1/queues/{queue}", {})[0] == 201
            assert other.request("POST", f"/v1/exchanges/x{index}/bind", {"target": queue})[0] == 204
            assert other.request("DELETE", f"/v1/queues/{queue}")[0] == 204
            assert other.request("PUT", f"/v1/queues/{queue}", {})[0] == 201
            for server in (first, second):
                assert server.request("GET", f"/v1/exchanges/x{index}/bindings")[1]["bindings"] == []
            status, answer = first.request(
                "POST", f"/v1/exchanges/x{index}/messages", {"messages": [{"payload": "lost"}]}
            )
            assert status == 200, answer
            assert second.request("GET", f"/v1/queues/{queue}/stats")[1]["messages"] == 0


def test_a_session_is_served_by_every_server(tmp_path: Path) -> None:
    with nodes(tmp_path) as cluster:
        first, second = cluster.start(), cluster.start()
        cluster.until_balanced(first, second)
        status, session = first.request("POST", "/v1/sessions", {"seconds": 600})
        assert status == 201
        named = f"?session={session['id']}"
        queues = [cluster.queue_of(server, "x") for server in (first, second)]
        for queue in queues:
            for server, expected in ((second, 201), (first, 200)):
                assert server.request("PUT", f"/v1/queues/{queue}{named}", {"exclusive": True})[0] == expected
            for server in (first, second):
                assert (
                    server.request("POST", f"/v1/queues/{queue}/messages", {"messages": [{"payload": "a"}]})[0] == 200
                )
                assert server.request("POST", f"/v1/queues/{queue}/claim", {})[0] == 403
                status, claim = server.request("POST", f"/v1/queues/{queue}/claim{named}", {"ack": True})
                assert (status, len(claim["messages"])) == (200, 1)
            headers = {"X-Penstock-Session": session["consumer"], "X-Penstock-Secret": "guessed"}
            assert second.request("POST", f"/v1/queues/{queue}/claim", {}, **headers)[0] == 403
        assert second.request("DELETE", f"/v1/sessions/{session['id']}")[0] == 204
        for queue in queues:
            assert first.request("GET", f"/v1/queues/{queue}")[0] == 404
        assert second.request("PUT", f"/v1/sessions/{session['id']}")[0] == 404


def test_sessions_of_a_server_that_dies_end(tmp_path: Path) -> None:
    with nodes(tmp_path) as cluster:
        first, second = cluster.start(), cluster.start()
        cluster.until_balanced(first, second)
        _, session = second.request("POST", "/v1/sessions", {"seconds": 600})
        queues = [cluster.queue_of(server, "x") for server in (first, second)]
        for queue in queues:
            path = f"/v1/queues/{queue}?session={session['id']}"
            assert second.request("PUT", path, {"exclusive": True})[0] == 201
        second.process.kill()
        until(lambda: cluster.slots(first).get(first.url) == 64, "the other takes over")
        until(
            lambda: all(first.request("GET", f"/v1/queues/{queue}")[0] == 404 for queue in queues),
            "its queues are gone",
        )


def test_what_happened_is_found_wherever_it_was_written(tmp_path: Path) -> None:
    with nodes(tmp_path) as cluster:
        first = cluster.start()
        queue = "/v1/queues/history"
        first.request("PUT", queue, {})
        first.request("POST", f"{queue}/messages", {"messages": [{"payload": "m", "trace_id": "t"}]})
        _, claim = first.request("POST", f"{queue}/claim", {"consumer": "before"})
        first.request("POST", f"/v1/leases/{claim['lease']}/settle", {"verdicts": [{"action": "release"}]})
        second = cluster.start()
        cluster.until_balanced(first, second)
        first.stop()
        until(lambda: cluster.slots(second).get(second.url) == 64, "the other has everything")
        _, claim = second.request("POST", f"{queue}/claim", {"consumer": "after"})
        message = claim["messages"][0]
        _, found = second.request("GET", f"{queue}/messages/{claim['lane']}/{message['offset']}/history")
        claimed = [entry["consumer"] for entry in found["history"] if entry["kind"] == "claimed"]
        assert claimed == ["before", "after"]
