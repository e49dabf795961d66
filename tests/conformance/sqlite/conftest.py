"""Fixtures of the SQLite engine's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.store.sqlite import index
from penstock.store.sqlite.log import segments


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "penstock.db"


@pytest.fixture
def lazy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing goes into the tables unless a read asks for it."""
    monkeypatch.setattr(index, "INDEX_SECONDS", 3600.0)


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(segments, "SEGMENT_BYTES_FIRST", 1 << 16)
    monkeypatch.setattr(segments, "SEGMENT_BYTES_MOST", 1 << 16)
    return 1 << 16
