"""A place of its own for each test that wants one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.enqueue.rig import Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)
