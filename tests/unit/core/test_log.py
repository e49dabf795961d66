"""The log in memory: tail, pages, what is missing, and what must never be forgotten."""

from __future__ import annotations

import pytest

from penstock.batch import encode
from penstock.core import log as module
from penstock.core.log import Log, Missing
from penstock.model import Message
from penstock.model.rows import BatchHead


def head(base: int, count: int = 2, meta: bytes = b"") -> BatchHead:
    return BatchHead(base, count, 1, base + count, count, meta)


def bases(log: Log) -> list[int]:
    return [segment.base for segment in log.tail]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TAIL_SEGMENTS_MAX", 4)
    monkeypatch.setattr(module, "TAIL_META_BYTES_MAX", 100)
    monkeypatch.setattr(module, "PAGES_MAX", 2)


def test_an_empty_log_has_nothing() -> None:
    assert Log().peek(0) is None
    with pytest.raises(Missing) as caught:
        Log().find(5)
    assert caught.value.start == 5


def test_the_tail_is_bounded_by_segments() -> None:
    log = Log()
    for index in range(9):
        log.append(head(2 * index), 2 * index)
    assert bases(log) == [10, 12, 14, 16]
    assert log.find(17).base == 16
    assert log.peek(18) is None
    with pytest.raises(Missing):
        log.find(9)


def test_the_tail_is_bounded_by_bytes() -> None:
    log = Log()
    meta = encode([Message(key="k" * 60)]).meta
    for index in range(20):
        log.append(head(index, 1, meta), index)
    assert log.tail_bytes == sum(len(segment.meta) for segment in log.tail) <= 200 + len(meta)
    big = encode([Message(key=str(index) * 100, trace_id="t" * 200) for index in range(5)]).meta
    log.append(head(20, 5, big), 20)
    assert bases(log)[-1] == 20


def test_what_is_not_committed_is_never_forgotten() -> None:
    log = Log()
    for index in range(50):
        log.append(head(2 * index), 20)
    assert bases(log)[0] == 20
    log.append(head(100), 100)
    assert bases(log) == [94, 96, 98, 100]


def test_pages_make_room_for_each_other() -> None:
    log = Log()
    log.feed([head(0), head(2)])
    log.feed([head(10)])
    assert log.find(3).base == 2  # used last: the other one goes
    log.feed([head(20)])
    assert log.peek(10) is None
    assert log.find(0).base == 0
    log.feed([])
    assert len(log.pages) == 2


def test_what_was_trimmed_is_forgotten() -> None:
    log = Log()
    log.feed([head(0)])
    for index in range(1, 4):
        log.append(head(2 * index))
    log.forget_before(6)
    assert log.pages == []
    assert bases(log) == [6]
    assert log.tail_bytes == 0


def test_what_was_found_last_is_forgotten_with_the_rest() -> None:
    log = Log()
    for index in range(3):
        log.append(head(2 * index), 2 * index)
    assert log.find(1) is log.find(0)
    assert log.find(2).base == 2
    log.forget_before(4)
    assert log.peek(2) is None
    assert log.find(5).base == 4


def test_columns_are_decoded_once() -> None:
    log = Log()
    log.append(head(0, 1, encode([Message(partition="p")]).meta))
    segment = log.find(0)
    assert segment.decoded().partition == ["p"]
    assert segment.decoded() is segment.decoded()
