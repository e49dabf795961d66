"""The torture's judge finds what it must find, and nothing where nothing is."""

from __future__ import annotations

import pytest

from tests.torture.ledger import LATE_S, Ending, Ledger
from tests.torture.party import is_poison


def close(ledger: Ledger, dead: list[str] | None = None, **logs: list[str]) -> None:
    """The end of a run; where no log is given, it holds what was confirmed."""
    stored = {name: sorted(seen.confirmed) for name, seen in ledger.queues.items()} | {"grave": dead or []}
    ledger.close(Ending({"risky": dead or []}, stored | logs))


def moved(ledger: Ledger, name: str, *made: str) -> None:
    published(ledger, "source", name)
    ledger.deliver("source", [name], 1.0)
    for product in made:
        ledger.move_ask("source", [name], [product])
        ledger.moved("source", [name], [product])
        acked(ledger, "moved", product)
        acked(ledger, "echoed", product)


def published(ledger: Ledger, queue: str, *ids: str, due: float | None = None) -> None:
    ledger.ask(queue, list(ids), due)
    ledger.confirm(queue, list(ids))


def acked(ledger: Ledger, queue: str, *ids: str) -> None:
    ledger.deliver(queue, list(ids), 10.0)
    ledger.ack_ask(queue, list(ids))
    ledger.ack(queue, list(ids))


def test_a_run_in_which_all_goes_well() -> None:
    ledger = Ledger()
    published(ledger, "ordered", "p0.0", "p0.1")
    acked(ledger, "ordered", "p0.0", "p0.1")
    moved(ledger, "s", "s>1")
    published(ledger, "later", "l", due=9.0)
    acked(ledger, "later", "l")
    published(ledger, "risky", "r")
    ledger.deliver("risky", ["r"], 1.0)
    published(ledger, "urgent", "2.0", "1.1", "1.2")
    acked(ledger, "urgent", "2.0", "1.1", "1.2")
    published(ledger, "logged", "a", "b", "c")
    ledger.read("audit", 0, ["a", "b"])
    ledger.committed("audit", 1)
    ledger.read("audit", 1, ["b", "c"])
    close(ledger, ["r"])
    assert ledger.faults == []


def test_lost() -> None:
    ledger = Ledger()
    published(ledger, "later", "l")
    close(ledger)
    assert ledger.faults == ["later: l was confirmed and never delivered"]


def test_delivered_and_then_gone() -> None:
    ledger = Ledger()
    published(ledger, "later", "l")
    ledger.deliver("later", ["l"], 1.0)
    close(ledger)
    assert ledger.faults == ["later: l was confirmed, never acked, and is gone"]


def test_never_published() -> None:
    ledger = Ledger()
    ledger.deliver("source", ["x"], 1.0)
    assert ledger.faults == ["source: x was delivered and never published"]


def test_again_after_an_answered_ack() -> None:
    ledger = Ledger()
    published(ledger, "source", "s")
    acked(ledger, "source", "s")
    ledger.deliver("source", ["s"], 11.0)
    assert ledger.faults == ["source: s was delivered after its ack was answered"]


def test_early() -> None:
    ledger = Ledger()
    published(ledger, "later", "l", due=11.5)
    ledger.deliver("later", ["l"], 11.0)
    assert ledger.faults == ["later: l was delivered 0.500 s early"]


@pytest.mark.parametrize("claims", [[["p0.1", "p0.0"]], [["p0.1"]], [["p0.0"], ["p0.1"]]])
def test_out_of_order(claims: list[list[str]]) -> None:
    ledger = Ledger()
    published(ledger, "ordered", "p0.0", "p0.1")
    for claim in claims:
        ledger.deliver("ordered", claim, 1.0)
    assert len(ledger.faults) == 1


def test_after_its_time_to_live() -> None:
    ledger = Ledger()
    ledger.ask("brief", ["b"])
    ledger.confirm("brief", ["b"], 10.0)
    ledger.deliver("brief", ["b"], 15.0, 10.0 + LATE_S)
    assert ledger.faults == []
    ledger.deliver("brief", ["b"], 15.0, 10.5 + LATE_S)
    assert ledger.faults == ["brief: b was asked for 1.500 s after its time, and delivered"]


def test_a_lower_priority_first() -> None:
    ledger = Ledger()
    published(ledger, "urgent", "1.0", "2.1")
    ledger.deliver("urgent", ["1.0", "2.1"], 1.0)
    assert ledger.faults == ["urgent: priorities came as [1, 2]"]


@pytest.mark.parametrize(
    ("first", "ids", "told"),
    [
        (3, ["d"], "audit was given offset 3, and nothing between 2 and that"),
        (0, ["a"], "audit was given offset 0 after its commit of 1 was answered"),
        (1, ["c"], "offset 1 was b and is c"),
        (2, ["x"], "x was read and never published"),
    ],
)
def test_streams(first: int, ids: list[str], told: str) -> None:
    ledger = Ledger()
    published(ledger, "logged", "a", "b", "c", "d")
    ledger.read("audit", 0, ["a", "b"])
    ledger.committed("audit", 1)
    ledger.read("audit", first, ids)
    assert ledger.faults == [f"logged: {told}"]


