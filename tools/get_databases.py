"""Gets the database servers that the tests run against and no wheel brings: MariaDB, from Debian's package.

    .venv/bin/python -m tools.get_databases

`./penstock test` does this before its tests. One that is installed is used as it is; where none can be had (another
system than Debian, no network) the tests that need it are skipped and say why. All is under `.databases/` of the
checkout.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tools.debian_packages import SetUpFailed, check_machine, download, unpack

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDER: Final = ROOT / ".databases"
MARIADB: Final = FOLDER / "mariadb"
"""What the packages hold, as it would be under /."""
MARIADB_PACKAGES: Final = ("mariadb-server-core",)
PROGRAM: Final = "usr/sbin/mariadbd"


def mariadb_root() -> Path | None:
    """The folder under which MariaDB lies as Debian lays it out: the checkout's own, else the machine's."""
    return next((root for root in (MARIADB, Path("/")) if (root / PROGRAM).exists()), None)


def get_mariadb() -> None:
    if mariadb_root() is not None:
        return
    check_machine()
    say(f"Downloading MariaDB for the tests into {FOLDER.relative_to(ROOT)} (8 MB), once …")
    started = time.monotonic()
    FOLDER.mkdir(exist_ok=True)
    archives = download(MARIADB_PACKAGES, FOLDER)
    unpacked = Path(tempfile.mkdtemp(prefix="mariadb-", dir=FOLDER))
    try:
        # Another user runs it where we are root.
        unpacked.chmod(0o755)
        unpack(archives, unpacked)
        if not (unpacked / PROGRAM).exists():
            raise SetUpFailed(f"the packages {', '.join(MARIADB_PACKAGES)} hold no {PROGRAM}")
        # Whole or not at all: whoever finds the folder may use it.
        os.rename(unpacked, MARIADB)  # noqa: PTH104 - a rename that fails where somebody was faster
    except OSError:
        if mariadb_root() is None:
            raise
    finally:
        shutil.rmtree(unpacked, ignore_errors=True)
    say(f"  done in {time.monotonic() - started:.0f} s")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    try:
        get_mariadb()
    except (SetUpFailed, OSError) as failure:
        say(f"Could not get MariaDB, so its tests are skipped: {failure}")


if __name__ == "__main__":
    main()
