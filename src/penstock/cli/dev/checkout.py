"""Finds the source checkout that the package runs from, and turns into one of its scripts.

An installed package has no tests or benchmarks beside it: then the error says so.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click


def root() -> Path:
    """The checkout's top folder: the one with src/penstock and the launcher in it."""
    folder = Path(__file__).resolve().parents[4]
    if not (folder / "pyproject.toml").is_file() or not (folder / "src" / "penstock").is_dir():
        raise click.ClickException(
            "this command works in a source checkout only, and this penstock is an installed package. "
            "Clone the repository and run ./penstock there."
        )
    return folder


def become_script(path: str, arguments: Sequence[str]) -> NoReturn:
    """Replaces this process by a script of the checkout, so that signals and the exit code are the script's own."""
    script = root() / path
    if not script.is_file():
        raise click.ClickException(f"this checkout has no {path}. Is it complete? 'git status' shows what is missing.")
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, str(script), *arguments], script_environment())


def script_environment() -> dict[str, str]:
    """Scripts import `penstock`, `tests` and `bench` by name, from whatever folder they are started in."""
    folders = [str(root() / "src"), str(root())]
    given = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": os.pathsep.join([*folders, given] if given else folders)}
