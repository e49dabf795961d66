"""The client: Penstock from another process, over HTTP. Start with `AsyncClient`, or `Client` without asyncio.

From the top: `client.py` (the API), `producer.py`, `consumer.py` and `stream.py` (what runs on it), `operations/` (the
API as requests and answers) and `transport/` (what is sent again, nodes, bytes). It knows `api`, `model`, `batch` and
`wire`, and nothing of a broker. Names are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.client.client import AsyncClient
    from penstock.client.consumer import Consumer, Postpone, Reject
    from penstock.client.producer import Producer
    from penstock.client.stream import StreamReader
    from penstock.client.sync import Client
    from penstock.client.transport.channel import Retry

__all__ = ["AsyncClient", "Client", "Consumer", "Postpone", "Producer", "Reject", "Retry", "StreamReader"]

_HOMES = {
    "AsyncClient": "client",
    "Client": "sync",
    "Consumer": "consumer",
    "Postpone": "consumer",
    "Producer": "producer",
    "Reject": "consumer",
    "Retry": "transport.channel",
    "StreamReader": "stream",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'penstock.client' has no attribute {name!r}")
    return getattr(import_module(f"penstock.client.{_HOMES[name]}"), name)
