"""Writes src/penstock/client/sync.py: the client's API without asyncio, method by method from the asynchronous one.

    .venv/bin/python -m tools.make_client_sync

Works as `make_sync.py` does, whose functions it uses: signatures, defaults and docstrings are read from the source;
what is not a plain forward is in the template and in `BODIES`. A test compares the file with what this makes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from textwrap import indent
from typing import Final, NamedTuple

from tools.make_sync import ROOT, Function, class_named, formatted, forwarded, imports_of, public, returns_of

CLIENT: Final = ROOT / "src/penstock/client"
RESULT: Final = CLIENT / "sync.py"


class Source(NamedTuple):
    """An asynchronous class: where it is, its synchronous name, and where that keeps the original."""

    module: str
    name: str
    result: str
    inner: str


CLIENTS: Final = [
    Source(module, name, "Client", "_client")
    for module, name in (
        ("client", "AsyncClient"),
        ("operations/declare", "Declaring"),
        ("operations/messages", "Messages"),
        ("operations/inspect", "Looking"),
        ("operations/scan", "Scanning"),
        ("operations/marks", "Marking"),
        ("operations/staging", "Staging"),
        ("operations/enqueued", "Enqueued"),
    )
]
OTHERS: Final = [
    Source("operations/transaction", "ClientTransaction", "SyncTransaction", "_transaction"),
    Source("producer", "Producer", "SyncProducer", "_producer"),
    Source("consumer", "Consumer", "SyncConsumer", "_consumer"),
    Source("stream", "StreamReader", "SyncStreamReader", "_reader"),
    Source("handles", "QueueHandle", "SyncQueueHandle", "_handle"),
    Source("handles", "GroupHandle", "SyncGroupHandle", "_handle"),
    Source("handles", "ExchangeHandle", "SyncExchangeHandle", "_handle"),
]
WRAPPED: Final = {"AsyncClient": "Client", "Sent": "SyncSent"} | {source.name: source.result for source in OTHERS}

BODIES: Final = {
    "Client.in_namespace": "return self._of(self._thread.do(self._client.in_namespace, namespace), self._thread)",
    "Client.session": (
        "with self._thread.entered(lambda: self._client.session(seconds=seconds)) as session:\n"
        "    yield self._of(session, self._thread)"
    ),
    "Client.consume": "self.consumer(CONSUME).run_forever()",
    "Client.claim": "return self._thread.run_or_undo(self._give_back, self._client.claim, CLAIM)",
    "SyncProducer.send_many": (
        "sent = self._thread.run(self._producer.send_many, messages)\n"
        "return [SyncSent(one, self._thread) for one in sent]"
    ),
    "SyncConsumer.run_forever": "with _stopped_by_signals(self.stop):\n    _wait_awake(self.run)",
}

TEMPLATE: Final = '''"""The client without asyncio: the asynchronous one, run on an event loop in a thread of its own.

    with penstock.Client("http://127.0.0.1:7333") as client:
        client.publish("mail", penstock.Message(b"hello"))

Any number of threads may share one client. Ctrl-C while a call waits cancels the call. Made by
`python -m tools.make_client_sync` from the modules beside this one: change those, and make this anew.
"""

from __future__ import annotations

IMPORTS


class Client:
    """A client of one server, or of several nodes of one, seen from one namespace. Threads may share it."""

    def __init__(INIT_ARGUMENTS) -> None:
INIT_DOCSTRING
        self._thread = LoopThread("penstock-client", "client")
        try:
            self._client = self._thread.do(AsyncClient, INIT_CALL)
        except BaseException:
            self._thread.close()
            raise
        self._thread.last = self._client.close

    @classmethod
    def _of(cls, client: AsyncClient, thread: LoopThread) -> Client:
        made = cls.__new__(cls)
        made._client, made._thread = client, thread
        return made

    # Life -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End every connection; what is under way fails. Close producers and stop consumers before."""
        self._thread.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

Client_METHODS

    async def _give_back(self, claim: Claim) -> None:
        """The caller was interrupted before it saw the claim: back at once, as if never handed out."""
        if claim.lease is not None:
            await self._client.release(claim)


class SyncTransaction:
    """SyncTransaction_DOCSTRING"""

    def __init__(self, transaction: ClientTransaction, thread: LoopThread) -> None:
        self._transaction = transaction
        self._thread = thread

    @property
    def receipt(self) -> Receipt | None:
        """Where the messages went, once committed."""
        return self._transaction.receipt

