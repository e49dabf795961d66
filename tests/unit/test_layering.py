"""Who may import whom, and what no module may be called: the design's layers as a test.

The rules are data; `violations` applies them to any source text, so the checker itself is tested on bad sources.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

SOURCE: Final = Path(__file__).resolve().parents[2] / "src"

# The core is a state machine: time, chance, I/O and waiting come in as arguments or not at all.
IMPURE: Final = frozenset(
    {
        "asyncio",
        "concurrent",
        "io",
        "logging",
        "multiprocessing",
        "os",
        "pathlib",
        "random",
        "secrets",
        "select",
        "selectors",
        "shutil",
        "signal",
        "socket",
        "sqlite3",
        "ssl",
        "subprocess",
        "sys",
        "tempfile",
        "threading",
        "time",
        "uuid",
    }
)
FORBIDDEN_NAMES: Final = frozenset({"utils", "util", "helpers", "helper", "manager", "common", "misc"})


class Layer(NamedTuple):
    """What of penstock a layer may import besides itself, layers or modules, and which other modules it may not."""

    may_import: frozenset[str]
    not_outside: frozenset[str] = frozenset()


DATA: Final = frozenset({"model"})
BELOW_CORE: Final = DATA | {"batch"}
BELOW_NODE: Final = BELOW_CORE | {"core", "store", "api"}

LAYERS: Final = {
    "model": Layer(frozenset(), IMPURE),
    # The codec keeps a compressor for each thread: it may know threads, though not wait for one. Its BytesIO is memory.
    "batch": Layer(DATA, IMPURE - {"io", "sys", "threading"}),
    "core": Layer(BELOW_CORE, IMPURE),
    # A commit is a ticket too: the caller of a publish and the commit loop wait in the same way.
    "store": Layer(BELOW_CORE | {"api.ticket"}),
    # What a caller sees, wherever the broker runs.
    # A ticket can be awaited, and long work lets others have their turn; nothing else here waits.
    "api": Layer(BELOW_CORE | {"loop_thread"}, IMPURE - {"asyncio"}),
    # A node asks another one through the client's operations, over HTTP.
    "node": Layer(BELOW_NODE | {"version", "client", "wire", "logs"}),
    "version": Layer(frozenset()),
    # For applications: it knows their database, and nothing of the broker.
    "enqueue": Layer(DATA, IMPURE),
    "telemetry": Layer(DATA | {"api"}),
    "embedded": Layer(BELOW_NODE | {"node"}),
    # Tools for operators: they open stores themselves, and know from the node what rows mean.
    "maintenance": Layer(BELOW_NODE | {"node", "version"}),
    "loop_thread": Layer(DATA),
    # What the HTTP API carries are results of the API, as they are. Its StringIO is memory.
    "wire": Layer(DATA | {"api"}, IMPURE - {"io", "logging"}),
    "arrow": Layer(DATA | {"batch", "api", "wire"}),
    # Arrow only where somebody asks for it: `test_penstock_does_not_import_arrow` holds it to that.
    # A front knows the broker's interface, and neither the node behind it nor that there may be several.
    "fronts": Layer(BELOW_CORE | {"api", "wire", "logs", "telemetry", "version", "arrow"}),
    "logs": Layer(frozenset()),
    "toml_file": Layer(frozenset()),
    # It reads a file and asks a broker: what may be declared it knows from the model and the core.
    "declare": Layer(BELOW_CORE | {"core", "api", "wire", "toml_file"}),
    # A front defines its section itself; the server's configuration is made of them.
    "config": Layer(DATA | {"declare", "toml_file", "fronts"}),
    "sync": Layer(BELOW_NODE | {"node", "embedded", "loop_thread"}),
    # A client knows the API and the wire, and nothing of a broker.
    "client": Layer(BELOW_CORE | {"api", "wire", "telemetry", "loop_thread", "version"}),
    # Spark's executors are clients: what they know of a server is what it answers.
    "spark": Layer(BELOW_CORE | {"core", "api", "wire", "client", "arrow", "version", ""}),
    # The package itself is its public face: everything but the command line.
    "": Layer(BELOW_NODE | {"node", "version", "embedded", "sync", "client"}),
    "cli": Layer(
        BELOW_NODE
        | {"node", "version", "embedded", "sync", "wire", "fronts", "client", "telemetry"}
        | {"logs", "toml_file", "declare", "config", "spark", "maintenance", ""}
    ),
    "__main__": Layer(frozenset({"cli"})),
}


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(module: str) -> str:
    """`penstock.core.lane` is in the layer `core`; `penstock` itself in the layer ``."""
    return [*module.split("."), ""][1]


def imported_modules(tree: ast.Module, module: str, is_package: bool) -> Iterator[str]:
    """Every module that the source imports, at any depth, with relative imports made absolute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = absolute_origin(node, module, is_package)
            # `from penstock import model` imports a layer; of other modules only the module itself counts.
            yield from (f"penstock.{alias.name}" for alias in node.names) if origin == "penstock" else (origin,)


