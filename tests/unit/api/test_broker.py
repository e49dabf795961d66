"""One API: every implementation has every operation, with the protocol's parameters, kind and words."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from penstock import AsyncClient, Broker, Transaction
from penstock.api.arguments import Ranges
from penstock.api.front_broker import FrontBroker
from penstock.api.handles import ExchangeHandle, GroupHandle, QueueHandle
from penstock.api.results import LeaseLike
from penstock.api.sync import SyncBroker, SyncExchangeHandle, SyncGroupHandle, SyncQueueHandle, SyncTransaction
from penstock.client.consumer import Consumer
from penstock.client.operations.transaction import ClientTransaction
from penstock.client.producer import Producer
from penstock.client.stream import StreamReader
from penstock.client.sync import Client, SyncConsumer, SyncProducer, SyncStreamReader
from penstock.embedded import open as open_embedded
from penstock.node.broker import LocalBroker, LocalTransaction
from penstock.node.broker.cluster import ClusterBroker
from penstock.node.broker.cluster_transaction import ClusterTransaction
from penstock.sync import open as open_sync
from tools import make_sync

# What mypy proves: each of these is a Broker, a FrontBroker, a Transaction.
BROKERS: Final[list[type[Broker]]] = [LocalBroker, ClusterBroker, AsyncClient]
FRONT_BROKERS: Final[list[type[FrontBroker]]] = [LocalBroker, ClusterBroker]
TRANSACTIONS: Final[list[type[Transaction]]] = [LocalTransaction, ClusterTransaction, ClientTransaction]

IMPLEMENTED: Final[list[tuple[type, type]]] = [
    *((Broker, kind) for kind in BROKERS if FrontBroker not in kind.__mro__),  # a front's has more parameters
    *((FrontBroker, kind) for kind in FRONT_BROKERS),
    *((Transaction, kind) for kind in TRANSACTIONS),
]


def operations(kind: type) -> dict[str, Callable[..., Any]]:
    """The public methods of a class and of those it is made of."""
    found = {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}
    return {name: value for name, value in found.items() if inspect.isfunction(value)}


def _plain(self: object) -> None:
    """Only words."""


async def _coroutine(self: object) -> None:
    """Only words."""


def is_stub(method: Callable[..., Any]) -> bool:
    """Whether a method of a protocol says nothing but what it means."""
    empty = _coroutine if inspect.iscoroutinefunction(method) else _plain
    return bool(inspect.unwrap(method).__code__.co_code == empty.__code__.co_code)


def faults_of(protocol: type, kind: type) -> list[str]:
    """What a class lacks of a protocol, or has otherwise."""
    found = []
    for name, wanted in operations(protocol).items():
        given = getattr(kind, name, None)
        if given is None or (given is wanted and is_stub(wanted)):
            found.append(f"{kind.__name__} has no {name}")
        elif inspect.signature(given).parameters != inspect.signature(wanted).parameters:
            found.append(f"{kind.__name__}.{name} has other parameters")
        elif inspect.iscoroutinefunction(wanted) and not is_awaitable(given):
            found.append(f"{kind.__name__}.{name} is no coroutine")
        elif not inspect.iscoroutinefunction(wanted) and inspect.iscoroutinefunction(given):
            found.append(f"{kind.__name__}.{name} is a coroutine")
        elif given is not wanted and given.__doc__ is not None:
            found.append(f"{kind.__name__}.{name} repeats the docstring")
    return found


def is_awaitable(method: Callable[..., Any]) -> bool:
    """A coroutine function, or a plain one that returns a ticket."""
    returns = inspect.signature(method).return_annotation
    return inspect.iscoroutinefunction(method) or str(returns).startswith("Ticket[")


@pytest.mark.parametrize(("protocol", "kind"), IMPLEMENTED, ids=lambda kind: kind.__name__)
def test_an_implementation_has_all_of_the_protocol(protocol: type, kind: type) -> None:
    assert faults_of(protocol, kind) == []


def test_every_operation_has_words() -> None:
    for protocol in (Broker, FrontBroker, Transaction):
        assert [name for name, method in operations(protocol).items() if not inspect.getdoc(method)] == []


class Wrong(LocalTransaction):
    """One of each mistake."""

    publish_to = None  # type: ignore[assignment]

    def publish(self, queue: str) -> Any:  # type: ignore[override]
        pass

    def commit(self) -> Any:
        pass

    async def release(self, lease: LeaseLike, offsets: Ranges = None) -> Any:  # type: ignore[override]
        pass

    def ack(self, lease: LeaseLike, offsets: Ranges = None) -> Any:
        """Other words."""


class Short(Transaction):
    """Inherits what it should implement."""


def test_a_wrong_implementation_is_found_out() -> None:
    assert faults_of(Transaction, Wrong) == [
        "Wrong.ack repeats the docstring",
        "Wrong.commit is no coroutine",
        "Wrong.publish has other parameters",
        "Wrong has no publish_to",
        "Wrong.release is a coroutine",
    ]
    assert faults_of(Transaction, Short) == [f"Short has no {name}" for name in ("publish", "publish_to", "settle")]


# Without asyncio ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", make_sync.RESULTS, ids=lambda path: path.name)
def test_the_files_are_what_the_tool_makes(path: Path) -> None:
    assert path.read_text() == make_sync.RESULTS[path](), "run python -m tools.make_sync"


TWINS: Final[list[tuple[type, type]]] = [
    (Broker, SyncBroker),
    (Transaction, SyncTransaction),
    (QueueHandle, SyncQueueHandle),
    (GroupHandle, SyncGroupHandle),
    (ExchangeHandle, SyncExchangeHandle),
    (AsyncClient, Client),
    (Producer, SyncProducer),
    (Consumer, SyncConsumer),
    (StreamReader, SyncStreamReader),
]


@pytest.mark.parametrize(("asynchronous", "plain"), TWINS, ids=lambda kind: kind.__name__)
def test_a_twin_has_the_same_methods_and_parameters(asynchronous: type, plain: type) -> None:
    theirs, ours = operations(asynchronous), operations(plain)
    assert theirs.keys() - ours.keys() == set()
    for name, method in theirs.items():
        assert inspect.signature(ours[name]).parameters == inspect.signature(method).parameters, name
        assert not inspect.iscoroutinefunction(ours[name]), name
        assert ours[name].__doc__, name


def test_a_twin_is_made_in_the_same_way() -> None:
    assert inspect.signature(Client).parameters == inspect.signature(AsyncClient).parameters
    assert inspect.signature(open_sync).parameters == inspect.signature(open_embedded).parameters
