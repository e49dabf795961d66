"""Writes src/penstock/api/options.py: the options of declarations as typed keyword arguments.

    .venv/bin/python -m tools.make_typed_options

Names and types are those of the classes in `model/options.py`. A test compares the file with what this makes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from textwrap import indent
from typing import Final

from tools.source import PACKAGE, Source, formatted

RESULT: Final = PACKAGE / "api/options.py"
CLASSES: Final = {"QueueConfig": "QueueOptions", "GroupConfig": "GroupOptions", "ExchangeConfig": "ExchangeOptions"}

TEMPLATE: Final = '''"""Options of `declare_queue`, `declare_group` and `declare_exchange`, for type checkers.

Made by `python -m tools.make_typed_options` from `model/options.py`: change that, and make this again. What each means,
defaults and limits are there; at run time an unknown name or a wrong type raises `UnknownOption` or `InvalidArgument`.
"""

from __future__ import annotations

from typing import TypedDict

from penstock.model import Headers
from penstock.model.options import ExchangeKind, Expired, GroupKind, Overflow, Start


'''


def render() -> str:
    """The whole file, formatted."""
    source = Source("model/options.py")
    classes = [typed_dict(source.class_named(name), result) for name, result in CLASSES.items()]
    return formatted(TEMPLATE + "\n\n".join(classes), RESULT)


def typed_dict(home: ast.ClassDef, name: str) -> str:
    doc = f'"""Keyword arguments: see `penstock.model.options.{home.name}`."""'
    return f"class {name}(TypedDict, total=False):\n" + indent("\n".join([doc, "", *fields(home)]), "    ") + "\n"


def fields(home: ast.ClassDef) -> Iterator[str]:
    """Each field's name and type."""
    for node in home.body:
        if isinstance(node, ast.AnnAssign):
            yield f"{ast.unparse(node.target)}: {ast.unparse(node.annotation)}"


if __name__ == "__main__":
    RESULT.write_text(render())
