"""The real server on a file and a port, for tests that kill it. Says `ready` when it listens."""

from __future__ import annotations

import asyncio
import signal
import sys

from penstock.fronts.http.options import HttpOptions
from penstock.fronts.http.server import HttpServer
from tests.local import open_local


async def main(path: str, port: int) -> None:
    async with await open_local(path) as broker:
        server = HttpServer(broker, HttpOptions(port=port))
        await server.start()
        stopped = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
        print("ready", flush=True)
        await stopped.wait()
        await server.stop()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
