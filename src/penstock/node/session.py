"""The identity of a session: leases, attached consumers and exclusive queues carry it.

What ends with a session, and how, is in `consume/sessions.py`.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.model import check_name
from penstock.model.errors import InvalidArgument


class Session(NamedTuple):
    """Which process has the session, and its name there."""

    holder: int
    """The process's incarnation."""
    name: str

    def __str__(self) -> str:
        """As leases store it and nodes send it to each other."""
        return f"{self.holder}.{self.name}"

    @classmethod
    def parse(cls, text: str) -> Session:
        """The session of `str(session)`."""
        holder, _, name = text.partition(".")
        if not (holder.isascii() and holder.isdigit() and len(holder) < 20):
            raise InvalidArgument(f"{text[:64]!r} is no session: it does not begin with a process's number")
        return cls(int(holder), check_name(name, "a session"))
