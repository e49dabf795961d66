"""How the tests are shared out among workers, for `penstock test`.

The tests of tests/spark share one Spark session, whose JVM takes seconds to start and half a gigabyte to keep: they go
to one worker as a whole, and first, for they take longest. All others go one by one to whoever is free.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

TOGETHER: Final = "tests/spark/"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """What `--dist loadgroup` means here: pytest-xdist's own goes by marks, and needs a pytest older than ours."""
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = unit_of
    return scheduler


def unit_of(test: str) -> str:
    """Tests of the same unit go to the same worker."""
    return TOGETHER if test.startswith(TOGETHER) else test
