"""A real MariaDB server for the tests: one a test process, on a free loopback port, stopped by its own process id.

Its programs are the machine's own or those that `tools/get_databases.py` unpacked from Debian's package. It will not
run as root: then it runs as the user nobody.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from penstock.store.mysql.pool import StoreAddress
from tools.debian_packages import library_path
from tools.get_databases import PROGRAM, mariadb_root

PATIENCE_S: Final = 60.0
SHARED: Final = "TEST_MARIADB_URL"
USER: Final = "penstock"
PASSWORD: Final = "p@ss/word"
SETTINGS: Final = {
    "innodb-flush-log-at-trx-commit": "1", "innodb-buffer-pool-size": "64M", "innodb-log-file-size": "48M",
    "max-connections": "300", "skip-name-resolve": "1", "performance-schema": "0", "innodb-file-per-table": "0",
}  # fmt: skip
_TABLES: Final = ("mysql_system_tables.sql", "mysql_system_tables_data.sql")
_USERS: Final = f"""CREATE USER IF NOT EXISTS '{USER}'@'%' IDENTIFIED BY '{PASSWORD}';
GRANT ALL PRIVILEGES ON *.* TO '{USER}'@'%' WITH GRANT OPTION;
"""
MISSING: Final = (
    "there is no MariaDB: run `.venv/bin/python -m tools.get_databases`, which says what is in the way, or install "
    "Debian's mariadb-server-core"
)


def is_there() -> bool:
    return mariadb_root() is not None


class MariadbServer:
    """One server with an empty folder of its own."""

    def __init__(self, **settings: str) -> None:
        self._settings = SETTINGS | {name.replace("_", "-"): value for name, value in settings.items()}
        root = mariadb_root()
        assert root is not None, MISSING
        self._root = root
        self._folder = Path(tempfile.mkdtemp(prefix="penstock-mariadb-"))
        self._users = self._folder / "users.sql"
        self._users.write_text(_USERS)
        (self._folder / "data" / "mysql").mkdir(parents=True)
        self._user: list[str] = []
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._user = [f"--user={nobody.pw_name}"]
            for path in (self._folder, *self._folder.rglob("*")):
                os.chown(path, nobody.pw_uid, nobody.pw_gid)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        self._make()
        self.start()

    @property
    def url(self) -> str:
        """Of the server; a database's name has to follow."""
        return f"mysql://{USER}:{PASSWORD.replace('@', '%40').replace('/', '%2F')}@127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _command(self, *arguments: str) -> list[str]:
        share = self._root / "usr/share/mysql"
        return [
            str(self._root / PROGRAM),
            "--no-defaults",
            f"--datadir={self._folder / 'data'}",
            f"--lc-messages-dir={share}",
            f"--character-sets-dir={share / 'charsets'}",
            *self._user,
            *arguments,
        ]

    def _environment(self) -> dict[str, str]:
        return os.environ | (library_path(self._root) if self._root != Path("/") else {})

    def _make(self) -> None:
        """The server's own tables, from the statements that come with it."""
        share = self._root / "usr/share/mysql"
        statements = "USE mysql;\n" + "".join((share / name).read_text() + "\n" for name in _TABLES)
        settings = [f"--innodb-log-file-size={self._settings['innodb-log-file-size']}"]
        done = subprocess.run(
            self._command("--bootstrap", *settings),
            input=statements,
            cwd=self._folder,
            env=self._environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"MariaDB's tables could not be made: {done.stdout[-2000:]}{done.stderr[-2000:]}"

    def start(self) -> None:
        settings = [f"--{name}={value}" for name, value in self._settings.items()]
        place = ["--bind-address=127.0.0.1", f"--port={self.port}", f"--socket={self._folder / 'socket'}"]
        files = [f"--init-file={self._users}", f"--tmpdir={self._folder}", f"--pid-file={self._folder / 'pid'}"]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command(*place, *files, *settings),
                cwd=self._folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + PATIENCE_S
        while not self._accepts():
            assert self._process.poll() is None, f"MariaDB did not start: {self.log()}"
            assert time.monotonic() < deadline, f"MariaDB took too long to start: {self.log()}"
            time.sleep(0.02)

    def _accepts(self) -> bool:
        """Whether it greets who connects: only then does it answer."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
            return bool(connection.recv(1))
        return False

    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")[-4000:]

    def stop(self, number: int = signal.SIGTERM) -> None:
        """SIGTERM ends it in good order, SIGKILL as a crash would. It is one process."""
        if self._process is not None:
            if self._process.poll() is None:
                self._process.send_signal(number)
            self._process.wait(PATIENCE_S)
            self._process = None

    def close(self) -> None:
        self.stop(signal.SIGKILL)  # its folder goes with it
        shutil.rmtree(self._folder, ignore_errors=True)


@functools.cache
def shared_url() -> str:
    """The server of this test process and of the children that it starts, started when it is first wanted."""
    if SHARED not in os.environ:
        server = MariadbServer()
        atexit.register(server.close)
        os.environ[SHARED] = server.url
    return os.environ[SHARED]


@contextlib.contextmanager
def connected(url: str, **options: Any) -> Iterator[Any]:
    """A session of an application, in a store's database; it commits what it is told to."""
    import pymysql

    address = StoreAddress.parse(url)
    session = pymysql.connect(
        host=address.host,
        port=address.port,
        user=address.user,
        password=address.password,
        database=address.database,
        **options,
    )
    try:
        yield session
    finally:
        session.close()


def database_url(name: object) -> str:
    """A URL of a database of its own on the shared server: the same name is the same database."""
    digest = hashlib.blake2b(str(name).encode(), digest_size=10).hexdigest()
    return f"{shared_url()}/test_{digest}"
