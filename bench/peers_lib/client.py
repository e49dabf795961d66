"""The client's process: runs one workload against one server and prints what came of it as a line of JSON.

`python -m bench.peers_lib.client '{"peer": …}'`, with the Python that has the peers' libraries. Started by `runs.py`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from bench.peers_lib.peers import PEERS
from bench.peers_lib.workloads import WORKLOADS, Options, Outcome


async def run(order: dict[str, Any]) -> Outcome:
    workload = WORKLOADS[order["workload"]]
    client = PEERS[order["peer"]].client(order["port"])
    options = Options(order["scale"], order["seconds"], order["payload"], tuple(order["roots"]))
    await client.open(workload.callers)
    try:
        return await workload.run(client, options)
    finally:
        await client.close()


def main() -> None:
    order = json.loads(sys.argv[1])
    try:
        import uvloop

        result = uvloop.run(run(order))
    except ImportError:
        result = asyncio.run(run(order))
    print(json.dumps(result._asdict()))


if __name__ == "__main__":
    main()
