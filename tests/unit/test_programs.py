"""The tests and benchmarks run only programs that a minimal Debian has, that pip brings, or that they look for first.

A minimal Debian is `debootstrap --variant=minbase` with git and Python: no ps, no kill, no curl, no openssl.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCES: Final = sorted(path for folder in ("src", "tests", "bench", "tools") for path in (ROOT / folder).rglob("*.py"))
STARTS: Final = frozenset(
    f"{module}.{name}"
    for module, names in {
        "subprocess": ("run", "Popen", "call", "check_call", "check_output"),
        "asyncio": ("create_subprocess_exec",),
    }.items()
    for name in names
)
ESSENTIAL: Final = frozenset({"sh", "bash", "mount", "umount", "unshare", "nsenter", "stdbuf"})
"""Of Debian's required packages: dash, bash, mount, util-linux and coreutils."""


def programs(source: str) -> Iterator[str]:
    """The programs that a source starts by a name written in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and node.args and ast.unparse(node.func) in STARTS:
            first = node.args[0]
            if isinstance(first, ast.List | ast.Tuple) and first.elts:
                first = first.elts[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value


def test_programs_are_found() -> None:
    source = "subprocess.run(['ps', '-A'])\nserver.call('PUT')\nsubprocess.Popen([sys.executable])\nasyncio.run(m)\n"
    assert list(programs(source)) == ["ps"]


def test_sources_start_only_programs_that_are_there() -> None:
    started = {str(path.relative_to(ROOT)): set(programs(path.read_text())) - ESSENTIAL for path in SOURCES}
    assert {path: names for path, names in started.items() if names} == {}
