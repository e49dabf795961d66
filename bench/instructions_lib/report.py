"""What was counted, for people: the table, and where the instructions go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from bench.instructions_lib.baseline import (
    CLIENT,
    CLIENT_MACHINE,
    SERVER,
    SERVER_MACHINE,
    Change,
    Row,
    amount,
)
from bench.instructions_lib.counting import Counted
from bench.instructions_lib.paths import PATHS

NONE: Final = "–"


def head(*, machine: bool) -> str:
    columns = ["path", "server opcodes", "C calls", "client opcodes", "commits", "change"]
    if machine:
        columns[5:5] = ["server instructions", "client instructions"]
    return "\n".join((_line(columns), _line(["---"] * len(columns))))


def line(path: str, row: Row, changes: Sequence[Change], *, machine: bool) -> str:
    """One path, all of one message."""
    server = row[SERVER]
    columns = [f"{PATHS[path].title} (`{path}`)", amount(server.instructions), amount(server.c_calls)]
    columns += [_of(row, CLIENT), amount(server.commits) if server.commits else NONE]
    if machine:
        columns += [_of(row, SERVER_MACHINE), _of(row, CLIENT_MACHINE)]
    return _line([*columns, change(changes)])


def _of(row: Row, figure: str) -> str:
    return amount(row[figure].instructions) if figure in row else NONE


def change(changes: Sequence[Change]) -> str:
    """Of the server's opcodes, and of any other figure that is worse."""
    return ", ".join(_shown(each) for each in changes if each.figure == SERVER or each.is_worse) or NONE


def _shown(each: Change) -> str:
    figure = "" if each.figure == SERVER else f" {each.figure}"
    return f"{each.percent:+.1f} %{figure}{' (!)' if each.is_worse else ''}"


def _line(columns: Sequence[str]) -> str:
    return f"| {' | '.join(columns)} |"


def where(figure: str, counted: Counted, most: int) -> str:
    """The modules and the functions that take most."""
    modules: Counter[str] = Counter()
    for name, count in counted.functions.items():
        modules[name.rpartition(":")[0]] += count  # type: ignore[assignment]
    functions = Counter(counted.functions)
    lines = []
    for title, counts in (("modules", modules), ("functions", functions)):
        lines.append(f"  {figure}, {title}:")
        for name, count in counts.most_common(most):
            lines.append(f"    {amount(count):>10} {count / counted.instructions:6.1%}  {name}")
    return "\n".join(lines)
