"""Lines of keys in TOML files: every way to write a key, and that the scanner and `tomllib` see the same document."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.toml_file import FILE_BYTES_MAX, FileProblems, KeyPath, TomlFile, key_lines, read_toml

DOCUMENT = '''# a comment with [brackets] and = signs
top = 1
"quoted \\"key\\"" = "a # that is no comment"  # one that is
'literal.key' = 'c:\\path'
a.b.c = true
a . "d.e" . f = 1979-05-27 07:32:00

[table]   # after a header
text = """
[not.a.table]
key = "no key"
\\""" still text """""
raw = \'\'\'
x = [1,
\'\'\' # done
list = [
  1, # one
  [2, 3],
  { deep = "x", deeper = { deepest = [ 4 ] } },
]
inline = { one = 1, "two" = [ { three = 3 } ], x.y = 2 }
after = "here"

[table."sub.table".inner]
key = 1

[[rows]]
name = "first"
  [rows.part]
  size = 1
  [[rows.cells]]
  value = 1
  [[rows.cells]]
  value = 2

[[rows]]
name = "second"
[[rows.cells]]
value = 3
[rows.part]
size = 2
'''


def line_of(text: str, count: int = 1) -> int:
    """The line of the document in which a text stands for the so-manieth time."""
    lines = [number for number, line in enumerate(DOCUMENT.splitlines(), 1) if text in line]
    return lines[count - 1]


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("top",), 2),
        (('quoted "key"',), 3),
        (("literal.key",), 4),
        (("a",), 5),
        (("a", "b", "c"), 5),
        (("a", "d.e", "f"), 6),
        (("table",), 8),
        (("table", "text"), 9),
        (("table", "raw"), line_of("raw =")),
        (("table", "list", 0), line_of("1, # one")),
        (("table", "list", 1, 1), line_of("[2, 3]")),
        (("table", "list", 2, "deeper", "deepest", 0), line_of("deepest")),
        (("table", "inline", "two", 0, "three"), line_of("inline =")),
        (("table", "inline", "x", "y"), line_of("inline =")),
        (("table", "after"), line_of("after = ")),
        (("table", "sub.table", "inner", "key"), line_of('"sub.table"') + 1),
        (("rows", 0, "name"), line_of("first")),
        (("rows", 0, "part", "size"), line_of("size = 1")),
        (("rows", 0, "cells", 1, "value"), line_of("value = 2")),
        (("rows", 1), line_of("second") - 1),
        (("rows", 1, "cells", 0, "value"), line_of("value = 3")),
        (("rows", 1, "part", "size"), line_of("size = 2")),
    ],
)
def test_a_key_is_found_at_its_line(path: KeyPath, line: int) -> None:
    assert TomlFile("x.toml", DOCUMENT).line(path) == line


def test_what_has_no_line_of_its_own_has_that_of_what_is_around_it() -> None:
    toml = TomlFile("x.toml", DOCUMENT)
    assert toml.line(("table", "nothing", 3)) == 8
    assert toml.line(("nothing",)) == 1
    assert toml.place(("table", "after")) == f"x.toml:{line_of('after = ')}"


def paths(value: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Where everything in a document is."""
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in inner:
        yield from paths(part, (*path, name))


def test_the_scanner_sees_the_same_document() -> None:
    assert set(key_lines(DOCUMENT)) == set(paths(tomllib.loads(DOCUMENT)))


def test_carriage_returns_make_no_lines() -> None:
    assert key_lines(DOCUMENT.replace("\n", "\r\n")) == key_lines(DOCUMENT)


# Documents by chance: made with every key on a line that is known -------------------------------------------

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=8)
KEYS = st.one_of(st.from_regex(r"[A-Za-z0-9_-]{1,6}", fullmatch=True), TEXT)
LEAVES = st.one_of(st.integers(-9, 9), st.booleans(), TEXT, st.sampled_from(["a\nb", '"""', "'''", "x = [\n#", '\\"']))
VALUES = st.recursive(
    LEAVES, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3))
)
TABLES = st.dictionaries(KEYS, VALUES, max_size=4)


def written_key(key: str, draw: Any) -> str:
    if (
        key
        and all(character.isascii() and (character.isalnum() or character in "_-") for character in key)
        and draw(st.booleans())
    ):
        return key
    if "'" not in key and draw(st.booleans()):
        return f"'{key}'"
    return json.dumps(key, ensure_ascii=False).replace("\x7f", "\\u007F")


def written_value(value: Any, draw: Any) -> str:
    if isinstance(value, bool | int):
        return str(value).lower()
    if isinstance(value, str):
        escaped = json.dumps(value, ensure_ascii=False)[1:-1]
        if draw(st.booleans()):
            # The escape before each line's end goes: the newline stands for itself.
            return '"""\n' + escaped.replace("\\n", "\n") + '"""'
        return f'"{escaped}"'
    gap: str = draw(st.sampled_from(["", " ", "\n", " # no ] or } or key = 1\n"]))
    if isinstance(value, list):
        return "[" + "".join(f"{gap}{written_value(part, draw)}{gap}," for part in value) + gap + "]"
    pairs = (f"{written_key(name, draw)} = {written_value(part, draw)}" for name, part in value.items())
    return "{ " + ", ".join(pairs) + " }"


@given(st.data(), st.lists(st.tuples(KEYS, TABLES), max_size=4, unique_by=lambda pair: pair[0]))
def test_any_document_is_scanned_as_it_is_read(data: st.DataObject, tables: list[tuple[str, dict[str, Any]]]) -> None:
    text = ""
    expected: dict[KeyPath, int] = {}
    for name, table in tables:
        text += f"[{written_key(name, data.draw)}]\n"
        expected[(name,)] = text.count("\n")
        for key, value in table.items():
            expected[name, key] = text.count("\n") + 1
            text += f"{written_key(key, data.draw)} = {written_value(value, data.draw)}\n"
    document = tomllib.loads(text)
    assert document == dict(tables)
    lines = key_lines(text)
    assert set(lines) == set(paths(document))
    assert {path: lines[path] for path in expected} == expected


# Files that cannot be read ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a = 1\nb = \n", "x.toml:2: Invalid value"),
        ("a = 1\na = 2\n", "x.toml:2: Cannot overwrite a value"),
        ("a = [1,\n2\n", "x.toml:2: Unclosed array"),
        ('a = "x', "x.toml:1: Unterminated string"),
    ],
)
def test_a_mistake_of_syntax_is_told_with_its_line(text: str, problem: str) -> None:
    with pytest.raises(FileProblems) as raised:
        TomlFile("x.toml", text)
    assert raised.value.problems == [problem]


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(FileProblems, match=r"nested too deeply"):
        TomlFile("x.toml", "a = " + "[" * 20_000 + "]" * 20_000)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileProblems, match=r"none\.toml: No such file"):
        read_toml(tmp_path / "none.toml")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileProblems, match="Is a directory"):
        read_toml(tmp_path)


def test_text_that_is_not_utf8_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_bytes(b'a = 1\nb = "\xff"\n')
    with pytest.raises(FileProblems, match=r"x\.toml:2: this is not UTF-8 text"):
        read_toml(tmp_path / "x.toml")


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "x.toml").open("wb") as file:
        file.truncate(FILE_BYTES_MAX + 1)
    with pytest.raises(FileProblems, match="the limit is"):
        read_toml(tmp_path / "x.toml")
