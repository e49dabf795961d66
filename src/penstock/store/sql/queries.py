"""Named queries in `.sql` files, and the files that bring a schema up to date.

A query begins with `-- name: find_dedup` and a line that describes it; the comments above its first line stay here, the
rest goes to the database. Names of tables and columns that come from Python go in through `fill`, quoted by `quoted`:
there is no other way. It may not know any engine. Next stop: `tables.py`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

Migration = Sequence[str]

_NAME: Final = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_PLACE: Final = re.compile(r"(?m)(?P<indent>^ *)?\{(?P<name>[a-z_]+)\}")


class Queries:
    """The queries of one file, as attributes."""

    def __init__(self, queries: Mapping[str, str]) -> None:
        self.names = tuple(queries)
        self.__dict__.update(queries)

    def __getattr__(self, name: str) -> str:
        raise AttributeError(f"there is no query named {name!r}")

    def __getitem__(self, name: str) -> str:
        text: str = getattr(self, name)
        return text

    def filled(self, **parts: str) -> dict[str, str]:
        """Every query with its parts: these, and other queries of the file."""
        known = {name: self[name] for name in self.names} | parts
        return {name: fill(self[name], **known) for name in self.names}

    def renamed(self, old: str, new: str) -> Queries:
        """The same queries on another schema."""
        return Queries({name: in_schema(self[name], old, new) for name in self.names})


def load_queries(package: str, file: str = "queries.sql") -> Queries:
    """The queries of a file that lies beside a package's modules."""
    _, *parts = _NAME.split((_folder(package) / file).read_text(encoding="utf-8"))
    names, texts = parts[::2], parts[1::2]
    if len(set(names)) != len(names):
        raise ValueError(f"{package}: {file} has a name twice")
    return Queries({name: _without_description(text) for name, text in zip(names, texts, strict=True)})


def load_migrations(package: str) -> Sequence[Migration]:
    """Statement by statement, `migrations/0001.sql` and on: entry n brings a schema from version n to n + 1.

    Files are only ever added: schemas made by each are out there.
    """
    folder = _folder(package) / "migrations"
    names = sorted(file.name for file in folder.iterdir() if file.name.endswith(".sql"))
    if names != [f"{number:04}.sql" for number in range(1, len(names) + 1)]:
        raise ValueError(f"{package}: migrations must be numbered from 0001 on, without a gap: {names}")
    return tuple(tuple(statements((folder / name).read_text(encoding="utf-8"))) for name in names)


def statements(script: str) -> Iterable[str]:
    """The statements of a script, each ended by a semicolon at the end of a line outside of $$."""
    statement: list[str] = []
    is_quoted = False
    for line in script.splitlines():
        if not statement and (not line.strip() or line.startswith("--")):
            continue
        statement.append(line)
        is_quoted ^= line.count("$$") % 2 == 1
        if line.endswith(";") and not is_quoted:
            yield "\n".join(statement).removesuffix(";")
            statement = []
    if statement:
        raise ValueError(f"the last statement has no end: {statement[0]}")


def fill(template: str, **parts: str) -> str:
    """A query with `{name}` replaced by its part, which may have parts too, and is indented as its place is."""

    def part(found: re.Match[str]) -> str:
        text = parts.get(found["name"])
        if text is None:
            return found[0]
        indent = found["indent"] or ""
        return indent + fill(text, **parts).replace("\n", "\n" + indent)

    return _PLACE.sub(part, template)


def in_schema(text: str, old: str, new: str) -> str:
    """SQL written for one schema, for another."""
    return re.sub(rf"\b{old}\.", lambda _: f"{new}.", text)


def quoted(name: str, mark: str = '"') -> str:
    """An identifier, whatever it is called."""
    return mark + name.replace(mark, mark * 2) + mark


def _folder(package: str) -> Path:
    """Where the modules of an imported package lie; `importlib.resources` would cost more than all the files."""
    file = sys.modules[package].__file__
    assert file is not None
    return Path(file).parent


def _without_description(text: str) -> str:
    """The query alone: no comments before it, nor the heading of the section that follows."""
    lines = text.splitlines()
    is_sql = [bool(line.strip()) and not line.startswith("--") for line in lines]
    first, last = is_sql.index(True), len(lines) - is_sql[::-1].index(True)
    return "\n".join(lines[first:last])
