"""The grammar of filters: from text to lark's tree, and errors that show the text with a caret under the column.

May not know: the AST, limits on anything but a shown line, or what a condition means. Text of a user is never
evaluated as Python.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, cast

from lark import Lark, Token, Tree, UnexpectedInput
from lark.exceptions import UnexpectedToken

from penstock.model.errors import InvalidFilter

Node = Tree[Token]
_LINE_SHOWN_MAX: Final = 100

_GRAMMAR: Final = r"""
?start: disjunction
?disjunction: conjunction (_OR conjunction)*
?conjunction: negation (_AND negation)*
?negation: predicate
    | NOT negation -> inversion
?predicate: sum
    | sum COMPARISON sum -> comparison
    | sum [NOT] _BETWEEN sum _AND sum -> between
    | sum [NOT] _IN "(" literal ("," literal)* ")" -> membership
    | sum [NOT] _LIKE STRING [_ESCAPE STRING] -> like
    | sum _IS [NOT] _NULL -> is_null
?sum: product ((PLUS | MINUS) product)*
?product: unary ((TIMES | DIVIDE) unary)*
?unary: atom
    | (PLUS | MINUS) unary -> signed
?atom: constant
    | NAME -> header
    | QUOTED -> quoted
    | PROPERTY -> property
    | "(" disjunction ")" -> group
?literal: constant
    | (PLUS | MINUS) number -> signed
?constant: number
    | STRING -> text
    | TRUE -> boolean
    | FALSE -> boolean
?number: INTEGER -> integer
    | FLOAT -> float

COMPARISON: "<>" | "!=" | "<=" | ">=" | "=" | "<" | ">"
PLUS: "+"
MINUS: "-"
TIMES: "*"
DIVIDE: "/"
STRING: /'(?:[^']|'')*'/
QUOTED: /"(?:[^"]|"")*"/
PROPERTY: /\$\w*/
NAME: /[^\W\d]\w*(?:\.\w+)*/
FLOAT.1: /(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+/
INTEGER: /[0-9]+/
%ignore /[ \t\r\n\f]+/
"""

_KEYWORDS: Final = ("AND", "BETWEEN", "ESCAPE", "FALSE", "IN", "IS", "LIKE", "NOT", "NULL", "OR", "TRUE")
_KEYWORDS_KEPT: Final = ("FALSE", "NOT", "TRUE")

_VALUE_TERMINALS: Final = frozenset(
    {"NAME", "QUOTED", "PROPERTY", "STRING", "INTEGER", "FLOAT", "TRUE", "FALSE", "PLUS", "MINUS", "LPAR"}
)
_TERMINAL_WORDS: Final = {
    "COMPARISON": "a comparison",
    "STRING": "a string in single quotes",
    "INTEGER": "a number",
    "FLOAT": "a number",
    "PLUS": "'+'",
    "MINUS": "'-'",
    "TIMES": "'*'",
    "DIVIDE": "'/'",
    "LPAR": "'('",
    "RPAR": "')'",
    "COMMA": "','",
    "$END": "the end",
}


def _keyword(word: str) -> str:
    """A terminal of ASCII letters in any case; not the beginning of a longer name."""
    # The `i` flag would take letters beyond ASCII too: the dotless ı for an i, the long ſ for an s.
    letters = "".join(f"[{letter}{letter.lower()}]" for letter in word)
    return f"{word if word in _KEYWORDS_KEPT else '_' + word}.2: /{letters}(?!\\.?\\w)/\n"


@lru_cache(maxsize=1)
def _parser() -> Lark:
    grammar = _GRAMMAR + "".join(_keyword(word) for word in _KEYWORDS)
    return Lark(grammar, parser="lalr", lexer="basic", propagate_positions=True, maybe_placeholders=True)


def tree_of(text: str) -> Node:
    """The parse tree of a text, or InvalidFilter."""
    for position, character in enumerate(text):
        if 0xD800 <= ord(character) <= 0xDFFF:
            raise invalid(text, position, "a lone surrogate is not text")
    if not text.strip():
        raise invalid(text, len(text), "the filter is empty; TRUE matches every message")
    try:
        return _parser().parse(text)
    except UnexpectedInput as error:
        raise _syntax_error(text, error) from None


# Errors --------------------------------------------------------------------------------------------------


def invalid(text: str, position: int, reason: str) -> InvalidFilter:
    """The reason, the line of the text (shortened around the place if long) and a caret under the column."""
    line_start = text.rfind("\n", 0, position) + 1
    line_end = text.find("\n", position)
    line_end = len(text) if line_end < 0 else line_end
    shown_start = max(line_start, min(position - _LINE_SHOWN_MAX // 2, line_end - _LINE_SHOWN_MAX))
    shown_end = min(line_end, shown_start + _LINE_SHOWN_MAX)
    before, after = "…" * (shown_start > line_start), "…" * (shown_end < line_end)
    # A tab or control character would move the caret away from its column.
    line = "".join(char if char.isprintable() else " " for char in text[shown_start:shown_end])
    caret = " " * (len(before) + position - shown_start) + "^"
    where = f"column {position - line_start + 1}"
    if line_start > 0:
        where = f"line {text.count(chr(10), 0, position) + 1}, {where}"
    return InvalidFilter(f"{reason}\n  {before}{line}{after}\n  {caret} {where}", position + 1)


def _syntax_error(text: str, error: UnexpectedInput) -> InvalidFilter:
    accepted: set[str] = cast("Any", error).interactive_parser.accepts()
    if isinstance(error, UnexpectedToken) and error.token.type == "$END":
        return invalid(text, len(text), f"the filter ends too early; expected {_expectation(accepted)}")
    position = cast("int", error.pos_in_stream)
    found = repr(str(error.token) if isinstance(error, UnexpectedToken) else text[position])
    if found == repr("'"):
        return invalid(text, position, "the string that begins here is not closed")
    if found == repr('"'):
        return invalid(text, position, "the quoted name that begins here is not closed")
    if len(found) > 40:
        found = found[:39] + "…"
    return invalid(text, position, f"unexpected {found}; expected {_expectation(accepted)}")


def _expectation(accepted: set[str]) -> str:
    words = set()
    if "NAME" in accepted:
        accepted = accepted - _VALUE_TERMINALS
        words.add("a value")
    words |= {_TERMINAL_WORDS.get(name, name.lstrip("_")) for name in accepted}
    *most, last = sorted(words, key=lambda word: (word != "a value", word == "the end", word))
    return f"{', '.join(most)} or {last}" if most else last
