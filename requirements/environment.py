"""Makes the environment `.venv` from the lock files in this folder: what `./penstock` runs on first use.

Knows only Python's standard library, for nothing is installed yet, and nothing of the package. It changes the
checkout alone: system packages are touched only as root, and only when pip can be had in no other way. Where
packages come from is pip's and apt's own configuration. The next stop is `penstock/cli/main.py`.

`.venv/made/` records what was made, and is what a start compares:

    place          the checkout, the interpreter and the package folder, one a line
    run.list       the entries of the package folder that must be there (and spark.list, dev.list)
    adding         there while packages are added: if it is found, that was cut short and all is made anew
    run.txt        a copy of the lock file, written last: without it the environment is half made (and so on)
"""

from __future__ import annotations

import contextlib
import fcntl
import filecmp
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

ROOT: Final = Path(__file__).resolve().parent.parent
LOCKS: Final = ROOT / "requirements"
ENVIRONMENT: Final = ROOT / ".venv"
REMOVED: Final = ROOT / ".venv.removed"
MADE: Final = ENVIRONMENT / "made"
ADDING: Final = MADE / "adding"
PYTHON: Final = ENVIRONMENT / "bin" / "python"
# Each contains the ones before it at the same versions, so making one makes them all.
CONTENTS: Final = {"run": ("run",), "spark": ("run", "spark"), "dev": ("run", "spark", "dev")}
WHAT: Final = {"spark": "Spark", "dev": "the development tools"}
# Pure Python with Java's files inside, and on the index as sources only: the one package that is built here.
FROM_SOURCE: Final = "pyspark"
VERSION: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
SYSTEM_WHEELS: Final = Path("/usr/share/python-wheels")
# Of a pip set to install for the user or elsewhere, these would put the packages outside the environment.
PIP_SETTINGS_UNWANTED: Final = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PYTHONPATH", "PYTHONHOME")


class CommandFailed(Exception):
    """A command ended with an error; the message is the command and all that it printed."""


def main(arguments: Sequence[str]) -> None:
    if len(arguments) != 1 or arguments[0] not in CONTENTS:
        stop(f"usage: environment.py {'|'.join(CONTENTS)}")
    dependencies = arguments[0]
    try:
        with one_at_a_time():
            if not is_current(dependencies):
                make(dependencies)
    except CommandFailed as failure:
        stop(f"could not make the environment.\n{failure}\nRun the same command again once that is mended.")
    except KeyboardInterrupt:
        stop("interrupted. The next run starts over.")
    except OSError as failure:
        stop(f"could not make the environment: {failure}. Is {ROOT} yours to write to, and the disk not full?")


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Two first runs at once: the second waits here, then finds the work done. The lock dies with its process."""
    folder = os.open(LOCKS, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Another run is making the environment; waiting for it.")
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def is_current(dependencies: str) -> bool:
    """Is the environment whole, of today's lock file, and still where and with what it was made?"""
    try:
        made_in, made_by, packages = (MADE / "place").read_text().splitlines()
        names = (MADE / f"{dependencies}.list").read_text().splitlines()
        same_lock = filecmp.cmp(LOCKS / f"{dependencies}.txt", MADE / f"{dependencies}.txt", shallow=False)
        same_python = PYTHON.samefile(made_by)
    except (OSError, ValueError):
        return False
    whole = all((Path(packages) / name).exists() for name in names)
    return whole and same_lock and same_python and made_in == str(ROOT)


def make(dependencies: str) -> None:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="penstock-") as scratch:
        if any(is_current(content) for content in CONTENTS[dependencies][:-1]) and not ADDING.exists():
            say(f"Adding {WHAT[dependencies]} to the environment .venv.")
            ADDING.touch()
        else:
            say(f"Making the environment .venv with Python {VERSION} (once; later starts skip this).")
            clear_place()
            make_empty_environment()
            provide_pip(Path(scratch))
        say(f"Installing the pinned packages of requirements/{dependencies}.txt.")
        try:
            install(dependencies)
        except CommandFailed:
            ADDING.unlink(missing_ok=True)  # pip undoes what it could not finish, unless it is killed
            raise
    record(dependencies)
    ADDING.unlink(missing_ok=True)
    say(f"Done in {time.monotonic() - started:.0f} s.")


