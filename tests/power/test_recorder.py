"""The recorder sees every change of a file: what the calls add up to is what is on the real disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.power.disk import EVERYTHING, Disk, lay
from tests.power.recorder import NotAllowed
from tests.power.rig import ROOT, record_life

PROGRAM = """
import mmap, os, shutil, sys
from pathlib import Path
from tests.power.recorder import record
folder = Path(sys.argv[1])
def program(note):
    with (folder / "a").open("wb") as file:
        file.write(bytes(4096))
        file.flush()
        {call}
record(folder, program)
"""


def files_in(folder: Path) -> dict[str, bytes | None]:
    found = sorted(folder.rglob("*"))
    return {str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes() for path in found}


@pytest.mark.parametrize("workload", ["store", "spool", "backup"])
def test_the_events_add_up_to_what_is_on_the_disk(tmp_path: Path, workload: str) -> None:
    recorded, laid = tmp_path / "recorded", tmp_path / "laid"
    recorded.mkdir()
    laid.mkdir()
    try:
        events = record_life(workload, recorded, "recorder", 0, 16)
    except NotAllowed as reason:
        pytest.skip(str(reason))
    disk = Disk()
    for event in events:
        disk.apply(event)
    lay(disk.survivors(Random(0), EVERYTHING), laid)
    assert files_in(laid) == files_in(recorded)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("os.sendfile(file.fileno(), os.open('/etc/passwd', os.O_RDONLY), 0, 10)", "sendfile"),
        ("file = (folder / 'a').open('r+b'); mmap.mmap(file.fileno(), 4096)", "through memory"),
    ],
)
def test_a_change_that_cannot_be_seen_ends_the_recording(tmp_path: Path, call: str, told: str) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(call=call), str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if "NotAllowed" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert "NotImplementedError" in done.stderr
    assert told in done.stderr
