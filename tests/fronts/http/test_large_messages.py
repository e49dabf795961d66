"""Messages past 16 MiB by HTTP: as large as is configured, in JSON and in batches, and no byte more."""

from __future__ import annotations

import base64
import os

from penstock import Message
from penstock.batch import encode, to_bytes
from penstock.node.limits import Limits
from penstock.wire.http.shapes import BATCH_TYPE
from tests.fronts.http.rig import Front, over_http

MIB = 1024 * 1024
MOST = 70 * MIB
"""More than a batch of several messages may have."""


@over_http(engine="sqlite", limits=Limits(message_bytes=MOST))
async def test_a_batch_of_one_message_as_large_as_is_configured(front: Front) -> None:
    await front.broker.declare_queue("q")
    for payload in (os.urandom(MIB) * 70, bytes(MOST)):
        whole = to_bytes(encode([Message(payload)]))
        reply = await front.call("POST", "/v1/queues/q/messages", body=whole, headers={"Content-Type": BATCH_TYPE})
        assert reply.status == 200, reply.body
        claim = await front.broker.claim("q", ack=True)
        assert claim.messages[0].payload == payload
        more = to_bytes(encode([Message(payload + b"x")]))
        reply = await front.call("POST", "/v1/queues/q/messages", body=more, headers={"Content-Type": BATCH_TYPE})
        assert reply.status == 413, reply.body


@over_http(engine="sqlite", limits=Limits(message_bytes=20 * MIB, batch_bytes=MIB))
async def test_json_with_a_message_as_large_as_is_configured(front: Front) -> None:
    await front.broker.declare_queue("q")
    payload = os.urandom(20 * MIB)
    text = base64.b64encode(payload).decode()
    reply = await front.call("POST", "/v1/queues/q/messages", {"messages": [{"payload_base64": text}]})
    assert reply.status == 200, reply.body
    [message] = (await front.claim("q"))["messages"]
    assert base64.b64decode(message["payload_base64"]) == payload
    more = base64.b64encode(payload + b"x").decode()
    reply = await front.call("POST", "/v1/queues/q/messages", {"messages": [{"payload_base64": more}]})
    assert reply.status == 413, reply.body
    two = [{"payload_base64": text[:MIB]}] * 2
    reply = await front.call("POST", "/v1/queues/q/messages", {"messages": two})
    assert reply.status == 413, "several together keep to limits.batch_bytes"


@over_http(limits=Limits(message_bytes=4 * MIB))
async def test_a_queue_may_allow_less_and_never_more(front: Front) -> None:
    await front.broker.declare_queue("less", max_message_bytes=2 * MIB)
    await front.broker.declare_queue("more", max_message_bytes=8 * MIB)
    for queue, most in (("less", 2 * MIB), ("more", 4 * MIB)):
        for size, status in ((most, 200), (most + 1, 413)):
            whole = to_bytes(encode([Message(os.urandom(size))]))
            path = f"/v1/queues/{queue}/messages"
            reply = await front.call("POST", path, body=whole, headers={"Content-Type": BATCH_TYPE})
            assert reply.status == status, reply.body
