"""One server for the tests that need nothing of their own: they keep apart by the names of topics and clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clients.mqtt.rig import MqttServerProcess


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqttServerProcess]:
    process = MqttServerProcess(tmp_path_factory.mktemp("mqtt") / "queue.db").start()
    try:
        yield process
    finally:
        process.stop()
