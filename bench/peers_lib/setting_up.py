"""The set-up step: Debian's packages of the peers and an environment with their Python clients, all under `.bench/`.

The packages are unpacked and never installed: see `tools/debian_packages.py`. Where they and the clients come from is
apt's and pip's own configuration.
"""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.peers_lib.peer import BENCH, PACKAGES, ROOT, VENV
from bench.peers_lib.peers import PEERS
from tools.debian_packages import SetUpFailed, check_machine, download, run, unpack

NAMES: Final = ("rabbitmq-server", "redis-server", "nats-server", "postgresql", "libpostgresql-jdbc-java", "mosquitto")
LOCK: Final = ROOT / "requirements" / "bench.txt"
MADE: Final = VENV / "made.txt"
ERLANG_HOME: Final = "/usr/lib/erlang"


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


# Packages ------------------------------------------------------------------------------------------------


def get_packages() -> None:
    check_machine()
    with step(f"Downloading {', '.join(NAMES)} and what they need (40 to 90 MB, half of it Erlang)"):
        archives = download(NAMES, BENCH)
    if PACKAGES.exists():
        shutil.rmtree(PACKAGES)
    PACKAGES.mkdir()
    with step(f"Unpacking {len(archives)} packages into {PACKAGES.relative_to(ROOT)}"):
        unpack(archives, PACKAGES)
        move_erlang()


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
        run([sys.executable, "-m", "venv", "--without-pip", VENV], BENCH)
        # The pip of our own environment installs into the other one.
        run(
            [
                sys.executable,
                "-m",
                "pip",
                "--python",
                VENV / "bin" / "python",
                "install",
                "--quiet",
                "--no-input",
                "--disable-pip-version-check",
                "--require-hashes",
                "--only-binary=:all:",
                "--no-deps",
                "--requirement",
                LOCK,
            ],
            BENCH,
        )
        MADE.write_text(LOCK.read_text())


def client_python() -> Path | None:
    """The Python with the peers' clients, once the set-up step made it."""
    return VENV / "bin" / "python" if environment_is_current() else None
