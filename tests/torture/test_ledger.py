"""The torture's judge finds what it must find, and nothing where nothing is."""

from __future__ import annotations

import pytest

from tests.torture.ledger import Ledger
from tests.torture.parties import is_poison


def close(ledger: Ledger, dead: set[str] | None = None, copies: list[str] | None = None, **stored: list[str]) -> None:
    ledger.close({"risky": dead or set()}, copies or [], stored)


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
    published(ledger, "source", "s")
    ledger.deliver("source", ["s"], 1.0)
    ledger.move_ask(["s"], ["s>1"])
    ledger.moved(["s"], ["s>1"])
    acked(ledger, "moved", "s>1")
    published(ledger, "later", "l", due=9.0)
    acked(ledger, "later", "l")
    published(ledger, "risky", "r")
    ledger.deliver("risky", ["r"], 1.0)
    close(ledger, {"r"}, ["r"], p0=["p0.0", "p0.1"])
    assert ledger.faults == []


def test_lost() -> None:
    ledger = Ledger()
    published(ledger, "source", "s")
    close(ledger)
    assert "source: s was confirmed and never delivered" in ledger.faults


def test_delivered_and_then_gone() -> None:
    ledger = Ledger()
    published(ledger, "source", "s")
    ledger.deliver("source", ["s"], 1.0)
    close(ledger)
    assert ledger.faults == ["source: s was confirmed, never acked, and is gone"]


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


def test_moved_twice() -> None:
    ledger = Ledger()
    published(ledger, "source", "s")
    ledger.deliver("source", ["s"], 1.0)
    for made in ("s>1", "s>2"):
        ledger.move_ask(["s"], [made])
        ledger.moved(["s"], [made])
        acked(ledger, "moved", made)
    close(ledger)
    assert ledger.faults == ["source: s became ['s>1', 's>2']"]


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
    close(ledger, {"r"}, copies)
    assert ledger.faults == [f"grave: {told}"]


@pytest.mark.parametrize("stored", [["p0.1", "p0.0"], ["p0.0", "p0.0"]])
def test_stored_out_of_order_or_twice(stored: list[str]) -> None:
    ledger = Ledger()
    close(ledger, p0=stored)
    assert ledger.faults == ["ordered: p0 is stored out of order or twice"]


def test_dead_though_acked() -> None:
    ledger = Ledger()
    published(ledger, "risky", "r")
    acked(ledger, "risky", "r")
    close(ledger, {"r"}, ["r"])
    assert ledger.faults == ["risky: r is dead, and its ack was answered"]


def test_some_messages_are_poison() -> None:
    assert 50 < sum(is_poison(f"risky{number}") for number in range(1_000)) < 200
