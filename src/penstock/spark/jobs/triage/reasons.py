"""Error texts made comparable: what differs from one failure to the next becomes a placeholder.

`no route to 10.0.0.7 for order 4711` and `no route to 10.0.0.8 for order 4712` are the same trouble. The rules are one
list of patterns, applied by Spark's own functions: millions of texts need no Python.

May not know: where the texts come from.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

READ_CHARACTERS: Final = 2_000
"""Of a text, so much is looked at; of a traceback its last line, wherever that is."""
SHOWN_CHARACTERS: Final = 300
TRACEBACK: Final = "Traceback (most recent call last)"
LAST_LINE: Final = r"([^\n]*\S)\s*$"

RULES: Final = (
    (r"\b[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]+", "<url>"),
    (r"[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+", "<email>"),
    (r"\b[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}\b", "<uuid>"),
    (r"\"[^\"]*\"", "<text>"),
    # An apostrophe inside a word, as in "can't", begins no quotation.
    (r"(?<![A-Za-z0-9_])'[^']*'(?![A-Za-z0-9_])", "<text>"),
    (r"`[^`]*`", "<text>"),
    (r"(?<![A-Za-z0-9_<])(?:[A-Za-z]:)?(?:[/\\][A-Za-z0-9_.@%+~-]+)+[/\\]?", "<path>"),
    (r"\b0[xX][0-9A-Fa-f]+\b", "<hex>"),
    # Eight or more hexadecimal digits, of which one is a letter and one is not: an id, and hardly a word.
    (r"\b(?=[0-9]*[A-Fa-f])(?=[A-Fa-f]*[0-9])[0-9A-Fa-f]{8,}\b", "<hex>"),
    (r"[+-]?\b[0-9]+(?:[.,:][0-9]+)*", "<number>"),
    (r"[ \t\r\n\f\x0B]+", " "),
)
"""Patterns of Java's, in this order: what an earlier one took, a later one does not see."""


def normalised(text: Column) -> Column:
    """The column with what differs replaced; null stays null."""
    last_line = F.regexp_extract(F.substring(text, -READ_CHARACTERS, READ_CHARACTERS), LAST_LINE, 1)
    found = F.when(F.contains(text, F.lit(TRACEBACK)), last_line).otherwise(F.substring(text, 1, READ_CHARACTERS))
    for pattern, placeholder in RULES:
        found = F.regexp_replace(found, F.lit(pattern), F.lit(placeholder))
    return F.trim(F.substring(F.trim(found), 1, SHOWN_CHARACTERS))
