"""The place that these tests play in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.rig import Home


@pytest.fixture
def file_home(tmp_path: Path) -> Home:
    return Home(tmp_path / "penstock.db")