def test_a_stream_that_was_not_read_to_its_end() -> None:
    ledger = Ledger()
    published(ledger, "logged", "a", "b")
    ledger.read("audit", 0, ["a"])
    close(ledger)
    assert ledger.faults == ["logged: b was confirmed and never given to audit"]


def test_an_offset_that_changed() -> None:
    ledger = Ledger()
    published(ledger, "logged", "a", "b")
    ledger.read("audit", 0, ["a", "b"])
    close(ledger, logged=["b", "a"])
    assert ledger.fault_count == 2


def test_not_moved() -> None:
    ledger = Ledger()
    moved(ledger, "s", "s>1")
    close(ledger, moved=[], echoed=[])
    assert "source: s became []" in ledger.faults


def test_moved_twice() -> None:
    ledger = Ledger()
    moved(ledger, "s", "s>1", "s>2")
    close(ledger)
    assert ledger.faults == ["source: s became ['s>1', 's>2']"]


def test_moved_by_half() -> None:
    ledger = Ledger()
    moved(ledger, "s", "s>1")
    close(ledger, echoed=[])
    assert "source: 1 products are in one of two queues: ['s>1']" in ledger.faults


@pytest.mark.parametrize(
    ("stored", "told"),
    [
        ([], "l was confirmed and is not in the log"),
        (["l", "l"], "1 messages are stored twice"),
        (["l", "x"], "x is in the log and was never published"),
    ],
)
def test_a_log_that_is_not_what_was_confirmed(stored: list[str], told: str) -> None:
    ledger = Ledger()
    published(ledger, "later", "l")
    acked(ledger, "later", "l")
    close(ledger, later=stored)
    assert ledger.faults == [f"later: {told}"]


@pytest.mark.parametrize(
    ("copies", "told"),
    [
        ([], "1 dead letters without a copy, 0 copied twice, 0 alive"),
        (["r", "r"], "0 dead letters without a copy, 1 copied twice, 0 alive"),
        (["r", "x"], "0 dead letters without a copy, 0 copied twice, 1 alive"),
    ],
)
def test_copies_of_dead_letters(copies: list[str], told: str) -> None:
    ledger = Ledger()
    close(ledger, ["r"], grave=copies)
    assert ledger.faults == [f"grave: {told}"]


@pytest.mark.parametrize(("stored", "is_kept"), [(["a", "x", "b"], True), (["a", "b", "a"], True), (["b", "a"], False)])
def test_the_order_of_one_connection(stored: list[str], is_kept: bool) -> None:
    """Of what is stored twice, the first counts."""
    ledger = Ledger()
    published(ledger, "readings", "a", "b", "x")
    acked(ledger, "readings", "a", "b", "x")
    ledger.sent_again.update("abx")
    ledger.in_line("readings", "connection 3", ["a"])
    ledger.in_line("readings", "connection 3", ["b"])
    close(ledger, readings=[*stored, "x"])
    told = "readings: of connection 3, b is stored before a"
    assert ledger.faults == ([] if is_kept else [told])


def test_what_was_sent_again_may_be_there_twice() -> None:
    ledger = Ledger()
    for name in ("a", "b"):
        published(ledger, "readings", name)
        acked(ledger, "readings", name)
    ledger.sent_again.add("a")
    ledger.deliver("readings", ["a"], 11.0)
    close(ledger, readings=["a", "b", "a"])
    assert (ledger.faults, ledger.stored_twice) == ([], {"readings": 1})
    close(ledger, readings=["a", "b", "a", "b"])
    assert ledger.faults == ["readings: 1 messages are stored twice"]


def test_twice_where_once_is_promised() -> None:
    ledger = Ledger()
    for queue in ("readings/subscriber", "commands/subscriber"):
        published(ledger, queue, "m")
        ledger.deliver(queue, ["m"], 1.0)
        ledger.deliver(queue, ["m"], 2.0)
    assert ledger.faults == ["commands/subscriber: m was delivered twice"]


@pytest.mark.parametrize("stored", [["p0.1", "p0.0"], ["p0.0", "p0.0"]])
def test_stored_out_of_order_or_twice(stored: list[str]) -> None:
    ledger = Ledger()
    close(ledger, ordered=stored)
    assert ledger.faults == ["ordered: p0 is stored out of order or twice"]


def test_dead_though_acked() -> None:
    ledger = Ledger()
    published(ledger, "risky", "r")
    acked(ledger, "risky", "r")
    close(ledger, ["r"])
    assert ledger.faults == ["risky: r is dead, and its ack was answered"]


def test_some_messages_are_poison() -> None:
    assert 50 < sum(is_poison(f"risky{number}") for number in range(1_000)) < 200
