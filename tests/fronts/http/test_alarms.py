"""Alarms over HTTP: 503 with Retry-After for publishes, 200 for consumers and for readiness, which tells of it."""

from __future__ import annotations

import asyncio
import socket
import struct

from tests.alarms import end_alarm, raise_alarm
from tests.fronts.http.rig import Front, over_http, until

BODY = {"messages": [{"payload": "x"}]}


@over_http()
async def test_a_publish_is_answered_503_and_consumers_are_served(front: Front) -> None:
    await front.ok("PUT", "/v1/queues/q", {})
    await front.publish("q", "before")
    raise_alarm(front.broker)
    refused = await front.call("POST", "/v1/queues/q/messages", BODY)
    assert (refused.status, refused.code) == (503, "resource_alarm")
    assert refused.headers["retry-after"] == "1"
    assert refused.message.startswith("memory is low: this server uses 101 MiB, the mark is 100 MiB")
    claim = await front.claim("q")
    assert [message["payload"] for message in claim["messages"]] == ["before"]
    await front.ok("POST", f"/v1/leases/{claim['lease']}/settle", {"verdicts": [{"action": "ack"}]})
    end_alarm(front.broker)
    await front.publish("q", "after")


@over_http()
async def test_a_publish_that_waits_is_answered_when_the_alarm_is_over(front: Front) -> None:
    await front.ok("PUT", "/v1/queues/q", {})
    raise_alarm(front.broker, wait=60.0)
    publishing = asyncio.create_task(front.publish("q", "x"))
    await until(lambda: front.broker._services.alarms.delayed == 1)
    end_alarm(front.broker)
    assert (await publishing)["count"] == 1


@over_http()
async def test_a_client_that_leaves_does_not_publish_when_the_alarm_is_over(front: Front) -> None:
    await front.ok("PUT", "/v1/queues/q", {})
    raise_alarm(front.broker, wait=60.0)
    wire = await front.connect()
    head = b"POST /v1/queues/q/messages HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
    body = b'{"messages": [{"payload": "x"}]}'
    await wire.send(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    await until(lambda: front.broker._services.alarms.delayed == 1)
    wire.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire.reset()
    await until(lambda: front.broker._services.alarms._waiting_bytes == 0)
    end_alarm(front.broker)
    assert (await front.ok("GET", "/v1/queues/q/stats"))["messages"] == 0


@over_http()
async def test_the_counts_of_queues_tell_what_is_low(front: Front) -> None:
    await front.ok("PUT", "/v1/queues/q", {})
    assert (await front.ok("GET", "/v1/stats"))["alarms"] == []
    raise_alarm(front.broker)
    answer = await front.ok("GET", "/v1/stats")
    assert "q" in [one["queue"] for one in answer["queues"]]
    assert [one.partition(":")[0] for one in answer["alarms"]] == ["memory is low"]
    end_alarm(front.broker)
    assert (await front.ok("GET", "/v1/stats"))["alarms"] == []


@over_http()
async def test_readiness_stays_200_and_tells_what_is_low(front: Front) -> None:
    assert await front.ok("GET", "/readyz") == {"status": "ready"}
    raise_alarm(front.broker)
    told = await front.ok("GET", "/readyz")
    assert told["status"] == "ready"
    assert told["alarms"] == list(front.broker.alarms())
    end_alarm(front.broker)
    assert await front.ok("GET", "/readyz") == {"status": "ready"}


@over_http()
async def test_metrics_show_alarms_and_what_they_did(front: Front) -> None:
    await front.ok("PUT", "/v1/queues/q", {})
    raise_alarm(front.broker)
    await front.call("POST", "/v1/queues/q/messages", BODY)
    lines = (await front.call("GET", "/metrics")).body.decode().splitlines()
    assert 'penstock_alarm{resource="memory"} 1.0' in lines
    assert "penstock_memory_mark_bytes 1.048576e+08" in lines
    assert "penstock_alarm_delayed_total 1.0" in lines
    assert "penstock_alarm_refused_total 1.0" in lines
    end_alarm(front.broker)
    assert 'penstock_alarm{resource="memory"} 0.0' in (await front.call("GET", "/metrics")).body.decode().splitlines()
