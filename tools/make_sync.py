"""Writes src/penstock/sync.py: the broker's API without asyncio, method by method from the asynchronous one.

    .venv/bin/python tools/make_sync.py

Signatures, defaults and docstrings are read from the source of `Broker` and its parts, `Transaction` and `open`; what
is not a plain forward (opening, closing, sessions) is in the template below. A test compares the file with what this
makes.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from textwrap import indent
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
BROKER: Final = ROOT / "src/penstock/node/broker"
FACE: Final = "penstock.node.broker"
EMBEDDED: Final = ROOT / "src/penstock/embedded.py"
RESULT: Final = ROOT / "src/penstock/sync.py"

PARTS: Final = {
    "local": "Broker",
    "declare": "Declaring",
    "messages": "Messages",
    "inspect": "Looking",
    "scan": "Scanning",
    "marks": "Marking",
    "staging": "Staging",
    "enqueued": "Enqueued",
}
"""The class in each module that has a part of the broker, in the order of the result."""

Function = ast.FunctionDef | ast.AsyncFunctionDef

LOOP_ONLY: Final = frozenset(
    ("publish_now", "settle_in_passing", "hurry", "can_begin", "begin_publish", "begin_settle")
)
"""What is of use only on the broker's event loop."""

TEMPLATE: Final = '''"""Penstock without asyncio: the same broker, run on an event loop in a thread of its own.

    with penstock.sync.open("queue.db") as broker:
        broker.publish("mail", penstock.Message(b"hello"))

Any number of threads may share one broker; each call returns when what it did is durable. Ctrl-C while a call waits
cancels the call. Made by tools/make_sync.py from `node/broker/`: change that, and make this anew.
"""

from __future__ import annotations

IMPORTS


def open(OPEN_ARGUMENTS) -> SyncBroker:
OPEN_DOCSTRING
    thread = LoopThread("penstock")
    try:
        broker = thread.run_or_undo(Broker.close, embedded.open, OPEN_CALL)
    except BaseException:
        thread.close()
        raise
    thread.last = broker.close
    return SyncBroker(broker, thread)


class SyncBroker:
    """An open broker, seen from one namespace and, perhaps, one session. Threads may share it."""

    def __init__(self, broker: Broker, thread: LoopThread) -> None:
        self._broker = broker
        self._thread = thread

    # Life -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """CLOSE_DOCSTRING"""
        self._thread.close()

    def __enter__(self) -> SyncBroker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

BROKER_METHODS

    async def _give_back(self, claim: Claim) -> None:
        """The caller was interrupted before it saw the claim: back at once, as if never handed out."""
        if claim.lease is not None:
            await self._broker.release(claim)


class SyncTransaction:
    """TRANSACTION_DOCSTRING"""

    def __init__(self, transaction: Transaction, thread: LoopThread) -> None:
        self._transaction = transaction
        self._thread = thread

    @property
    def receipt(self) -> Receipt | None:
        """Where the messages went, once committed."""
        return self._transaction.receipt

TRANSACTION_METHODS

    def __enter__(self) -> SyncTransaction:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._thread.run(self._transaction.__aexit__, kind)
'''

IMPORTED: Final = """
from penstock import embedded
from penstock.api.results import Claim, Receipt
from penstock.loop_thread import LoopThread
from penstock.node.broker import Broker, Transaction
from collections.abc import Iterator
from contextlib import contextmanager
"""

BODIES: Final = {
    "in_namespace": "return SyncBroker(self._thread.do(self._broker.in_namespace, namespace), self._thread)",
    "session": (
        "with self._thread.entered(lambda: self._broker.session(name)) as session:\n"
        "    yield SyncBroker(session, self._thread)"
    ),
    "begin_session": "return SyncBroker(self._thread.do(self._broker.begin_session, name), self._thread)",
    "transaction": "return SyncTransaction(self._thread.do(self._broker.transaction), self._thread)",
}
"""Methods that wrap what they give back; all others pass it on."""
RETURNS: Final = {
    "Broker": "SyncBroker",
    "Transaction": "SyncTransaction",
    "AsyncIterator[Broker]": "Iterator[SyncBroker]",
}


def render() -> str:
    """The whole file, formatted."""
    embedded, transaction = ast.parse(EMBEDDED.read_text()), ast.parse((BROKER / "transaction.py").read_text())
    sources = {module: (BROKER / f"{module}.py").read_text() for module in PARTS}
    modules = {module: ast.parse(source) for module, source in sources.items()}
    classes = {module: class_named(modules[module], name) for module, name in PARTS.items()}
    opened, transaction_class = function_named(embedded, "open"), class_named(transaction, "Transaction")
    methods = [broker_methods(of, sources[module]) for module, of in classes.items()]
    parts = {
        "OPEN_ARGUMENTS": ast.unparse(opened.args),
        "OPEN_DOCSTRING": docstring(opened),
        "OPEN_CALL": forwarded(opened.args),
        "CLOSE_DOCSTRING": text_of(function_named(classes["local"], "close")),
        "TRANSACTION_DOCSTRING": text_of(transaction_class),
        "BROKER_METHODS": "\n\n".join(chain.from_iterable(methods)),
        "TRANSACTION_METHODS": "\n\n".join(transaction_methods(transaction_class)),
    }
    imports = [IMPORTED, *imports_of(embedded, [opened]), *imports_of(transaction, public(transaction_class))]
    for module, of in classes.items():
        imports += imports_of(modules[module], public(of))
    source = re.sub("|".join(sorted(parts, key=len, reverse=True)), lambda match: parts[match[0]], TEMPLATE)
    return formatted(source.replace("IMPORTS", "\n".join(imports)))


