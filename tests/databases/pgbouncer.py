"""A real PgBouncer before a real PostgreSQL: a pooler that hands out a connection for one transaction.

Its program is the machine's own or the one that `tools/get_databases.py` unpacked from Debian's package. It will not
run as root: then it runs as the user nobody.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tools.debian_packages import library_path
from tools.get_databases import PGBOUNCER

PATIENCE_S: Final = 30.0
CONNECTIONS: Final = 4
"""To the database, for however many clients."""
MISSING: Final = (
    "there is no PgBouncer: run `.venv/bin/python -m tools.get_databases`, which says what is in the way, or install "
    "Debian's pgbouncer"
)


def is_there() -> bool:
    return PGBOUNCER.root() is not None


@contextlib.contextmanager
def pooled(url: str) -> Iterator[str]:
    """The URL of the same database through a pooler in transaction mode, until the block ends."""
    root = PGBOUNCER.root()
    assert root is not None, MISSING
    parts = urlsplit(url)
    with tempfile.TemporaryDirectory(prefix="penstock-pgbouncer-") as name, socket.socket() as probe:
        folder = Path(name)
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        (folder / "users").write_text(f'"{parts.username}" ""\n')
        (folder / "settings").write_text(
            f"""[databases]
* = host=127.0.0.1 port={parts.port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {folder / "users"}
pool_mode = transaction
default_pool_size = {CONNECTIONS}
max_client_conn = 200
ignore_startup_parameters = extra_float_digits
logfile = {folder / "log"}
"""
        )
        user: int | None = None
        if os.geteuid() == 0:
            user = pwd.getpwnam("nobody").pw_uid
            for path in (folder, *folder.iterdir()):
                os.chown(path, user, user)
        environment = os.environ | (library_path(root) if root != Path("/") else {})
        process = subprocess.Popen(
            [str(root / PGBOUNCER.program), "-q", str(folder / "settings")],
            env=environment,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _wait(process, port, folder)
            yield f"postgresql://{parts.username}@127.0.0.1:{port}{parts.path}"
        finally:
            process.kill()
            process.wait(PATIENCE_S)
            shutil.rmtree(folder, ignore_errors=True)


def _wait(process: subprocess.Popen[bytes], port: int, folder: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        said = (folder / "log").read_text() if (folder / "log").exists() else ""
        assert process.poll() is None, f"PgBouncer did not start: {said}"
        assert time.monotonic() < deadline, f"PgBouncer took too long to start: {said}"
        time.sleep(0.02)
