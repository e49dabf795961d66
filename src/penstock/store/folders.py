"""Folders whose names outlive a loss of power: making them, and making durable what they name.

A file that was synced is lost with its name, and a name is durable when its folder was synced. This module may not know
what is in a file. Next stop: `store/sqlite/file.py` and `node/spool/folder.py`, which keep files in them.
"""

from __future__ import annotations

import os
from pathlib import Path


def make_folder(folder: Path) -> None:
    """Make a folder and those above it that are missing, for their owner alone; durable when this returns."""
    for missing in reversed([one for one in (folder, *folder.parents) if not one.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)
        sync_folder(missing.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
