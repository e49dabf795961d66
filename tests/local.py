"""`penstock.open` for tests that look behind the API: the same broker, with the type that it has."""

from __future__ import annotations

from typing import Any

import penstock
from penstock.node.broker import LocalBroker


async def open_local(path: Any = None, **options: Any) -> LocalBroker:
    broker = await penstock.open(path, **options)
    assert isinstance(broker, LocalBroker)
    return broker
