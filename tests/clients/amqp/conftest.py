"""One server for the tests of a module, and connections that are closed again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.clients.amqp.rig import ELSEWHERE, Address, serving

if TYPE_CHECKING:
    from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    if ELSEWHERE:
        host, _, port = ELSEWHERE.partition(":")
        yield Address(host, int(port))
        return
    with serving(tmp_path_factory.mktemp("server")) as (server, found):
        yield found
        assert server.process.poll() is None, "".join(server.errors)


@pytest.fixture
def connection(address: Address) -> Iterator[BlockingConnection]:
    connection = address.connect()
    yield connection
    if connection.is_open:
        connection.close()


@pytest.fixture
def channel(connection: BlockingConnection) -> BlockingChannel:
    return connection.channel()
