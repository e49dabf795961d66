"""Stores for the tests of several servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.databases import mariadb, postgres


@pytest.fixture(params=["postgres", "mysql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of each kind that several servers can share."""
    if request.param == "postgres":
        return postgres.schema_url(tmp_path)
    if not mariadb.is_there():
        pytest.skip(mariadb.MISSING)
    return mariadb.database_url(tmp_path)
