"""Each node judges for itself: a publish that is forwarded gets its owner's answer, queues of other nodes go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.cli.servers import Server, until
from tests.cluster.rig import nodes

LOW = ("--set", "limits.memory_share=0.0001", "--set", "limits.alarm_wait=0.1")
"""Less than any Python takes."""


def publish(server: Server, queue: str) -> tuple[int, Any]:
    return server.request("POST", f"/v1/queues/{queue}/messages", {"messages": [{"payload": "x"}]})


def test_a_forwarded_publish_gets_the_answer_of_its_owner(tmp_path: Path) -> None:
    with nodes(tmp_path) as rig:
        well = rig.start()
        low = rig.start(*LOW)
        rig.until_balanced(well, low)
        until(lambda: "alarms" in low.request("GET", "/readyz")[1], "the alarm begins")
        assert "alarms" not in well.request("GET", "/readyz")[1]
        of_well, of_low = rig.queue_of(well, "a"), rig.queue_of(low, "b")
        for queue in (of_well, of_low):
            assert well.request("PUT", f"/v1/queues/{queue}", {})[0] == 201
        for asked in (well, low):
            status, answer = publish(asked, of_low)
            assert (status, answer["error"]["code"]) == (503, "resource_alarm")
            assert publish(asked, of_well)[0] == 200
