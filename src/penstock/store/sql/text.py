"""Text for databases whose text cannot hold every character: PostgreSQL's has no NUL.

Text without one is kept as it is, so that a person reads it in the table; the rest is marked and escaped, and comes
back as it was.
"""

from __future__ import annotations

from typing import Final

_MARK: Final = "\x01"


def kept(text: str) -> str:
    """What the database keeps for a text."""
    if "\0" not in text and not text.startswith(_MARK):
        return text
    return _MARK + text.replace("\\", "\\\\").replace("\0", "\\0")


def restored(text: str) -> str:
    """The text that was kept."""
    if not text.startswith(_MARK):
        return text
    return "\\".join(part.replace("\\0", "\0") for part in text[1:].split("\\\\"))
