"""Log lines: what is in them, and that each is one line."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Literal

import pytest

from penstock import logs

log = logging.getLogger("penstock.somewhere")


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("penstock")
    before = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:], root.level = before[0], before[1]
    ours.setLevel(before[2])


def lines_of(form: Literal["text", "json"], level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    logs.set_up(level, form, stream)
    return stream


def test_a_line_for_people() -> None:
    stream = lines_of("text")
    log.warning("queue %s is full", "a", extra={"depth": 3})
    time, rest = stream.getvalue()[:23], stream.getvalue()[23:]
    assert time[4] == "-"
    assert time[19] == "."
    assert rest == " WARNING penstock.somewhere: queue a is full (depth=3)\n"


def test_a_line_for_programs() -> None:
    stream = lines_of("json")
    token = logs.request_id.set("abc-1")
    log.info("done", extra={"status": 200, "level": "not mine to say"})
    logs.request_id.reset(token)
    line = json.loads(stream.getvalue())
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "penstock.somewhere",
        "message": "done",
        "request_id": "abc-1",
        "status": 200,
    }


def test_a_request_can_be_passed_on() -> None:
    stream = lines_of("text")
    log.info("later", extra={"request_id": "abc-2"})
    assert stream.getvalue().endswith("later (request abc-2)\n")


@pytest.mark.parametrize("form", ["text", "json"])
def test_nobody_can_write_lines_of_their_own(form: Literal["text", "json"]) -> None:
    stream = lines_of(form)
    log.info("no queue %s", "a\n2026-01-01 forged\r\x1b[2J", extra={"peer": "x\ny"})
    assert stream.getvalue().count("\n") == 1
    assert "\x1b" not in stream.getvalue()
    assert "\r" not in stream.getvalue()


@pytest.mark.parametrize("form", ["text", "json"])
def test_an_exception_comes_with_its_trace(form: Literal["text", "json"]) -> None:
    stream = lines_of(form)
    try:
        raise ValueError("broken")
    except ValueError:
        log.exception("failed")
    text = json.loads(stream.getvalue())["exception"] if form == "json" else stream.getvalue()
    assert "Traceback" in text
    assert "ValueError: broken" in text


def test_the_level_is_ours_alone() -> None:
    stream = lines_of("text", "debug")
    log.debug("ours")
    logging.getLogger("another.library").info("theirs")
    logging.getLogger("another.library").warning("their warning")
    assert [line.rpartition(": ")[2] for line in stream.getvalue().splitlines()] == ["ours", "their warning"]


def test_setting_up_again_replaces() -> None:
    first = lines_of("text")
    second = lines_of("json", "error")
    log.warning("quiet")
    log.error("loud")
    assert first.getvalue() == ""
    assert json.loads(second.getvalue())["message"] == "loud"


def test_what_json_does_not_have_is_written_as_text() -> None:
    stream = lines_of("json")
    log.info("x", extra={"problem": ValueError("odd")})
    assert json.loads(stream.getvalue())["problem"] == "odd"
