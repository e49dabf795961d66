"""Gets what the tests run against and no wheel brings, from Debian's packages: MariaDB, PgBouncer, Mosquitto.

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
from typing import Final, NamedTuple

from tools.debian_packages import SetUpFailed, check_machine, download, unpack

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDER: Final = ROOT / ".databases"


class Program(NamedTuple):
    """What to get, and the program by which it is known to be there."""

    title: str
    packages: tuple[str, ...]
    megabytes: int
    program: str

    @property
    def folder(self) -> Path:
        """What the packages hold, as it would be under /."""
        return FOLDER / self.title.lower().replace(" ", "-")

    def root(self) -> Path | None:
        """The folder under which it lies as Debian lays it out: the checkout's own, else the machine's."""
        return next((root for root in (self.folder, Path("/")) if (root / self.program).exists()), None)


PROGRAM: Final = "usr/sbin/mariadbd"
MARIADB: Final = Program("MariaDB", ("mariadb-server-core",), 8, PROGRAM)
MOSQUITTO_CLIENTS: Final = Program("Mosquitto clients", ("mosquitto-clients",), 1, "usr/bin/mosquitto_sub")

PGBOUNCER: Final = Program("PgBouncer", ("pgbouncer",), 1, "usr/sbin/pgbouncer")
VALGRIND: Final = Program("Valgrind", ("valgrind",), 18, "usr/bin/valgrind")
"""Not for the tests: `./penstock bench instructions --setup` gets it."""


def mariadb_root() -> Path | None:
    return MARIADB.root()


def mosquitto_root() -> Path | None:
    return MOSQUITTO_CLIENTS.root()


def get(wanted: Program) -> None:
    if wanted.root() is not None:
        return
    check_machine()
    say(f"Downloading {wanted.title} for the tests into {FOLDER.relative_to(ROOT)} ({wanted.megabytes} MB), once …")
    started = time.monotonic()
    FOLDER.mkdir(exist_ok=True)
    archives = download(wanted.packages, FOLDER)
    unpacked = Path(tempfile.mkdtemp(prefix=f"{wanted.folder.name}-", dir=FOLDER))
    try:
        # Another user runs it where we are root.
        unpacked.chmod(0o755)
        unpack(archives, unpacked)
        if not (unpacked / wanted.program).exists():
            raise SetUpFailed(f"the packages {', '.join(wanted.packages)} hold no {wanted.program}")
        # Whole or not at all: whoever finds the folder may use it.
        os.rename(unpacked, wanted.folder)  # noqa: PTH104 - a rename that fails where somebody was faster
    except OSError:
        if wanted.root() is None:
            raise
    finally:
        shutil.rmtree(unpacked, ignore_errors=True)
    say(f"  done in {time.monotonic() - started:.0f} s")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    for wanted in (MARIADB, MOSQUITTO_CLIENTS, PGBOUNCER):
        try:
            get(wanted)
        except (SetUpFailed, OSError) as failure:
            say(f"Could not get {wanted.title}, so its tests are skipped: {failure}")


if __name__ == "__main__":
    main()