# Methods -------------------------------------------------------------------------------------------------


def broker_methods(part: ast.ClassDef, source: str) -> Iterator[str]:
    headings = headings_of(part, source)
    for method in public(part):
        heading = headings.get(method.name)
        body = BODIES.get(method.name) or answered(method, forward(method, "self._broker"))
        decorator = "@contextmanager\n" if method.name == "session" else ""
        yield indent((f"{heading}\n\n" if heading else "") + decorator + head(method), "    ") + indent(body, " " * 8)


def transaction_methods(transaction: ast.ClassDef) -> Iterator[str]:
    for method in public(transaction):
        call = forward(method, "self._transaction")
        body = f"{call}\nreturn self" if isinstance(method, ast.FunctionDef) else answered(method, call)
        yield indent(head(method), "    ") + indent(body, " " * 8)


def answered(method: Function, call: str) -> str:
    return call if returns_of(method) == "None" else f"return {call}"


def head(method: Function) -> str:
    """`def` line and docstring."""
    returns = returns_of(method)
    return f"def {method.name}({ast.unparse(method.args)}) -> {RETURNS.get(returns, returns)}:\n{docstring(method)}\n"


def returns_of(method: Function) -> str:
    return "None" if method.returns is None else ast.unparse(method.returns)


def forward(method: Function, target: str) -> str:
    """The call of the same method of the asynchronous object, on its own thread."""
    function = f"{target}.{method.name}"
    arguments = forwarded(method.args)
    if method.name == "claim":  # the one answer that would be missed by others if its caller never saw it
        how = "run_or_undo(self._give_back, "
    else:
        how = "run(" if isinstance(method, ast.AsyncFunctionDef) else "do("
    return f"self._thread.{how}{function}, {arguments})" if arguments else f"self._thread.{how}{function})"


def forwarded(arguments: ast.arguments) -> str:
    given = [argument.arg for argument in arguments.args if argument.arg != "self"]
    if arguments.vararg is not None:
        given.append(f"*{arguments.vararg.arg}")
    given += [f"{argument.arg}={argument.arg}" for argument in arguments.kwonlyargs]
    if arguments.kwarg is not None:
        given.append(f"**{arguments.kwarg.arg}")
    return ", ".join(given)


def docstring(function: Function) -> str:
    text = text_of(function)
    end = "\n" if "\n" in text else ""
    return indent(f'"""{text}{end}"""', "    ")


def text_of(node: Function | ast.ClassDef) -> str:
    """A docstring in the words of a caller without asyncio."""
    text = ast.get_docstring(node) or ""
    return text.replace("async with await penstock.open", "with penstock.sync.open").replace("async with", "with")


# Reading the source --------------------------------------------------------------------------------------


def class_named(module: ast.Module, name: str) -> ast.ClassDef:
    return next(node for node in module.body if isinstance(node, ast.ClassDef) and node.name == name)


def function_named(home: ast.Module | ast.ClassDef, name: str) -> Function:
    return next(node for node in home.body if isinstance(node, Function) and node.name == name)


def public(home: ast.ClassDef) -> list[Function]:
    """The methods to forward, in their order; closing is the template's."""
    functions = [node for node in home.body if isinstance(node, Function)]
    left_out = {"close", *LOOP_ONLY}
    return [function for function in functions if not function.name.startswith("_") and function.name not in left_out]


def headings_of(home: ast.ClassDef, source: str) -> dict[str, str]:
    """`# Publish ----` by the name of the public method that follows it."""
    lines = source.splitlines()
    headings: dict[str, str] = {}
    following = {method.lineno: method.name for method in public(home)}
    for number in range(home.lineno, max(following) + 1):
        line = lines[number - 1].strip()
        if re.fullmatch(r"# .* -{20,}", line) and "# Life" not in line:
            headings[following[min(start for start in following if start > number)]] = line
    return headings


def imports_of(module: ast.Module, functions: list[Function]) -> Iterator[str]:
    """Import statements for the names that signatures use, from where the module has them."""
    names = {name.id for function in functions for name in ast.walk(function.args) if isinstance(name, ast.Name)}
    for function in functions:
        names |= {name.id for name in ast.walk(function.returns or function.args) if isinstance(name, ast.Name)}
    for node in module.body:
        if isinstance(node, ast.ImportFrom) and node.module != "__future__":
            home = FACE if (node.module or "").startswith(FACE) else node.module
            yield from (f"from {home} import {alias.name}" for alias in node.names if alias.name in names)


def formatted(source: str, result: Path = RESULT) -> str:
    for command in (["check", "--quiet", "--select", "I,F401,F811", "--fix"], ["format"]):
        source = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(result), "-"],
            cwd=ROOT, input=source, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
    return source


if __name__ == "__main__":
    RESULT.write_text(render())
