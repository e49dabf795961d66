"""The places that scenarios play in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.memory_disk import MemoryDisk
from tests.one_slot import OneSlotStore
from tests.scenarios.overlapping import OverlappingStore
from tests.scenarios.rig import Home

KINDS: dict[str, type[MemoryDisk]] = {
    "memory": MemoryDisk,
    "memory, four commits under way": OverlappingStore,
    "memory, one slot at a time": OneSlotStore,
}


@pytest.fixture(params=["sqlite", *KINDS])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    """Each scenario runs on each engine, on one that can do several commits at once, and on one of a slot at a time."""
    if request.param == "sqlite":
        return Home(tmp_path / "penstock.db")
    return Home(None, KINDS[request.param])


@pytest.fixture(params=["sqlite", "memory", "memory, four commits under way"])
def whole_home(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    """For what one commit may hold only where it may be of several slots."""
    return Home(tmp_path / "penstock.db") if request.param == "sqlite" else Home(None, KINDS[request.param])


@pytest.fixture
def file_home(tmp_path: Path) -> Home:
    """For what only a file can show."""
    return Home(tmp_path / "penstock.db")


@pytest.fixture
def memory_home() -> Home:
    """For what does not depend on the engine."""
    return Home(None)
