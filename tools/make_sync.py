"""Writes the API without asyncio, method by method from the asynchronous classes.

    .venv/bin/python -m tools.make_sync

`api/sync.py` is made from the protocols of `api/`; `client/sync.py` adds what only a client has. Signatures, defaults
and docstrings are read from the source; what is not a plain forward is in `BODIES` and in the templates below. A test
compares the files with what this makes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import indent
from typing import Final, NamedTuple

from penstock.client.client import DEFAULT_URL
from penstock.model import DEFAULT_GROUP, DEFAULT_NAMESPACE
from tools.source import PACKAGE, Function, Source, formatted, forwarded, methods_of, returns_of


class Twin(NamedTuple):
    """An asynchronous class: where it is, and the name of its twin."""

    module: str
    name: str
    twin: str


PARTS: Final = (
    ("messages", "Publishing"),
    ("messages", "Consuming"),
    ("messages", "Streaming"),
    ("declare", "Declarations"),
    ("inspect", "Inspection"),
    ("dead_letters", "DeadLetters"),
    ("admin", "Administration"),
    ("scan", "Scans"),
    ("staging", "Staging"),
)
"""The protocols that `Broker` unites, in the order of the result; a test says when one is missing."""
API: Final = (
    Twin("api/broker.py", "Broker", "SyncBroker"),
    *(Twin(f"api/{module}.py", name, "SyncBroker") for module, name in PARTS),
    Twin("api/messages.py", "Transaction", "SyncTransaction"),
    Twin("api/handles.py", "QueueHandle", "SyncQueueHandle"),
    Twin("api/handles.py", "GroupHandle", "SyncGroupHandle"),
    Twin("api/handles.py", "ExchangeHandle", "SyncExchangeHandle"),
)
CLIENT: Final = (
    Twin("client/client.py", "AsyncClient", "Client"),
    Twin("client/producer.py", "Producer", "SyncProducer"),
    Twin("client/consumer.py", "Consumer", "SyncConsumer"),
    Twin("client/stream.py", "StreamReader", "SyncStreamReader"),
)
WRAPPED: Final = {twin.name: twin.twin for twin in (*API, *CLIENT) if twin.module != "client/client.py"} | {
    "Sent": "SyncSent"
}

BODIES: Final = {
    "SyncBroker.in_namespace": "return self._with(self._thread.run(self._inner.in_namespace, namespace))",
    "SyncBroker.session": (
        "with self._thread.entered(lambda: self._inner.session(seconds=seconds)) as session:\n"
        "    yield self._with(session)"
    ),
    "Client.consume": "self.consumer(ARGUMENTS).run_forever()",
    "SyncConsumer.run_forever": "with stopped_by_signals(self.stop):\n    wait_awake(self.run)",
}
"""Methods that do more than the asynchronous ones of their name."""
RETURNS: Final = {"SyncBroker.in_namespace": "Self", "SyncBroker.session": "Iterator[Self]"}
CONSTANTS: Final = {
    "DEFAULT_GROUP": DEFAULT_GROUP,
    "DEFAULT_NAMESPACE": DEFAULT_NAMESPACE,
    "DEFAULT_URL": DEFAULT_URL,
}
TEMPLATED: Final = frozenset({"close"})
"""What every twin has in its template."""
INHERITED: Final = frozenset({"in_namespace", "session", "transaction"})
"""What a `Client` has from `SyncBroker`."""

API_TEMPLATE: Final = '''# mypy: disable-error-code="empty-body"
"""The API without asyncio: any broker, run on an event loop in a thread of its own.

Any number of threads may share one; each call returns when what it did is durable. Ctrl-C while a call waits cancels
the call. What the methods do is in `api/twin.py`. Made by `python -m tools.make_sync` from the modules beside this one:
change those, and make this again.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

from penstock.api.twin import Twin, written

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

IMPORTS


class SyncBroker(Twin):
    """A `Broker` for programs without an event loop. Threads may share it."""

    _inner: Broker
    _undo: ClassVar = {"claim": "_give_back"}

    def _with(self, broker: Broker) -> Self:
        other = object.__new__(type(self))
        other._inner, other._thread = broker, self._thread
        return other

    @property
    def namespace(self) -> str:
        """The namespace whose queues and exchanges this broker sees."""

    @property
    def consumer_name(self) -> str:
        """The name under which this broker claims, unless another is given."""

    @written
    def close(self) -> None:
        """SyncBroker.close_DOCSTRING"""
        self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

SyncBroker_METHODS

    async def _give_back(self, claim: Claim) -> None:
        """The caller was interrupted before it saw the claim: back at once, as if never handed out."""
        if claim.lease is not None:
            await self._inner.release(claim)


