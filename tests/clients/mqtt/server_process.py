"""The real server on a file, with its MQTT and HTTP fronts, for tests that kill it. Says where it listens when it does.

Arguments: the file, the options of the MQTT front as JSON, the port for HTTP, the token.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

import msgspec

from penstock.fronts.auth import Credentials
from penstock.fronts.front import Shared
from penstock.fronts.http.options import HttpOptions
from penstock.fronts.http.server import HttpServer
from penstock.fronts.mqtt.options import MqttOptions
from penstock.fronts.mqtt.server import MqttServer
from tests.local import open_local


async def main(path: str, options: str, port: int, token: str) -> None:
    async with await open_local(path) as broker:
        http = HttpServer(broker, HttpOptions(port=port))
        await http.start()
        shared = Shared(Credentials(token))
        mqtt = MqttServer(broker, msgspec.json.decode(options, type=MqttOptions), shared)
        await mqtt.start()
        stopped = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
        print("ready", mqtt.port, mqtt.websocket_port, http.port, flush=True)
        await stopped.wait()
        await mqtt.stop()
        await http.stop()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
