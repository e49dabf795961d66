"""What cannot work is said before Spark starts: jobs check their options without it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.cli.connection import ServerAddress
from penstock.cli.pipeline import running
from penstock.model.errors import InvalidArgument, NotFound
from penstock.spark import session
from penstock.spark.jobs.compact import job as compact
from penstock.spark.jobs.compact.job import CompactOptions
from penstock.spark.jobs.stats import job as stats
from penstock.spark.jobs.stats.job import StatsOptions
from penstock.spark.lake.errors import LakeMissing
from penstock.spark.lake.storage import Storage
from tests.unit.spark.lake.generated_rows import rows
from tests.unit.spark.lake.test_lake import archive, opened


def options(lake: Path, **more: Any) -> StatsOptions:
    return StatsOptions(lake=str(lake), **more)


def test_stats_on_nothing_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(LakeMissing, match=r"there is no lake at .*: archive something first \(penstock"):
        stats.check(options(tmp_path / "nothing"))
    table = opened(Storage(str(tmp_path / "lake")).under("messages"))
    with pytest.raises(LakeMissing, match=r"nothing is in the lake at .* yet: archive something first"):
        stats.check(options(tmp_path / "lake"))
    archive(table, rows(0, 3))
    stats.check(options(tmp_path / "lake"))
    stats.check(options(tmp_path / "lake", queues="ord*"))
    with pytest.raises(NotFound, match=r"has nothing of queue 'ordres': did you mean orders\?"):
        stats.check(options(tmp_path / "lake", queues="ordres"))
    with pytest.raises(NotFound, match=r"has no queue called 'mail\.\*': there are orders"):
        stats.check(options(tmp_path / "lake", queues="mail.*"))
    with pytest.raises(InvalidArgument, match="reasons is 0"):
        stats.check(options(tmp_path / "lake", reasons=0))


def test_compact_on_nothing_says_so(tmp_path: Path) -> None:
    with pytest.raises(LakeMissing, match="there is no lake at"):
        compact.check(CompactOptions(lake=str(tmp_path)))
    opened(Storage(str(tmp_path)).under("messages"))
    assert list(compact.check(CompactOptions(lake=str(tmp_path)))) == ["messages"]


def test_a_job_is_checked_before_spark_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_options: object) -> None:
        raise NotFound("there is no queue 'again'")

    def start(*_arguments: object, **_named: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(session, "spark_session", start)
    module: Any = SimpleNamespace(check=refuse, run=start)
    place = running.JobContext(ServerAddress("http://127.0.0.1:1", "", "default"), None, {}, False)
    with pytest.raises(NotFound, match="again"):
        running.run_in_session(running.Job("replay", {}, "id", "what"), place, module, None, None)