def clear_place() -> None:
    """Removes what this script made before; what someone else made is moved aside, never deleted."""
    if MADE.exists() and not ENVIRONMENT.is_symlink():
        # Renamed first: a removal that is cut short must not leave something that looks like someone else's.
        shutil.rmtree(REMOVED, ignore_errors=True)
        ENVIRONMENT.rename(REMOVED)
        shutil.rmtree(REMOVED)
    elif ENVIRONMENT.exists() or ENVIRONMENT.is_symlink():
        aside = ROOT / f".venv.before-{int(time.time())}"
        ENVIRONMENT.rename(aside)
        say(f"There was a .venv that ./penstock did not make: it is now {aside.name}.")


def make_empty_environment() -> None:
    MADE.mkdir(parents=True)  # first of all: an environment that is cut short here is known as ours
    if importlib.util.find_spec("venv") is None:
        stop_without("venv")
    run_quietly([sys.executable, "-m", "venv", "--without-pip", str(ENVIRONMENT)])


def install(dependencies: str) -> None:
    """Exactly the locked files, checked by their hashes; nothing is compiled, for there may be no compiler."""
    lock = LOCKS / f"{dependencies}.txt"
    if not has_to_build(lock):
        pip_install(lock, "--only-binary=:all:", f"--no-binary={FROM_SOURCE}")
        return
    say("Among them PySpark, which comes as sources: fetching 450 MB and building it takes a minute or two, once.")
    pip_install(LOCKS / "build.txt", "--only-binary=:all:")
    # Beside the packages, where there must be room for it anyway: a small /tmp could not hold it.
    building = MADE / "building"
    building.mkdir(exist_ok=True)
    try:
        options = ("--no-build-isolation", "--use-pep517")  # with the locked setuptools, and no other
        pip_install(lock, "--only-binary=:all:", f"--no-binary={FROM_SOURCE}", *options, TMPDIR=str(building))
    finally:
        shutil.rmtree(building, ignore_errors=True)


def has_to_build(lock: Path) -> bool:
    """Whether the lock has the package that is built, in a version that is not installed."""
    pinned = re.search(rf"^{FROM_SOURCE}==([^ ]+)", lock.read_text(), re.MULTILINE)
    return pinned is not None and not (package_folder() / f"{FROM_SOURCE}-{pinned[1]}.dist-info").is_dir()


def pip_install(lock: Path, *options: str, **variables: str) -> None:
    fixed = ["--disable-pip-version-check", "--no-input", "--require-hashes", "--no-deps", "--requirement", str(lock)]
    run_quietly([str(PYTHON), "-m", "pip", "install", *options, *fixed], variables=variables)


def record(dependencies: str) -> None:
    packages = package_folder()
    # Relative, so that no path of this machine is in it. This line puts the package itself on the path.
    (packages / "penstock.pth").write_text(os.path.relpath(ROOT / "src", packages) + "\n")
    (MADE / "place").write_text(f"{ROOT}\n{PYTHON.resolve()}\n{packages}\n")
    names = sorted(entry.name for entry in packages.iterdir() if must_stay(entry.name))
    for content in CONTENTS[dependencies]:
        (MADE / f"{content}.list").write_text("\n".join(names) + "\n")
        shutil.copyfile(LOCKS / f"{content}.txt", MADE / "unfinished")
        (MADE / "unfinished").replace(MADE / f"{content}.txt")


def must_stay(name: str) -> bool:
    """pip and what comes with it may be upgraded or removed by hand without harm."""
    return name != "__pycache__" and not name.startswith(("pip", "setuptools", "pkg_resources", "_distutils"))


