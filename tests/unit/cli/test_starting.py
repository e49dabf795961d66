"""How `penstock serve` starts its fronts while other servers of the store come and go."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from typing import cast

import pytest

from penstock.cli.serve import fronts
from penstock.cli.serve.fronts import CannotStart, listen, patiently
from penstock.fronts.front import Front
from penstock.model.errors import InvalidArgument, PenstockError, Unavailable


class Reluctant:
    """A front that cannot start a few times."""

    def __init__(self, *errors: PenstockError) -> None:
        self._errors = list(errors)
        self.stops = 0

    async def start(self) -> None:
        if self._errors:
            raise self._errors.pop(0)

    async def stop(self) -> None:
        self.stops += 1


async def started(front: Reluctant, patience_s: float) -> None:
    async with AsyncExitStack() as stack:
        await patiently(partial(listen, stack, "mqtt", cast("Front", front)), patience_s)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fronts, "AGAIN_S", 0.0)


def test_what_other_servers_cannot_do_now_is_asked_for_again() -> None:
    """Each server that ends because of that would take its queues with it, and be the next one's reason to end."""
    front = Reluctant(Unavailable("slot 0 is owned by nobody now"), Unavailable("not the owner any more"))
    asyncio.run(started(front, 60.0))
    assert front.stops == 1


@pytest.mark.parametrize(
    ("error", "patience_s"), [(Unavailable("slot 0 is owned by nobody now"), 0.0), (InvalidArgument("no"), 60.0)]
)
def test_not_for_ever_and_nothing_else(error: PenstockError, patience_s: float) -> None:
    front = Reluctant(error)
    with pytest.raises(CannotStart, match=str(error)):
        asyncio.run(started(front, patience_s))
    assert front.stops == 0
