"""Reading and writing Python source, for the generators beside this."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGE: Final = ROOT / "src/penstock"

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Source:
    """A module of the package, read."""

    def __init__(self, path: str) -> None:
        self.name = f"penstock.{path.removesuffix('.py').replace('/', '.')}"
        self.text = (PACKAGE / path).read_text()
        self.tree = ast.parse(self.text)

    def class_named(self, name: str) -> ast.ClassDef:
        return next(node for node in self.tree.body if isinstance(node, ast.ClassDef) and node.name == name)

    def imports_of(self, functions: Iterable[Function]) -> Iterator[str]:
        """Import statements for the names that signatures use, from where the module has them."""
        names = {name.id for one in functions for name in ast.walk(signature_of(one)) if isinstance(name, ast.Name)}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module != "__future__":
                yield from (f"from {node.module} import {alias.name}" for alias in node.names if alias.name in names)
            elif isinstance(node, ast.ClassDef) and node.name in names:
                yield f"from {self.name} import {node.name}"


def signature_of(function: Function) -> ast.AST:
    return ast.Tuple([*annotations_of(function.args), *([function.returns] if function.returns else [])], ast.Load())


def annotations_of(arguments: ast.arguments) -> Iterator[ast.expr]:
    """What the annotations and defaults of a signature say."""
    for node in ast.walk(arguments):
        if isinstance(node, ast.arg) and node.annotation is not None:
            yield node.annotation
    yield from (default for default in (*arguments.defaults, *arguments.kw_defaults) if default is not None)


def methods_of(home: ast.ClassDef) -> list[Function]:
    """The public methods, in their order."""
    return [node for node in home.body if isinstance(node, Function) and not node.name.startswith("_")]


def returns_of(method: Function) -> str:
    return "None" if method.returns is None else ast.unparse(method.returns)


def forwarded(arguments: ast.arguments) -> str:
    """The arguments of a call that passes on what was given."""
    given = [argument.arg for argument in arguments.args if argument.arg != "self"]
    if arguments.vararg is not None:
        given.append(f"*{arguments.vararg.arg}")
    given += [f"{argument.arg}={argument.arg}" for argument in arguments.kwonlyargs]
    if arguments.kwarg is not None:
        given.append(f"**{arguments.kwarg.arg}")
    return ", ".join(given)


def formatted(source: str, result: Path) -> str:
    """The source as ruff writes it, without the imports that it does not need."""
    for command in (["check", "--quiet", "--select", "I,F401,F811", "--fix"], ["format"]):
        source = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(result), "-"],
            cwd=ROOT,
            input=source,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    return source
