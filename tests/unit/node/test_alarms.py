"""Alarms: where they begin and end, what waits and what is refused; what Linux says of memory."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from penstock.model.errors import ResourceAlarm
from penstock.node.alarms import WAITER_BYTES, WAITING_BYTES_MAX, Alarms
from penstock.node.limits import Limits
from penstock.node.observe import resources

MIB = 1 << 20
FOLDER = Path("somewhere")


def alarms(wait: float = 0.0) -> Alarms:
    """The memory mark is at 1,000 MiB, the disk's floor at 100 MiB."""
    made = Alarms(Limits(disk_free_bytes=100 * MIB, alarm_wait=wait), {"store": FOLDER}, lambda: None)
    made.memory_mark = 1_000 * MIB
    return made


def test_memory_at_the_mark_is_fine_and_one_past_it_is_not() -> None:
    made = alarms()
    made.judge_memory(1_000 * MIB)
    made.check()
    made.judge_memory(1_000 * MIB + 1)
    with pytest.raises(ResourceAlarm, match="memory is low"):
        made.check()


def test_an_alarm_of_memory_ends_a_tenth_below_the_mark() -> None:
    made = alarms()
    made.judge_memory(1_001 * MIB)
    made.judge_memory(900 * MIB + 1)
    assert made.low
    made.judge_memory(900 * MIB)
    assert not made.low


def test_a_disk_at_its_floor_is_fine_and_one_below_it_is_not_until_a_quarter_more_is_free() -> None:
    made = alarms()
    made.judge_disk("store", 100 * MIB, FOLDER)
    assert not made.low
    made.judge_disk("store", 100 * MIB - 1, FOLDER)
    assert "the store's disk is low" in made.low[0]
    made.judge_disk("store", 125 * MIB - 1, FOLDER)
    assert made.low
    made.judge_disk("store", 125 * MIB, FOLDER)
    assert not made.low


def test_two_alarms_are_told_together_and_end_one_by_one() -> None:
    made = alarms()
    made.judge_memory(2_000 * MIB)
    made.judge_disk("store", 0, FOLDER)
    with pytest.raises(ResourceAlarm, match=r"memory is low.*; the store's disk is low"):
        made.check()
    made.judge_memory(0)
    with pytest.raises(ResourceAlarm, match=r"^the store's disk is low: 0 MiB are free, at least 100 MiB must be"):
        made.check()
    assert made.numbers().raised == {"memory": False, "store": True}


def test_the_log_says_when_it_begins_and_ends_once_each_with_numbers_and_what_to_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = alarms()
    with caplog.at_level(logging.WARNING):
        for free in (50, 50, 60, 200, 200):
            made.judge_disk("store", free * MIB, FOLDER)
    first, last = caplog.messages
    assert "50 MiB are free, at least 100 MiB must be at somewhere" in first
    assert "lower limits.disk_free_bytes" in first
    assert "not low any more: 200 MiB are free" in last


def test_a_publish_waits_until_the_alarm_ends() -> None:
    async def check() -> None:
        made = alarms(wait=30.0)
        made.judge_memory(2_000 * MIB)
        waiting = asyncio.create_task(made.admit(10))
        await asyncio.sleep(0)
        made.judge_memory(0)
        await waiting
        assert (made.delayed, made.refused) == (1, 0)

    asyncio.run(check())


def test_a_publish_that_waited_in_vain_is_refused() -> None:
    async def check() -> None:
        made = alarms(wait=0.01)
        made.judge_memory(2_000 * MIB)
        with pytest.raises(ResourceAlarm, match="Nothing was published; consumers go on"):
            await made.admit(10)
        assert (made.delayed, made.refused) == (1, 1)

    asyncio.run(check())


def test_what_waits_is_bounded_in_bytes() -> None:
    async def check() -> None:
        made = alarms(wait=30.0)
        made.judge_memory(2_000 * MIB)
        waiting = asyncio.create_task(made.admit(WAITING_BYTES_MAX - 2 * WAITER_BYTES))
        last = asyncio.create_task(made.admit(0))
        await asyncio.sleep(0)
        with pytest.raises(ResourceAlarm):
            await made.admit(0)
        made.judge_memory(0)
        await asyncio.gather(waiting, last)
        made.judge_memory(2_000 * MIB)
        again = asyncio.create_task(made.admit(0))  # what those two had is free again
        await asyncio.sleep(0)
        made.judge_memory(0)
        await again

    asyncio.run(check())


# What the system says ------------------------------------------------------------------------------------


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


MEMINFO = {"proc/meminfo": "MemTotal:       1000 kB\nMemFree:         10 kB\n"}


def test_without_a_cgroup_the_machine_is_the_limit(tmp_path: Path) -> None:
    assert resources.memory_limit(write(tmp_path, MEMINFO)) == 1_024_000


def test_of_cgroup_v2_the_smallest_limit_on_the_way_up_counts(tmp_path: Path) -> None:
    files = MEMINFO | {
        "proc/self/cgroup": "0::/slice/app\n",
        "sys/fs/cgroup/slice/app/memory.max": "max\n",
        "sys/fs/cgroup/slice/memory.max": "500000\n",
    }
    assert resources.memory_limit(write(tmp_path, files)) == 500_000


def test_of_cgroup_v1_the_memory_controller_counts(tmp_path: Path) -> None:
    files = MEMINFO | {
        "proc/self/cgroup": "3:cpu,cpuacct:/a\n4:memory:/a/b\n",
        "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "400000\n",
    }
    assert resources.memory_limit(write(tmp_path, files)) == 400_000


def test_in_a_container_the_mounted_cgroup_is_its_own(tmp_path: Path) -> None:
    files = MEMINFO | {"proc/self/cgroup": "0::/docker/abc\n", "sys/fs/cgroup/memory.max": "300000\n"}
    assert resources.memory_limit(write(tmp_path, files)) == 300_000


def test_where_the_system_says_nothing_nothing_is_known(tmp_path: Path) -> None:
    assert resources.memory_limit(tmp_path) is None
    assert resources.memory_used(tmp_path) is None


def test_this_process_uses_memory_and_its_disk_has_room(tmp_path: Path) -> None:
    used, limit = resources.memory_used(), resources.memory_limit()
    assert used is not None
    assert limit is not None
    assert MIB < used < limit
    assert (resources.disk_free(tmp_path / "not" / "there") or 0) > 0
