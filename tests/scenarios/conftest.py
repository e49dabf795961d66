"""The places that scenarios play in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.memory_disk import MemoryDisk
from tests.scenarios.overlapping import OverlappingStore
from tests.scenarios.rig import Home


@pytest.fixture(params=["sqlite", "memory", "memory, four commits under way"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    """Each scenario runs on each engine, and on one that can do several commits at once."""
    path = tmp_path / "penstock.db" if request.param == "sqlite" else None
    return Home(path, OverlappingStore if "four" in request.param else MemoryDisk)


@pytest.fixture
def file_home(tmp_path: Path) -> Home:
    """For what only a file can show."""
    return Home(tmp_path / "penstock.db")


@pytest.fixture
def memory_home() -> Home:
    """For what does not depend on the engine."""
    return Home(None)