class SyncTransaction(Twin):
    """SyncTransaction_DOCSTRING"""

    @property
    def receipt(self) -> Receipt | None:
        """Where the messages went; None until the commit."""

SyncTransaction_METHODS

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._thread.run(self._inner.__aexit__, kind)


class SyncQueueHandle(Twin):
    """SyncQueueHandle_DOCSTRING"""

    @property
    def name(self) -> str:
        """The queue's name."""

SyncQueueHandle_METHODS


class SyncGroupHandle(Twin):
    """SyncGroupHandle_DOCSTRING"""

    @property
    def queue(self) -> str:
        """The queue's name."""

    @property
    def name(self) -> str:
        """The group's name."""

SyncGroupHandle_METHODS


class SyncExchangeHandle(Twin):
    """SyncExchangeHandle_DOCSTRING"""

    @property
    def name(self) -> str:
        """The exchange's name."""

SyncExchangeHandle_METHODS
'''

CLIENT_TEMPLATE: Final = '''# mypy: disable-error-code="empty-body"
"""The client without asyncio: the asynchronous one, on an event loop in a thread.

    with penstock.Client("http://127.0.0.1:7333") as client:
        client.publish("mail", penstock.Message(b"hello"))

Any number of threads may share one client. Ctrl-C while a call waits cancels the call. Asyncio and sockets are
imported by the first client. What the methods do is in `api/twin.py`. Made by `python -m tools.make_sync` from the
modules beside this one: change those, and make this again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.api.sync import SyncBroker
from penstock.api.twin import Twin, written
from penstock.client.signals import stopped_by_signals, wait_awake

if TYPE_CHECKING:
    import ssl
    from typing import Self

IMPORTS


class Client(SyncBroker):
    """A client of one server, or of several nodes of one, seen from one namespace. Threads may share it."""

    def __init__(INIT_ARGUMENTS) -> None:
        """INIT_DOCSTRING
        """
        from penstock.client.client import AsyncClient
        from penstock.loop_thread import LoopThread

        thread = LoopThread("penstock-client", "client")
        try:
            client = thread.run(AsyncClient, INIT_CALL)
        except BaseException:
            thread.close()
            raise
        super().__init__(client, thread)
        thread.last = client.close

Client_METHODS


class SyncSent(Twin):
    """A message on its way; `result` waits for the places it went to."""

    @property
    def message(self) -> Message:
        """The message."""

    def done(self) -> bool:
        """Whether the server has it, or it has failed."""

    @written
    def result(self) -> list[Published]:
        """Where it went, when it is there; raises why it did not go."""
        places: list[Published] = self._thread.run(lambda: self._inner)
        return places


class SyncProducer(Twin):
    """SyncProducer_DOCSTRING"""

SyncProducer_METHODS

    def close(self) -> None:
        """Send everything, and take no more. Raises if any of it failed and nobody has looked at it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SyncConsumer(Twin):
    """Runs a handler over the messages of a queue's group: `consumer.run()`, and `consumer.stop()` from elsewhere."""

    @property
    def handled(self) -> int:
        """Messages whose handler returned."""

    @property
    def failed(self) -> int:
        """Messages whose handler raised."""

SyncConsumer_METHODS


class SyncStreamReader(Twin):
    """SyncStreamReader_DOCSTRING"""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Received:
        received = self._thread.run(self._following)
        if received is None:
            raise StopIteration
        return received

    async def _following(self) -> Received | None:
        return await anext(self._inner, None)

