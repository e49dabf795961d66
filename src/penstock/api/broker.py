"""The API: every operation that a user can ask for, wherever the broker runs.

`penstock.open` gives a `Broker` inside this process, `penstock.AsyncClient` one over HTTP; code that uses one works
with the other. The operations are in the modules beside this, with their docstrings; implementations do not repeat
them. `penstock.sync` and `penstock.Client` are the same without asyncio, generated from here by `tools/make_sync.py`.

This package knows the model and batches: no node, store or socket, and of asyncio only how a ticket is awaited
(`ticket.py`) and how long work lets others have their turn (`slices.py`). Next stop: `api/messages.py`, or
`node/broker/local.py` for what an operation does.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol, Self

from penstock.api.admin import Administration
from penstock.api.dead_letters import DeadLetters
from penstock.api.declare import Declarations
from penstock.api.handles import ExchangeHandle, QueueHandle
from penstock.api.inspect import Inspection
from penstock.api.messages import Messages, Transaction
from penstock.api.scan import Scans
from penstock.api.staging import Staging


class Broker(
    Messages,
    Declarations,
    Inspection,
    DeadLetters,
    Administration,
    Scans,
    Staging,
    Protocol,
):
    """An open broker, seen from one namespace and, perhaps, one session. Coroutines may share it.

    Each operation returns when what it did is durable. Await every one: in this process a publish or an ack has begun
    when it is called, over HTTP (`AsyncClient`) each operation begins when it is awaited.
    """

    namespace: str
    """The namespace whose queues and exchanges this broker sees."""
    consumer_name: str
    """The name under which this broker claims, unless another is given."""

    # Life -------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Finish, and release the store or the connections. Leases stay; their messages come back in time."""

    async def __aenter__(self) -> Self:
        """Use it as `async with`; the end of the block closes it."""
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def in_namespace(self, namespace: str) -> Broker:
        """The same broker with another namespace's queues and exchanges."""
        ...

    def session(self, *, seconds: float = 30.0) -> AbstractAsyncContextManager[Broker]:
        """The same broker within a session: `async with broker.session() as session: …`.

        Exclusive queues declared through it are deleted at its end, and what was claimed through it returns at once. A
        session over HTTP is renewed while it is open; the server ends it `seconds` after the last sign of a client
        that died. A session inside this process ends with the process.
        """
        ...

    def transaction(self) -> Transaction:
        """Collect verdicts and publishes to commit as one: `async with broker.transaction() as t: …`."""
        ...

    # Handles ----------------------------------------------------------------------------------------------

    def queue(self, name: str) -> QueueHandle:
        """A handle on a queue: `await broker.queue("orders").declare(ordered=True)`."""
        return QueueHandle(self, name)

    def exchange(self, name: str) -> ExchangeHandle:
        """A handle on an exchange."""
        return ExchangeHandle(self, name)