def absolute_origin(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    if node.level == 0:
        return node.module or ""
    parts = module.split(".")
    climbed = parts[: len(parts) - node.level + is_package]
    return ".".join([*climbed, *([node.module] if node.module else [])])


def violations(source: str, module: str, is_package: bool = False) -> list[str]:
    """What the module does that its layer forbids, each as a sentence; empty when all is well."""
    tree = ast.parse(source)
    found = []
    if ast.get_docstring(tree) is None:
        found.append(f"{module} has no docstring")
    if FORBIDDEN_NAMES & set(module.split(".")):
        found.append(f"{module} has a name that says nothing")
    if layer_of(module) not in LAYERS:
        return [*found, f"{module} is in no layer: add its layer to LAYERS"]
    imports = sorted(set(imported_modules(tree, module, is_package)))
    return [*found, *(f"{module} imports {name}" for name in imports if not is_allowed(module, name))]


def is_allowed(module: str, imported: str) -> bool:
    own = layer_of(module)
    top = imported.partition(".")[0]
    if top != "penstock":
        return top not in LAYERS[own].not_outside
    target = layer_of(imported)
    if target not in LAYERS:  # `from penstock import connect`: a name of the package, not a module
        target = ""
    return target == own or not {target, imported.removeprefix("penstock.")}.isdisjoint(LAYERS[own].may_import)


MODULES: Final = sorted((SOURCE / "penstock").rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_module_keeps_to_its_layer(path: Path) -> None:
    assert violations(path.read_text(), module_name(path), path.name == "__init__.py") == []


def test_the_modules_are_found() -> None:
    assert "penstock.cli.main" in [module_name(path) for path in MODULES]


BAD_SOURCES: Final = [
    ("penstock.model", "from penstock.batch import encode", "penstock.model imports penstock.batch"),
    ("penstock.batch", "import penstock.core.lane", "penstock.batch imports penstock.core.lane"),
    ("penstock.core.lane", "import time", "penstock.core.lane imports time"),
    ("penstock.core.lane", "import os.path", "penstock.core.lane imports os.path"),
    ("penstock.core.lane", "from asyncio import Lock", "penstock.core.lane imports asyncio"),
    ("penstock.core.lane", "def f():\n    import random", "penstock.core.lane imports random"),
    ("penstock.core.lane", "from penstock.store import contract", "penstock.core.lane imports penstock.store"),
    ("penstock.core.lane", "from penstock import node", "penstock.core.lane imports penstock.node"),
    ("penstock.core.lane", "from ..store.contract import Store", "penstock.core.lane imports penstock.store.contract"),
    ("penstock.core.lane", "from penstock import connect", "penstock.core.lane imports penstock.connect"),
    (
        "penstock.store.sqlite.engine",
        "import penstock.node.broker",
        "penstock.store.sqlite.engine imports penstock.node.broker",
    ),
    ("penstock.store.sqlite.engine", "import penstock.core", "penstock.store.sqlite.engine imports penstock.core"),
    (
        "penstock.store.contract",
        "from penstock.api.broker import Broker",
        "penstock.store.contract imports penstock.api.broker",
    ),
    ("penstock.store.contract", "from penstock.api import ticket", "penstock.store.contract imports penstock.api"),
    ("penstock.node.broker", "from penstock.cli.main import main", "penstock.node.broker imports penstock.cli.main"),
    (
        "penstock.fronts.http.server",
        "from penstock.node.broker import LocalBroker",
        "penstock.fronts.http.server imports penstock.node.broker",
    ),
    (
        "penstock.fronts.mqtt.client",
        "def f():\n    from penstock.client import AsyncClient",
        "penstock.fronts.mqtt.client imports penstock.client",
    ),
    ("penstock.wire.http.wires", "import asyncio", "penstock.wire.http.wires imports asyncio"),
    ("penstock.wire.mqtt.wires", "import socket", "penstock.wire.mqtt.wires imports socket"),
    ("penstock.node.utils", "", "penstock.node.utils has a name that says nothing"),
    ("penstock.attic.box", "", "penstock.attic.box is in no layer: add its layer to LAYERS"),
]


@pytest.mark.parametrize(("module", "statement", "complaint"), BAD_SOURCES)
def test_a_bad_source_is_found_out(module: str, statement: str, complaint: str) -> None:
    assert violations(f'"""A docstring."""\n{statement}\n', module) == [complaint]


def test_a_missing_docstring_is_found_out() -> None:
    assert violations("import msgspec\n", "penstock.model") == ["penstock.model has no docstring"]


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("penstock.core.lane", "import heapq\nfrom penstock.batch import decode\nfrom .ranges import Ranges"),
        ("penstock.store.sqlite.engine", "import sqlite3, threading\nfrom penstock.model import Message"),
        ("penstock.store.sqlite.engine", "from penstock.api.ticket import Ticket"),
        ("penstock.node.broker", "import asyncio\nfrom penstock.core.lane import Lane\nfrom penstock import store"),
        ("penstock.cli.commands.demo", "import penstock\nfrom penstock import connect"),
    ],
)
def test_a_good_source_passes(module: str, statement: str) -> None:
    assert violations(f'"""A docstring."""\n{statement}\n', module) == []


