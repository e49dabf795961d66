"""The set-up step: Debian's packages of the peers and an environment with their Python clients, all under `.bench/`.

The packages are downloaded with what they depend on and unpacked, never installed: no service is started or enabled, no
user is made, root is not needed, and removing the folder undoes it. What this machine has installed already is used
as it is. Where packages come from is apt's and pip's own configuration.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.peers_lib.peer import BENCH, PACKAGES, ROOT, VENV
from bench.peers_lib.peers import PEERS

NAMES: Final = ("rabbitmq-server", "redis-server", "nats-server", "postgresql", "libpostgresql-jdbc-java")
ARCHIVES: Final = BENCH / "archives"
LISTS: Final = BENCH / "apt"
LOCK: Final = ROOT / "requirements" / "bench.txt"
MADE: Final = VENV / "made.txt"
ERLANG_HOME: Final = "/usr/lib/erlang"


class SetUpFailed(Exception):
    """What did not work, and what to do."""


def set_up() -> None:
    BENCH.mkdir(exist_ok=True)
    try:
        get_packages()
    except SetUpFailed as failure:
        say(f"Could not get the packages: {failure}")
        say(f"To have them installed instead, run as root:  apt-get install {' '.join(NAMES)}")
    make_environment()
    for peer in PEERS.values():
        missing = peer().missing()
        say(f"  {peer.name:<17} {'missing: ' + missing if missing else peer().version()}")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def step(text: str) -> Iterator[None]:
    say(f"{text} …")
    started = time.monotonic()
    yield
    say(f"  done in {time.monotonic() - started:.0f} s")


def run(command: Sequence[str | Path], folder: Path = BENCH) -> str:
    settings = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    settings = {name: value for name, value in settings.items() if not name.startswith(("PIP_TARGET", "PYTHONPATH"))}
    done = subprocess.run(
        [str(part) for part in command], cwd=folder, env=settings, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise SetUpFailed(f"{' '.join(map(str, command))}\n{done.stdout[-2000:]}{done.stderr[-2000:]}".rstrip())
    return done.stdout


# Packages ------------------------------------------------------------------------------------------------


def get_packages() -> None:
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        raise SetUpFailed("this machine has no apt-get; install the peers in the way it has, or do without")
    with step(f"Downloading {', '.join(NAMES)} and what they need (40 to 90 MB, half of it Erlang)"):
        download()
    archives = sorted(ARCHIVES.glob("*.deb"))
    if PACKAGES.exists():
        shutil.rmtree(PACKAGES)
    PACKAGES.mkdir()
    with step(f"Unpacking {len(archives)} packages into {PACKAGES.relative_to(ROOT)}"):
        for archive in archives:
            run(["dpkg", "-x", archive, PACKAGES])
        move_erlang()


def download() -> None:
    """Into a folder of ours; with lists of our own where the machine's are empty or too old."""
    if ARCHIVES.exists():
        shutil.rmtree(ARCHIVES)  # what is unpacked is what was wanted today
    (ARCHIVES / "partial").mkdir(parents=True)
    # As root, apt would fetch as its own user, who may not write into this folder.
    options = ["-o", f"Dir::Cache={BENCH}", "-o", "Debug::NoLocking=1", "-o", "APT::Sandbox::User=root"]
    wanted = ["--download-only", "--no-upgrade", "--no-install-recommends", "--yes", "install", *NAMES]
    try:
        run(["apt-get", "-q", *options, *wanted])
    except SetUpFailed:
        (LISTS / "lists" / "partial").mkdir(parents=True, exist_ok=True)
        options += ["-o", f"Dir::State={LISTS}", "-o", "Dir::State::status=/var/lib/dpkg/status"]
        run(["apt-get", "-q", *options, "update"])
        run(["apt-get", "-q", *options, *wanted])


def move_erlang() -> None:
    """Erlang's start scripts name the folder that the package wants to be in: make it ours."""
    home = PACKAGES / ERLANG_HOME.lstrip("/")
    for script in (*home.glob("bin/*"), *home.glob("erts-*/bin/*")):
        if script.is_symlink() or not script.is_file() or not script.read_bytes().startswith(b"#!/bin/sh"):
            continue
        text = script.read_text()
        script.write_text(re.sub(rf"(?<![\w/]){ERLANG_HOME}(?![\w-])", str(home), text))


# The clients' environment --------------------------------------------------------------------------------


def environment_is_current() -> bool:
    return MADE.is_file() and MADE.read_text() == LOCK.read_text()


def make_environment() -> None:
    if environment_is_current():
        say(f"{VENV.relative_to(ROOT)} is current.")
        return
    with step(f"Making {VENV.relative_to(ROOT)} with the pinned clients of requirements/bench.txt"):
        if VENV.exists():
            shutil.rmtree(VENV)
        run([sys.executable, "-m", "venv", "--without-pip", VENV])
        # The pip of our own environment installs into the other one.
        run(
            [sys.executable, "-m", "pip", "--python", VENV / "bin" / "python", "install", "--quiet", "--no-input",
             "--disable-pip-version-check", "--require-hashes", "--only-binary=:all:", "--no-deps",
             "--requirement", LOCK],
        )  # fmt: skip
        MADE.write_text(LOCK.read_text())


def client_python() -> Path | None:
    """The Python with the peers' clients, once the set-up step made it."""
    return VENV / "bin" / "python" if environment_is_current() else None
