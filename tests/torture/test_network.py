"""The networks of torture: packets are swallowed by pair and direction, and nothing is left of them afterwards."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.cli.dev.checkout import script_environment

ROOT = Path(__file__).parents[2]
PATIENCE_S = 30.0

ECHO = """
import ctypes, signal, socket
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # dies with its parent, as nodes do
listening = socket.create_server((ADDRESS, 7))
print("listens", flush=True)
there, _ = listening.accept()
while data := there.recv(100):
    print("has", data.decode(), flush=True)
    there.sendall(data)
"""

STORY = f"""
import os, socket, subprocess, sys
from tests.torture.network import HOME, Network, NotPossible, both
ECHO = {ECHO!r}
try:
    network = Network.open(2)
except NotPossible as reason:
    sys.exit(f"not possible: {{reason}}")
words, descriptors = network.command(0)
there = network.address(0)
echo = subprocess.Popen(
    [*words, sys.executable, "-c", ECHO.replace("ADDRESS", repr(there))],
    pass_fds=descriptors, stdout=subprocess.PIPE, text=True,
)
told = echo.stdout.readline
assert told() == "listens\\n"
connection = socket.create_connection((there, 7), timeout=20)

def answered():
    try:
        return connection.recv(100).decode()
    except TimeoutError:
        return None

connection.sendall(b"one")
assert (told(), answered()) == ("has one\\n", "one")
network.cut([(there, HOME)])
network.cut(both(there, HOME))
network.mend(both(there, HOME))
connection.sendall(b"two")
assert told() == "has two\\n", "the way there is open"
connection.settimeout(0.5)
assert answered() is None, "the answer is swallowed"
network.mend([(there, HOME)])
connection.settimeout(20)
assert answered() == "two"
network.cut([(HOME, there)])
try:
    socket.create_connection((there, 7), timeout=0.5)
except TimeoutError:
    print("swallowed", os.stat("/proc/self/ns/net").st_ino, os.stat(f"/proc/{{echo.pid}}/ns/net").st_ino, flush=True)
sys.stdin.read()
"""


def namespaces() -> set[int]:
    """Those in which there is a process."""
    found = set()
    for place in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            found.add(place.stat().st_ino)
        except OSError:
            continue
    return found


def test_packets_are_swallowed_by_direction_and_nothing_is_left_when_it_is_killed() -> None:
    story = subprocess.Popen(
        [sys.executable, "-c", STORY],
        cwd=ROOT,
        env=script_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert story.stdout is not None
        assert story.stderr is not None
        said = story.stdout.readline().split()
        if not said:
            story.wait(PATIENCE_S)
            error = story.stderr.read()
            if error.startswith("not possible"):
                pytest.skip(error.strip())
            raise AssertionError(error)
        assert said[0] == "swallowed"
        assert len({*said[1:], str(Path("/proc/self/ns/net").stat().st_ino)}) == 3
        assert namespaces() >= {int(said[1]), int(said[2])}
    finally:
        story.kill()
        story.wait(PATIENCE_S)
        for pipe in (story.stdin, story.stdout, story.stderr):
            assert pipe is not None
            pipe.close()
    deadline = time.monotonic() + PATIENCE_S
    while namespaces() & {int(said[1]), int(said[2])}:
        assert time.monotonic() < deadline, "a namespace is left"
        time.sleep(0.05)