SyncStreamReader_METHODS

    def close(self) -> None:
        """End the loop. With `auto_commit`, what went through it is committed; the rest is given back."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._thread.run(self._inner.__aexit__, kind)
'''
CLIENT_IMPORTS: Final = """
from penstock.api.results import Published, Received
from penstock.model import Message
"""
API_IMPORTS: Final = """
from penstock.api.broker import Broker
from penstock.api.results import Claim, Receipt
"""


# Files ---------------------------------------------------------------------------------------------------


def render_api() -> str:
    """`api/sync.py`."""
    parts = parts_of(API)
    life = {method.name: method for method in methods_of(Source("api/broker.py").class_named("Broker"))}
    parts["SyncBroker.close_DOCSTRING"] = text_of(life["close"])
    parts["IMPORTS"] = indent(API_IMPORTS + "\n".join(imports_of(API)), "    ")
    return formatted(filled(API_TEMPLATE, parts), PACKAGE / "api/sync.py")


def render_client() -> str:
    """`client/sync.py`."""
    parts = parts_of(CLIENT)
    home = Source("client/client.py").class_named("AsyncClient")
    init = next(node for node in home.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    parts |= {
        "INIT_ARGUMENTS": arguments_of(init),
        "INIT_DOCSTRING": indent(text_of(init), " " * 8).strip(),
        "INIT_CALL": forwarded(init.args),
        "IMPORTS": indent(CLIENT_IMPORTS + "\n".join(imports_of(CLIENT, init)), "    "),
    }
    return formatted(filled(CLIENT_TEMPLATE, parts), PACKAGE / "client/sync.py")


RESULTS: Final = {PACKAGE / "api/sync.py": render_api, PACKAGE / "client/sync.py": render_client}


def parts_of(twins: Sequence[Twin]) -> dict[str, str]:
    """What the templates leave out: docstrings of classes, and methods."""
    parts: dict[str, str] = {}
    for twin in twins:
        home = Source(twin.module).class_named(twin.name)
        text = text_of(home)
        parts.setdefault(f"{twin.twin}_DOCSTRING", text + ("\n    " if "\n" in text else ""))
        written = "\n\n".join(written_methods(twin, home))
        known = parts.get(f"{twin.twin}_METHODS")
        parts[f"{twin.twin}_METHODS"] = written if known is None else f"{known}\n\n{written}"
    return parts


def filled(template: str, parts: dict[str, str]) -> str:
    pattern = "|".join(re.escape(name) for name in sorted(parts, key=len, reverse=True))
    return re.sub(pattern, lambda match: parts[match[0]], template)


def imports_of(twins: Sequence[Twin], *more: Function) -> Iterator[str]:
    for twin in twins:
        source = Source(twin.module)
        for line in source.imports_of([*methods_of(source.class_named(twin.name)), *more]):
            if line.rpartition(" ")[2] not in {*WRAPPED, *CONSTANTS, "AsyncIterator", "AbstractAsyncContextManager"}:
                yield line


# Methods -------------------------------------------------------------------------------------------------


def written_methods(twin: Twin, home: ast.ClassDef) -> Iterator[str]:
    headings = headings_of(twin, home)
    for method in methods_of(home):
        if method.name in TEMPLATED or (twin.twin == "Client" and method.name in INHERITED):
            continue
        body = BODIES.get(f"{twin.twin}.{method.name}", "").replace("ARGUMENTS", forwarded(method.args))
        decorator = "@property\n" if is_property(method) else "@written\n" if body else ""
        if returns_of(method).startswith("AbstractAsyncContextManager"):
            decorator += "@contextmanager\n"
        heading = headings.get(method.name, "")
        yield indent(heading + decorator + head(twin, method), "    ") + indent(body, " " * 8)


def is_property(method: Function) -> bool:
    return any(isinstance(one, ast.Name) and one.id == "property" for one in method.decorator_list)


def head(twin: Twin, method: Function) -> str:
    """`def` line and docstring."""
    returns = RETURNS.get(f"{twin.twin}.{method.name}")
    if returns is None:
        returns = re.sub(r"\w+", lambda match: WRAPPED.get(match[0], match[0]), returns_of(method))
    text = text_of(method)
    end = "\n" if "\n" in text else ""
    docstring = indent(f'"""{text}{end}"""', "    ") if text else ""
    return f"def {method.name}({arguments_of(method)}) -> {returns}:\n{docstring}\n"


def arguments_of(method: Function) -> str:
    """The parameters, with constants spelled out: then only a type checker needs what they are imported from."""
    return re.sub(r"=\s*([A-Z][A-Z_]+)\b", lambda match: f"= {CONSTANTS[match[1]]!r}", ast.unparse(method.args))


def headings_of(twin: Twin, home: ast.ClassDef) -> dict[str, str]:
    """`# Publish ----` by the name of the public method that follows it."""
    lines = Source(twin.module).text.splitlines()
    following = {method.lineno: method.name for method in methods_of(home) if method.name not in TEMPLATED}
    headings: dict[str, str] = {}
    for number in range(home.lineno, max(following) + 1):
        line = lines[number - 1].strip()
        if re.fullmatch(r"# .* -{20,}", line):
            headings[following[min(start for start in following if start > number)]] = f"{line}\n\n"
    return headings


def text_of(node: Function | ast.ClassDef) -> str:
    """A docstring in the words of a caller without asyncio."""
    text = ast.get_docstring(node) or ""
    for asynchronous, plain in (
        ("async with", "with"),
        ("async for", "for"),
        ("await broker", "broker"),
        ("await consumer.run", "consumer.run"),
        ("Await what it returns for", "Its result is"),
        ("Coroutines may share", "Threads may share"),
    ):
        text = text.replace(asynchronous, plain)
    return text


def write(path: Path, source: str) -> None:
    path.write_text(source)


if __name__ == "__main__":
    for path, render in RESULTS.items():
        write(path, render())
