"""Starts Spark sessions: finds Java, sets what suits one machine, ships the package to a cluster.

Knows nothing of queues. A session that runs already, or that spark-submit has prepared, is used as it is: then only
what a session may still change is set.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import shutil
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MASTER: Final = "local[*,3]"
"""All cores of this machine, and three tries for a task: a server that restarts should not fail a job."""

SOURCES: Final = Path(__file__).resolve().parents[2]
"""The folder that the package is imported from: `src` of a checkout, or the installed packages."""

LOGGING: Final = Path(__file__).with_name("log4j2.properties")

QUICK_START: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Starts sooner and optimises less: good for jobs of seconds, wrong for jobs of minutes."""

JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"

EVERYWHERE: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
}

ON_ONE_MACHINE: Final = {
    # Only this machine talks to a session that runs on it.
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    # Halves the time of a small micro-batch on a local disk, where a rename replaces a file in one step.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}

_LOCAL: Final = re.compile(r"local(\[\s*(\*|\d+)\s*(,\s*\d+\s*)?\])?|local-cluster\[\s*(\d+)\s*,.*\]")


def spark_session(
    name: str, *, master: str | None = None, config: Mapping[str, str] | None = None, quick_start: bool = False
) -> SparkSession:
    """A session called `name`, on all cores of this machine unless `master` says where.

    `config` wins over everything that is set here. `quick_start` trades speed later for a start that is some seconds
    shorter; it counts on one machine only.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as failure:
        raise ImportError(f"{failure}. Spark jobs need more packages:  pip install 'penstock[spark]'") from failure

    logging.getLogger("py4j").setLevel(logging.WARNING)  # it tells every call to Java otherwise
    running = is_running()
    prepared = running or "PYSPARK_GATEWAY_PORT" in os.environ
    where = None if prepared and master is None else master or DEFAULT_MASTER
    builder = SparkSession.builder.appName(name)
    if where is not None:
        builder = builder.master(where)
    for option, value in settings(where, quick_start, config).items():
        builder = builder.config(option, value)
    with changed_environment({} if prepared else launch_environment(where or DEFAULT_MASTER)):
        session = builder.getOrCreate()
    if where is not None and not is_local(where) and not running:
        session.sparkContext.addPyFile(str(package_archive()))
    register(session)
    return session


def register(spark: SparkSession) -> None:
    """Make `format("penstock")` known to a session whose Spark does not find it by itself.

    Spark looks for formats only among packages that its own Python has installed: not in what `--py-files`, `addPyFile`
    or, with Spark Connect, `addArtifacts` brought. What is registered is imported from there too, on every executor.
    """
    from pyspark.errors import AnalysisException

    from penstock.spark.source.source import PenstockSource

    try:
        spark.dataSource.register(PenstockSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":  # it is found by itself
            raise


def tasks_at_once(spark: SparkSession) -> int:
    """How many tasks the session runs at the same time."""
    from pyspark.errors import PySparkAttributeError
    from pyspark.sql import functions as F

    try:
        return spark.sparkContext.defaultParallelism
    except PySparkAttributeError:  # Spark Connect: only a query can tell
        return spark.range(1 << 16).select(F.spark_partition_id()).distinct().count()


def is_running() -> bool:
    """Whether this process has a session."""
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None


def settings(master: str | None, quick_start: bool = False, config: Mapping[str, str] | None = None) -> dict[str, str]:
    """Spark's configuration for a master, None for one that Spark was given already; `config` wins."""
    chosen = EVERYWHERE | ({} if master is None else _settings_of_a_new_session(master, quick_start))
    given = dict(config or {})
    if JAVA_OPTIONS in chosen and JAVA_OPTIONS in given:
        given[JAVA_OPTIONS] = f"{chosen[JAVA_OPTIONS]} {given[JAVA_OPTIONS]}"  # of two that differ Java takes the last
    return chosen | given


def _settings_of_a_new_session(master: str, quick_start: bool) -> dict[str, str]:
    chosen: dict[str, str] = {}
    # In a zip, where Java cannot read it, Spark's own settings have to do.
    java_options = [f'-Dlog4j2.configurationFile="{LOGGING.as_uri()}"'] if LOGGING.is_file() else []
    if is_local(master):
        chosen |= ON_ONE_MACHINE
        chosen["spark.sql.shuffle.partitions"] = chosen["spark.default.parallelism"] = str(max(2, cores(master)))
        if quick_start:
            java_options.append(QUICK_START)
    return chosen | ({JAVA_OPTIONS: " ".join(java_options)} if java_options else {})


def is_local(master: str) -> bool:
    """Whether driver and executors are all on this machine, in processes that the session itself starts."""
    return _LOCAL.fullmatch(master) is not None


def cores(master: str) -> int:
    """How many tasks a local master runs at once."""
    found = _LOCAL.fullmatch(master)
    asked = (found[2] or found[4] or "1") if found else "1"
    if asked != "*":
        return int(asked)
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


# The processes that Spark starts ---------------------------------------------------------------------------


def launch_environment(master: str) -> dict[str, str]:
    """What the JVM, and through it every Python worker, must find in its environment."""
    variables = {"JAVA_HOME": str(find_java().home)}
    if is_local(master):
        # Workers unpickle what this process pickled: same interpreter, same packages.
        variables |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    elif not master.startswith(("yarn", "k8s://")):  # there the executors' container has a Python of its own
        variables["PYSPARK_PYTHON"] = os.environ.get("PYSPARK_PYTHON", sys.executable)
    if str(SOURCES) not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        # A checkout, maybe named by a relative PYTHONPATH; a worker starts in another folder.
        given = os.environ.get("PYTHONPATH")
        variables["PYTHONPATH"] = os.pathsep.join([str(SOURCES), given] if given else [str(SOURCES)])
    return variables


@contextmanager
def changed_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets variables of this process for the block: the JVM takes them from here, and so does pyspark."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def package_archive(folder: Path | None = None) -> Path:
    """A zip of this package and of `pyspark_penstock.py`, for `spark.submit.pyFiles` or `addPyFile`.

    Executors also need the compiled packages that it imports (msgspec, zstandard, pyarrow): those cannot be shipped so.
    Made in `folder`, else in a new one that is removed when this process ends: Spark reads it as executors come. A
    package that is imported from such a zip is there already: it is that one.
    """
    if SOURCES.is_file():
        return SOURCES if folder is None else Path(shutil.copy(SOURCES, folder / "penstock.zip"))
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="penstock-package-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    archive = folder / "penstock.zip"
    files = [path for path in sorted((SOURCES / "penstock").rglob("*")) if path.is_file()]
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as made:
        for path in [SOURCES / "pyspark_penstock.py", *files]:
            if "__pycache__" not in path.parts:
                made.write(path, path.relative_to(SOURCES))
    return archive
