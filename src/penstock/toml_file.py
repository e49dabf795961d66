"""TOML files that know their lines: `tomllib` reads the values, a scanner beside it finds where each key stands.

The scanner only ever sees text that `tomllib` has accepted, so it looks for where things end and checks nothing. It may
not know what a file is about; `config` and `declare` give the keys their meaning and use `place` in what they complain
of.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

KeyPath = tuple[str | int, ...]
"""Where a value is: names of tables and keys, and the places of elements in arrays."""

FILE_BYTES_MAX: Final = 64 << 20


class FileProblems(ValueError):
    """What is wrong with a file, a variable or a flag: one sentence each, beginning with where it is."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


class TomlFile:
    """A parsed file: `data` as `tomllib` gives it, and the line of each of its keys."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        try:
            self.data: dict[str, Any] = tomllib.loads(text)
            self._lines = key_lines(text)
        except tomllib.TOMLDecodeError as error:
            raise FileProblems([_syntax_problem(name, str(error), text)]) from None
        except RecursionError:
            raise FileProblems([f"{name}: arrays or tables are nested too deeply"]) from None

    def line(self, path: Iterable[str | int]) -> int:
        """The line of a key; of the nearest table or element around it where it has none of its own."""
        known = tuple(path)
        while known and known not in self._lines:
            known = known[:-1]
        return self._lines.get(known, 1)

    def place(self, path: Iterable[str | int]) -> str:
        return f"{self.name}:{self.line(path)}"


def read_toml(path: Path) -> TomlFile:
    """Read a file, or raise `FileProblems` that say why it cannot be."""
    try:
        if path.is_file() and path.stat().st_size > FILE_BYTES_MAX:
            raise FileProblems([f"{path}: the file has {path.stat().st_size} bytes; the limit is {FILE_BYTES_MAX}"])
        text = path.read_bytes().decode()
    except OSError as error:
        raise FileProblems([f"{path}: {error.strerror or error}"]) from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise FileProblems([f"{path}:{line}: this is not UTF-8 text"]) from None
    return TomlFile(str(path), text)


_POSITION: Final = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


def _syntax_problem(name: str, message: str, text: str) -> str:
    found = _POSITION.search(message)
    if found is None:
        return f"{name}: {message}"
    line = int(found[1]) if found[1] else text.count("\n") + (not text.endswith("\n"))
    return f"{name}:{max(line, 1)}: {message[: found.start()]}"


# The scanner ---------------------------------------------------------------------------------------------


def key_lines(text: str) -> dict[KeyPath, int]:
    """The line of every table, key and array element of a valid TOML document; a table's is where it is first named."""
    return _Scanner(text).scan()


_BLANK: Final = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_SPACES: Final = re.compile(r"[ \t]*")
# Numbers, times, true and false end where something else begins; a time may have a space inside.
_PLAIN_VALUE: Final = re.compile(r"[^,\]}\n#]*")
_STRINGS: Final = (
    re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}(?!")', re.DOTALL),
    re.compile(r"'''.*?'{3,5}(?!')", re.DOTALL),
    re.compile(r'"(?:[^"\\]|\\.)*"'),
    re.compile(r"'[^']*'"),
)


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._newlines = [found.start() for found in re.finditer("\n", text)]
        self._lines: dict[KeyPath, int] = {}
        self._elements: dict[KeyPath, int] = {}
        """How many elements each array of tables has so far: [a.b] goes on in the last one of a."""

    def scan(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        while self._skip(_BLANK) < len(self._text):
            if self._text[self._at] == "[":
                table = self._header()
            else:
                self._pair(table)
        return self._lines

    def _header(self) -> KeyPath:
        line = self._line()
        is_element = self._text.startswith("[[", self._at)
        self._at += 2 if is_element else 1
        *outer, last = self._key()
        self._at += 2 if is_element else 1
        path = self._known((), outer, line)
        if is_element:
            path = (*path, last)
            self._lines.setdefault(path, line)
            self._elements[path] = self._elements.get(path, 0) + 1
            path = (*path, self._elements[path] - 1)
            self._lines.setdefault(path, line)
            return path
        return self._known(path, [last], line)

    def _pair(self, table: KeyPath) -> None:
        line = self._line()
        path = self._known(table, self._key(), line)
        self._at += 1  # the equals sign
        self._value(path)

    def _known(self, path: KeyPath, names: Sequence[str], line: int) -> KeyPath:
        """The path of names below another, with the last element of each array of tables on the way."""
        for name in names:
            path = (*path, name)
            self._lines.setdefault(path, line)
            if path in self._elements:
                path = (*path, self._elements[path] - 1)
        return path

    def _key(self) -> list[str]:
        """A dotted key, up to what comes after it and its spaces."""
        names: list[str] = []
        while True:
            self._skip(_SPACES)
            start = self._at
            if self._text[start] in "\"'":
                self._skip_string()
                # Escapes in a quoted key mean what they mean in a string.
                names.append(str(tomllib.loads(f"key = {self._text[start : self._at]}")["key"]))
            else:
                names.append(self._text[start : self._skip(_BARE_KEY)])
            self._skip(_SPACES)
            if self._text[self._at] != ".":
                return names
            self._at += 1

    def _value(self, path: KeyPath) -> None:
        self._skip(_SPACES)
        first = self._text[self._at]
        if first == "[":
            self._array(path)
        elif first == "{":
            self._inline_table(path)
        elif first in "\"'":
            self._skip_string()
        else:
            self._skip(_PLAIN_VALUE)

    def _array(self, path: KeyPath) -> None:
        self._at += 1
        index = 0
        while self._text[self._skip(_BLANK)] != "]":
            self._lines[(*path, index)] = self._line()
            self._value((*path, index))
            index += 1
            if self._text[self._skip(_BLANK)] == ",":
                self._at += 1
        self._at += 1

    def _inline_table(self, path: KeyPath) -> None:
        self._at += 1
        while self._text[self._skip(_BLANK)] != "}":
            self._pair(path)
            if self._text[self._skip(_BLANK)] == ",":
                self._at += 1
        self._at += 1

    def _skip_string(self) -> None:
        for pattern in _STRINGS:
            found = pattern.match(self._text, self._at)
            if found is not None:
                self._at = found.end()
                return
        raise AssertionError(f"no string at {self._at}: the text was not checked before")

    def _skip(self, pattern: re.Pattern[str]) -> int:
        found = pattern.match(self._text, self._at)
        assert found is not None
        self._at = found.end()
        return self._at

    def _line(self) -> int:
        return bisect_left(self._newlines, self._at) + 1
