"""A real PostgreSQL server for the tests: one a test process, on a free loopback port, stopped by its own process id.

Its programs come from the wheel `pgserver` or, where there is none, from Debian's package. It refuses to run as root:
then it runs as the user nobody.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import hashlib
import importlib.util
import os
import pwd
import secrets
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import asyncpg

PATIENCE_S: Final = 60.0
SHARED: Final = "TEST_POSTGRES_URL"
SETTINGS: Final = {
    "listen_addresses": "127.0.0.1", "unix_socket_directories": "", "max_connections": "200", "shared_buffers": "64MB",
    "logging_collector": "off", "max_wal_size": "1GB",
}  # fmt: skip

IN_SYNC: Final = """
    SELECT count(*) > 0 FROM pg_stat_replication WHERE sync_state = 'sync' AND flush_lsn >= $1::text::pg_lsn
"""


def programs() -> Path | None:
    """The folder of `postgres` and `initdb`."""
    found = importlib.util.find_spec("pgserver")
    if found is not None and found.origin is not None:
        folder = Path(found.origin).parent / "pginstall" / "bin"
        if (folder / "initdb").exists():
            return folder
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if installed:
        return installed[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).resolve().parent if on_path else None


def is_there() -> bool:
    return programs() is not None


class PostgresServer:
    """One server with an empty folder of its own."""

    def __init__(self, *, copy_of: PostgresServer | None = None, **settings: str) -> None:
        """`copy_of`: a standby that follows another server, with all that is in it."""
        self._settings = SETTINGS | settings
        self._programs = programs()
        assert self._programs is not None, "there is no PostgreSQL: install the wheel pgserver or Debian's postgresql"
        self._folder = Path(tempfile.mkdtemp(prefix="penstock-postgres-"))
        self._user: int | None = None
        if os.geteuid() == 0:
            self._user = pwd.getpwnam("nobody").pw_uid
            os.chown(self._folder, self._user, self._user)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        if copy_of is None:
            self._run(
                "initdb",
                "--pgdata",
                "data",
                "--username=penstock",
                "--auth=trust",
                "--no-locale",
                "--encoding=UTF8",
                "--no-sync",
            )
        else:
            self._run(
                "pg_basebackup",
                "--pgdata=data",
                "--write-recovery-conf",
                "--checkpoint=fast",
                "--no-sync",
                f"--dbname=host=127.0.0.1 port={copy_of.port} user=penstock application_name=standby",
            )
        self.start()

    @property
    def url(self) -> str:
        return f"postgresql://penstock@127.0.0.1:{self.port}/postgres"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        settings = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        assert self._programs is not None
        # Each of its processes inherits the pipe's other end: reading finds the end when the last of them is gone.
        self._alive, inherited = os.pipe()
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._programs / "postgres"), "-D", "data", "-p", str(self.port), *settings],
                cwd=self._folder,
                stdout=log,
                stderr=log,
                user=self._user,
                group=self._user,
                pass_fds=[inherited],
                extra_groups=None if self._user is None else [],
            )
        os.close(inherited)
        deadline = time.monotonic() + PATIENCE_S
        while not self._accepts():
            assert self._process.poll() is None, f"PostgreSQL did not start: {self.log()}"
            assert time.monotonic() < deadline, f"PostgreSQL took too long to start: {self.log()}"
            time.sleep(0.02)

    def _accepts(self) -> bool:
        """Whether it answers queries: it listens long before that."""
        assert self._programs is not None
        if (self._programs / "pg_isready").exists():
            command = [str(self._programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
            return subprocess.run(command, check=False).returncode == 0
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False

    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")[-4000:]

    def stop(self, number: int = signal.SIGINT) -> None:
        """SIGINT ends it fast and in good order, SIGKILL as a crash would; then all its processes are gone."""
        if self._process is not None:
            if self._process.poll() is None:
                self._process.send_signal(number)
            self._process.wait(PATIENCE_S)
            self._process = None
            ended, _, _ = select.select([self._alive], [], [], PATIENCE_S)
            assert ended, f"processes of PostgreSQL went on after its end: {self.log()}"
            os.close(self._alive)

    def promote(self) -> None:
        """A standby becomes a server of its own."""
        self._run("pg_ctl", "promote", "--pgdata=data", "--wait")

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        assert self._programs is not None
        done = subprocess.run(
            [str(self._programs / program), *arguments],
            cwd=self._folder,
            capture_output=True,
            text=True,
            check=False,
            user=self._user,
            group=self._user,
            extra_groups=None if self._user is None else [],
        )
        assert done.returncode == 0, f"{program} failed: {done.stdout}{done.stderr}"


def synchronous_pair(stack: contextlib.ExitStack) -> tuple[PostgresServer, PostgresServer, str]:
    """A server and a standby that has every commit before it is answered, and a URL that leads to whichever leads."""
    first = PostgresServer(wal_level="replica", max_wal_senders="4")
    stack.callback(first.close)
    second = PostgresServer(copy_of=first)
    stack.callback(second.close)
    asyncio.run(_synchronize(first))
    hosts = f"127.0.0.1:{first.port},127.0.0.1:{second.port}"
    return first, second, f"postgresql://penstock@{hosts}/postgres?target_session_attrs=primary"


async def _synchronize(first: PostgresServer) -> None:
    control = await asyncpg.connect(first.url)
    await control.execute("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
    await control.execute("SELECT pg_reload_conf()")
    await control.close()
    await in_sync(first)


async def in_sync(leader: PostgresServer, seconds: float = PATIENCE_S) -> None:
    """Until its standby is a synchronous one and has on its disk all that the leader had when it was asked."""
    control = await asyncpg.connect(leader.url)
    try:
        written = await control.fetchval("SELECT pg_current_wal_flush_lsn()::text")
        deadline = time.monotonic() + seconds
        while not await control.fetchval(IN_SYNC, written):
            assert time.monotonic() < deadline, f"the standby does not follow: {leader.log()}"
            await asyncio.sleep(0.02)
    finally:
        await control.close()


@functools.cache
def shared_url() -> str:
    """The server of this test process and of the children that it starts, started when it is first wanted."""
    if SHARED not in os.environ:
        server = PostgresServer()
        atexit.register(server.close)
        os.environ[SHARED] = server.url
    return os.environ[SHARED]


@contextlib.contextmanager
def fresh_database() -> Iterator[str]:
    """The URL of an empty database of the shared server, until the block ends."""
    name = f"fresh_{secrets.token_hex(8)}"
    asyncio.run(_execute(f"CREATE DATABASE {name}"))
    try:
        yield shared_url().rpartition("/")[0] + f"/{name}"
    finally:
        asyncio.run(_execute(f"DROP DATABASE {name} WITH (FORCE)"))


async def _execute(statement: str) -> None:
    connection = await asyncpg.connect(shared_url())
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


def schema_url(name: object) -> str:
    """A URL of a schema of its own on the shared server: the same name is the same schema."""
    digest = hashlib.blake2b(str(name).encode(), digest_size=10).hexdigest()
    return f"{shared_url()}?schema=test_{digest}"