SyncTransaction_METHODS

    def __enter__(self) -> SyncTransaction:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._thread.run(self._transaction.__aexit__, kind)


class SyncSent:
    """A message on its way; `result` waits for the places it went to."""

    def __init__(self, sent: Sent, thread: LoopThread) -> None:
        self._sent = sent
        self._thread = thread

    @property
    def message(self) -> Message:
        return self._sent.message

    def done(self) -> bool:
        """Whether the server has it, or it has failed."""
        return self._sent.done()

    def result(self) -> list[Published]:
        """Where it went, when it is there; raises why it did not go."""

        async def wait() -> list[Published]:
            return await self._sent

        return self._thread.run(wait)


class SyncProducer:
    """SyncProducer_DOCSTRING"""

    def __init__(self, producer: Producer, thread: LoopThread) -> None:
        self._producer = producer
        self._thread = thread

SyncProducer_METHODS

    def close(self) -> None:
        """Send everything, and take no more. Raises if any of it failed and nobody has looked at it."""
        self._thread.run(self._producer.close)

    def __enter__(self) -> SyncProducer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SyncConsumer:
    """Runs a handler over the messages of a queue's group: `consumer.run()`, and `consumer.stop()` from elsewhere."""

    def __init__(self, consumer: Consumer, thread: LoopThread) -> None:
        self._consumer = consumer
        self._thread = thread

    @property
    def handled(self) -> int:
        """Messages whose handler returned."""
        return self._consumer.handled

    @property
    def failed(self) -> int:
        """Messages whose handler raised."""
        return self._consumer.failed

SyncConsumer_METHODS


class SyncStreamReader:
    """SyncStreamReader_DOCSTRING"""

    def __init__(self, reader: StreamReader, thread: LoopThread) -> None:
        self._reader = reader
        self._thread = thread

    def __iter__(self) -> SyncStreamReader:
        return self

    def __next__(self) -> Received:
        received = self._thread.run(self._following)
        if received is None:
            raise StopIteration
        return received

    async def _following(self) -> Received | None:
        try:
            return await self._reader.__anext__()
        except StopAsyncIteration:
            return None

SyncStreamReader_METHODS

    def close(self) -> None:
        """End the loop. With `auto_commit`, what went through it is committed; the rest is given back."""
        self._thread.run(self._reader.close)

    def __enter__(self) -> SyncStreamReader:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._thread.run(self._reader.__aexit__, kind)


class SyncQueueHandle:
    """SyncQueueHandle_DOCSTRING"""

    def __init__(self, handle: QueueHandle, thread: LoopThread) -> None:
        self._handle = handle
        self._thread = thread
        self.name = handle.name

SyncQueueHandle_METHODS


class SyncGroupHandle:
    """SyncGroupHandle_DOCSTRING"""

    def __init__(self, handle: GroupHandle, thread: LoopThread) -> None:
        self._handle = handle
        self._thread = thread
        self.queue, self.name = handle.queue, handle.name

SyncGroupHandle_METHODS


class SyncExchangeHandle:
    """SyncExchangeHandle_DOCSTRING"""

    def __init__(self, handle: ExchangeHandle, thread: LoopThread) -> None:
        self._handle = handle
        self._thread = thread
        self.name = handle.name

SyncExchangeHandle_METHODS


def _wait_awake(work: Callable[[], None]) -> None:
    """Wait for work that another thread does, looking up now and then.

    A signal that arrives in the moment before a wait begins is seen only when the wait ends.
    """
    ended: Future[None] = Future()

    def carry_out() -> None:
        try:
            work()
        except BaseException as error:
            ended.set_exception(error)
        else:
            ended.set_result(None)

    threading.Thread(target=carry_out, name="penstock-run", daemon=True).start()
    while not wait([ended], 0.2).done:
        pass
    ended.result()


