"""A batch's limit of bytes, small enough that tests go up to it and past it."""

from __future__ import annotations

import pytest

from penstock.batch import body, guards
from penstock.model import BATCH_BYTES_DEFAULT


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (body, guards):
        monkeypatch.setattr(module, "BATCH_BYTES_MAX", BATCH_BYTES_DEFAULT)
