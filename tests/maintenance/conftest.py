"""A store with a little of everything, for each test a copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.maintenance.rig import copy_files, make


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made once; tests change copies."""
    path = tmp_path_factory.mktemp("made") / "penstock.db"
    make(str(path))
    return path


@pytest.fixture
def path(made: Path, tmp_path: Path) -> Path:
    return copy_files(made, tmp_path / "store")
