"""Why a server does not start: one line for people, told by `command.py`."""

from __future__ import annotations


class CannotStart(Exception):
    """Why the server does not start, and what to do."""
