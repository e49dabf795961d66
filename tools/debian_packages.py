"""Debian's packages without installing them: downloaded with what they depend on and unpacked into a folder of ours.

No service is started or enabled, no user is made, root is not needed, and removing the folder undoes it. What this
machine has installed already is used as it is. Where packages come from is apt's own configuration. Used by the
benchmarks for their peers and by `tools/get_databases.py` for the tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

STATUS: Final = "/var/lib/dpkg/status"
SECONDS_MAX: Final = 600


class SetUpFailed(Exception):
    """What did not work, and what to do."""


def run(command: Sequence[str | Path], folder: Path) -> str:
    """What a program prints; it may not ask anything, and must end well."""
    settings = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    settings = {name: value for name, value in settings.items() if not name.startswith(("PIP_TARGET", "PYTHONPATH"))}
    shown = " ".join(map(str, command))
    try:
        done = subprocess.run(
            [str(part) for part in command],
            cwd=folder,
            env=settings,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS_MAX,
        )
    except subprocess.TimeoutExpired:
        raise SetUpFailed(f"{shown}\ndid not end within {SECONDS_MAX} s") from None
    if done.returncode != 0:
        raise SetUpFailed(f"{shown}\n{done.stdout[-2000:]}{done.stderr[-2000:]}".rstrip())
    return done.stdout


def check_machine() -> None:
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        raise SetUpFailed("this machine has no apt-get; install them in the way it has, or do without")


def download(names: Sequence[str], folder: Path) -> list[Path]:
    """The archives of the packages and of what they need, in `archives` below the folder.

    With lists of our own where the machine's are empty or too old.
    """
    archives, lists = folder / "archives", folder / "apt"
    if archives.exists():
        shutil.rmtree(archives)  # what is unpacked is what was wanted today
    (archives / "partial").mkdir(parents=True)
    # As root, apt would fetch as its own user, who may not write into this folder.
    options = ["-o", f"Dir::Cache={folder}", "-o", "Debug::NoLocking=1", "-o", "APT::Sandbox::User=root"]
    wanted = ["--download-only", "--no-upgrade", "--no-install-recommends", "--yes", "install", *names]
    try:
        run(["apt-get", "-q", *options, *wanted], folder)
    except SetUpFailed:
        (lists / "lists" / "partial").mkdir(parents=True, exist_ok=True)
        options += ["-o", f"Dir::State={lists}", "-o", f"Dir::State::status={STATUS}"]
        run(["apt-get", "-q", *options, "update"], folder)
        run(["apt-get", "-q", *options, *wanted], folder)
    return sorted(archives.glob("*.deb"))


def unpack(archives: Sequence[Path], into: Path) -> None:
    for archive in archives:
        run(["dpkg", "-x", archive, into], into)


def library_path(root: Path) -> dict[str, str]:
    """The environment in which a program that was unpacked under the root finds the libraries beside it."""
    folders = [str(folder) for folder in sorted(root.glob("usr/lib/*-linux-gnu*"))]
    return {"LD_LIBRARY_PATH": os.pathsep.join(folders)} if folders else {}