@contextmanager
def _stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and SIGINT call `stop` the first time; the second time they do what they always do."""
    signals = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in signals}

    def first(_number: int, _frame: object) -> None:
        restore()
        # In a thread: the interrupted one may hold what a call needs.
        threading.Thread(target=stop, name="penstock-stop", daemon=True).start()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in signals:
        signal.signal(number, first)
    try:
        yield
    finally:
        restore()
'''

IMPORTED: Final = """
import signal
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from penstock.client.client import DEFAULT_URL, AsyncClient
from penstock.client.consumer import Consumer
from penstock.client.handles import ExchangeHandle, GroupHandle, QueueHandle
from penstock.client.producer import Producer, Sent
from penstock.client.stream import StreamReader
from penstock.client.operations.transaction import ClientTransaction
from penstock.api.results import Claim, Published, Receipt, Received
from penstock.loop_thread import LoopThread
from penstock.model import Message
"""


def render() -> str:
    """The whole file, formatted."""
    modules = {source.module: ast.parse((CLIENT / f"{source.module}.py").read_text()) for source in [*CLIENTS, *OTHERS]}
    classes = {source: class_named(modules[source.module], source.name) for source in [*CLIENTS, *OTHERS]}
    init = next(
        node for node in classes[CLIENTS[0]].body if isinstance(node, ast.FunctionDef) and node.name == "__init__"
    )
    parts = {
        "INIT_ARGUMENTS": ast.unparse(init.args),
        "INIT_DOCSTRING": indent(f'"""{text_of(init)}\n"""', " " * 8),
        "INIT_CALL": forwarded(init.args),
        "Client_METHODS": "\n\n".join(method for source in CLIENTS for method in methods(source, classes[source])),
    }
    for source in OTHERS:
        parts[f"{source.result}_DOCSTRING"] = text_of(classes[source]) + (
            "\n" if "\n" in text_of(classes[source]) else ""
        )
        parts[f"{source.result}_METHODS"] = "\n\n".join(methods(source, classes[source]))
    imports = IMPORTED + "\n".join(
        line
        for source, home in classes.items()
        for line in imports_of(modules[source.module], [*public(home), *([init] if source is CLIENTS[0] else [])])
        if line.rpartition(" ")[2] not in {*WRAPPED, "AsyncIterator"}
    )
    made = re.sub("|".join(sorted(parts, key=len, reverse=True)), lambda match: parts[match[0]], TEMPLATE)
    return formatted(made.replace("IMPORTS", imports), RESULT)


def methods(source: Source, home: ast.ClassDef) -> Iterator[str]:
    for method in public(home):
        body = BODIES.get(f"{source.result}.{method.name}") or forward(source, method)
        arguments = forwarded(method.args)
        body = body.replace("CONSUME", arguments).replace("CLAIM", arguments)
        decorator = "@property\n" if is_property(method) else ""
        if returns_of(method).startswith("AsyncIterator"):
            decorator = "@contextmanager\n"
        yield indent(decorator + head(method), "    ") + indent(body, " " * 8)


def forward(source: Source, method: Function) -> str:
    """The call of the same method of the asynchronous object, on its own thread, and what is made of its answer."""
    function = f"self.{source.inner}.{method.name}"
    if is_property(method):
        return f"return {function}"
    how = "run" if isinstance(method, ast.AsyncFunctionDef) else "do"
    call = f"self._thread.{how}({', '.join(filter(None, (function, forwarded(method.args))))})"
    returns = returns_of(method)
    if returns == source.name:
        return f"{call}\nreturn self"
    if returns in WRAPPED:
        return f"return {WRAPPED[returns]}({call}, self._thread)"
    return call if returns == "None" else f"return {call}"


def is_property(method: Function) -> bool:
    return any(isinstance(one, ast.Name) and one.id == "property" for one in method.decorator_list)


def head(method: Function) -> str:
    """`def` line and docstring."""
    returns = returns_of(method).replace("AsyncIterator", "Iterator")
    returns = re.sub(r"\w+", lambda match: WRAPPED.get(match[0], match[0]), returns)
    text = text_of(method)
    docstring = indent(f'"""{text}{chr(10) if chr(10) in text else ""}"""', "    ") if text else ""
    return f"def {method.name}({ast.unparse(method.args)}) -> {returns}:\n{docstring}\n"


def text_of(node: Function | ast.ClassDef) -> str:
    """A docstring in the words of a caller without asyncio."""
    text = ast.get_docstring(node) or ""
    for asynchronous, plain in (("async with", "with"), ("async for", "for"), ("await client", "client"),
                                ("await consumer.run", "consumer.run"), ("Await what it returns for", "Its result is"),
                                ("Coroutines may share", "Threads may share")):  # fmt: skip
        text = text.replace(asynchronous, plain)
    return text


if __name__ == "__main__":
    RESULT.write_text(render())
