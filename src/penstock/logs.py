"""Log lines of the server: text for people, JSON for programs, each with the request that it belongs to.

Modules log through `logging` as ever; `set_up` decides how that looks. Whatever is passed as `extra` becomes a field of
the line. It may not know who logs, or why.
"""

from __future__ import annotations

import datetime as dt
import logging
import sys
from contextvars import ContextVar
from typing import Any, Final, Literal, TextIO

import msgspec

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""The request that is being answered; empty outside of one."""

_OWN: Final = frozenset(
    {*logging.LogRecord("", 0, "", 0, "", None, None).__dict__, "message", "asctime", "taskName", "request_id"}
)


def set_up(level: str, form: Literal["text", "json"], stream: TextIO | None = None) -> logging.Handler:
    """Write what `penstock` logs from a level on, and warnings of all others. Calling it again replaces the first."""
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if isinstance(handler.formatter, _Lines)]:
        root.removeHandler(old)
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("penstock").setLevel(level.upper())
    return handler


class _Lines(logging.Formatter):
    """What both kinds of lines are made of."""

    def fields(self, record: logging.LogRecord) -> dict[str, Any]:
        """What was passed as `extra`."""
        return {name: value for name, value in record.__dict__.items() if name not in _OWN}

    def request(self, record: logging.LogRecord) -> str:
        """One that was passed on is right also where the line is written outside of its request."""
        return str(getattr(record, "request_id", "") or request_id.get())

    def trace(self, record: logging.LogRecord) -> str:
        return self.formatException(record.exc_info) if record.exc_info else ""

    def time(self, record: logging.LogRecord) -> dt.datetime:
        return dt.datetime.fromtimestamp(record.created, dt.UTC)


class TextLines(_Lines):
    """`2026-01-31 12:00:00.123 INFO  penstock.node: the message (name=value, request …)`, times in UTC."""

    def format(self, record: logging.LogRecord) -> str:
        time = self.time(record).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        notes = [f"{name}={value}" for name, value in self.fields(record).items()]
        if request := self.request(record):
            notes.append(f"request {request}")
        note = f" ({', '.join(notes)})" if notes else ""
        # One event, one line: text from a client must not be able to forge log lines.
        message = _on_one_line(f"{record.getMessage()}{note}")
        trace = self.trace(record)
        line = f"{time} {record.levelname:<7} {record.name}: {message}"
        return f"{line}\n{trace}" if trace else line


class JsonLines(_Lines):
    """One object a line: time, level, logger, message, request_id and exception where there is one, and the extras."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": self.time(record).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request := self.request(record):
            line["request_id"] = request
        if trace := self.trace(record):
            line["exception"] = trace
        for name, value in self.fields(record).items():
            line.setdefault(name, value)
        return _encoder.encode(line).decode()


_encoder: Final = msgspec.json.Encoder(enc_hook=str)
_ESCAPES: Final = {code: f"\\x{code:02x}" for code in (*range(32), 127)}


def _on_one_line(text: str) -> str:
    return text.translate(_ESCAPES)