def package_folder() -> Path:
    return Path(run_quietly([str(PYTHON), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip())


# Finding a pip, the nearest first ------------------------------------------------------------------------


def provide_pip(scratch: Path) -> None:
    """Puts a pip into the environment, whatever this machine has of it."""
    if importlib.util.find_spec("ensurepip") is not None:
        run_quietly([str(PYTHON), "-m", "ensurepip", "--upgrade", "--default-pip"])
        return
    wheel = newest_wheel(SYSTEM_WHEELS) or download_wheel(scratch)
    if wheel is not None:
        # A wheel is a zip file, and pip can run from inside its own to install itself.
        run_quietly([str(PYTHON), str(wheel / "pip"), "install", "--no-index", "--no-deps", str(wheel)])
    elif os.geteuid() == 0 and shutil.which("apt-get"):
        install_ensurepip()
    else:
        stop_without("pip")


def newest_wheel(folder: Path) -> Path | None:
    wheels = sorted(folder.glob("pip-*.whl"), key=lambda wheel: wheel.stat().st_mtime)
    return wheels[-1] if wheels else None


def download_wheel(scratch: Path) -> Path | None:
    """pip out of Debian's and Ubuntu's package, unpacked in a scratch folder: no root, nothing installed."""
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        return None
    say("This Python has no pip (no ensurepip); fetching the package python3-pip-whl with apt-get for this one use.")
    package = download_package(scratch, []) or download_package(scratch, private_lists(scratch))
    if package is None:
        return None
    run_quietly(["dpkg", "-x", str(package), str(scratch / "unpacked")])
    return newest_wheel(scratch / "unpacked" / SYSTEM_WHEELS.relative_to("/"))


def download_package(scratch: Path, options: Sequence[str]) -> Path | None:
    # As root, apt would fetch as its own user, who may not write into our scratch folder.
    command = ["apt-get", "-q", "-o", "APT::Sandbox::User=root", *options, "download", "python3-pip-whl"]
    with contextlib.suppress(CommandFailed):
        run_quietly(command, folder=scratch)
    return next(scratch.glob("python3-pip-whl*.deb"), None)


def private_lists(scratch: Path) -> list[str]:
    """Fetches the package lists into the scratch folder, for a machine whose own are empty, old or not ours."""
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (scratch / folder).mkdir(parents=True)
    status = Path("/var/lib/dpkg/status")
    folders = {"Dir::State": scratch / "state", "Dir::State::status": status, "Dir::Cache": scratch / "cache"}
    options = [part for name, path in folders.items() for part in ("-o", f"{name}={path}")]
    # Its exit code tells little: a hook that only root may run can fail after the lists are there.
    with contextlib.suppress(CommandFailed):
        run_quietly(["apt-get", "-q", "-o", "APT::Sandbox::User=root", *options, "update"])
    return options


def install_ensurepip() -> None:
    package = f"python{VERSION}-venv"
    say(f"That did not work; installing the system package {package} with apt-get.")
    with contextlib.suppress(CommandFailed):
        run_quietly(["apt-get", "-q", "update"])
        run_quietly(["apt-get", "-q", "install", "-y", "--no-install-recommends", package])
        run_quietly([str(PYTHON), "-m", "ensurepip", "--upgrade", "--default-pip"])
        return
    stop_without("pip")


# Talking and running -------------------------------------------------------------------------------------


def run_quietly(command: Sequence[str], folder: Path | None = None, variables: Mapping[str, str] | None = None) -> str:
    """Runs a command and gives its output; what it printed is shown only when it fails."""
    settings = {name: value for name, value in os.environ.items() if name not in PIP_SETTINGS_UNWANTED}
    settings |= {"PIP_USER": "0", "DEBIAN_FRONTEND": "noninteractive"} | dict(variables or {})
    done = subprocess.run(
        command, cwd=folder, env=settings, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise CommandFailed(f"{' '.join(command)}\n{done.stdout}{done.stderr}".rstrip())
    return done.stdout


def say(line: str) -> None:
    """To standard error: the command's own output must stay clean for whoever reads it."""
    print(f"penstock: {line}", file=sys.stderr, flush=True)


def stop(message: str) -> NoReturn:
    raise SystemExit(f"penstock: {message}")


def stop_without(module: str) -> NoReturn:
    stop(
        f"this Python ({sys.executable}) has no {module}, and none could be fetched. Is this machine online?\n"
        f"If it is, run this once:  sudo apt-get install -y python{VERSION}-venv\n"
        "(or what your system calls it), and then the same command again."
    )


if __name__ == "__main__":
    main(sys.argv[1:])