def test_a_relative_import_in_a_package_is_its_own() -> None:
    source = '"""A docstring."""\nfrom .lane import Lane\nfrom . import ranges\n'
    assert violations(source, "penstock.core", is_package=True) == []


# Inside of the node: services say what they need ---------------------------------------------------------

CYCLE_MODULES_MAX: Final = 5
"""Modules of `node/` that may import each other in a circle, type-only imports counted."""
COMPOSITION_ROOT: Final = "penstock.node.node"
ALL_SERVICES: Final = "penstock.node.broker.names"
"""Has `Services`."""


def node_modules() -> dict[str, Path]:
    return {name: path for path in MODULES if (name := module_name(path)).startswith("penstock.node")}


def import_graph(sources: dict[str, str]) -> dict[str, set[str]]:
    """module → the others among these that it imports, also for types alone."""
    return {
        module: {name for name in imported_names(ast.parse(source)) if name in sources and name != module}
        for module, source in sources.items()
    }


def imported_names(tree: ast.Module) -> Iterator[str]:
    """Modules and names as they are imported: `from a import b` is both `a` and `a.b`, unless `b` is a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                named = f"{node.module}.{alias.name}"
                is_module = (SOURCE / Path(*named.split("."))).with_suffix(".py").exists()
                yield named if is_module else node.module


def cycles(graph: dict[str, set[str]]) -> list[set[str]]:
    """The sets of modules of which each reaches each other, by rising size."""
    reached = {module: reachable(graph, module) for module in graph}
    circles = {frozenset(other for other in reached[m] if m in reached[other]) for m in graph if m in reached[m]}
    return sorted(map(set, circles), key=len)


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    ahead = list(graph[start])
    while ahead:
        module = ahead.pop()
        if module not in found:
            found.add(module)
            ahead += graph[module]
    return found


def takes_node(source: str) -> bool:
    """Whether a module imports `Node` or has a parameter or attribute annotated with it."""
    tree = ast.parse(source)
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    if any(alias.name == "Node" for node in imports for alias in node.names):
        return True
    noted = (node.annotation for node in ast.walk(tree) if isinstance(node, ast.arg | ast.AnnAssign))
    return any("Node" in re.findall(r"\w+", ast.unparse(note)) for note in noted if note is not None)


def test_no_large_cycle_in_the_node() -> None:
    graph = import_graph({name: path.read_text() for name, path in node_modules().items()})
    largest = cycles(graph)[-1:]
    assert [sorted(cycle) for cycle in largest if len(cycle) > CYCLE_MODULES_MAX] == []


def test_modules_below_the_node_take_what_they_need_and_not_the_node() -> None:
    taking = [
        name for name, path in node_modules().items() if name != COMPOSITION_ROOT and takes_node(path.read_text())
    ]
    assert taking == []


def test_only_brokers_take_all_services() -> None:
    modules = node_modules()
    assert "class Services(" in modules[ALL_SERVICES].read_text()
    graph = import_graph({name: path.read_text() for name, path in modules.items()})
    taking = [name for name, imported in graph.items() if ALL_SERVICES in imported]
    assert [name for name in taking if not name.startswith("penstock.node.broker.")] == []


def test_a_cycle_of_imports_is_found() -> None:
    sources = {
        "penstock.node.a": "if TYPE_CHECKING:\n    from penstock.node.b import B",
        "penstock.node.b": "import penstock.node.c",
        "penstock.node.c": "from penstock.node.a import A",
        "penstock.node.d": "from penstock.node.a import A",
    }
    assert cycles(import_graph(sources)) == [{"penstock.node.a", "penstock.node.b", "penstock.node.c"}]


@pytest.mark.parametrize(
    ("source", "is_taken"),
    [
        ("from penstock.node.node import Node", True),
        ("def stop(node: 'Node | None') -> None: ...", True),
        ("class Service:\n    _node: Node", True),
        ("from penstock.model.rows import NodeRow\ndef stop(row: NodeRow) -> None: ...", False),
    ],
)
def test_taking_a_node_is_found(source: str, is_taken: bool) -> None:
    assert takes_node(source) is is_taken
