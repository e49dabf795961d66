"""mosquitto_pub and mosquitto_sub of Debian's package, as they are used in shells."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.clients.mqtt.rig import PATIENCE_S, MqttServerProcess, Peer, unique
from tools.debian_packages import library_path
from tools.get_databases import mosquitto_root

ROOT = mosquitto_root()
pytestmark = pytest.mark.skipif(
    ROOT is None,
    reason="there are no Mosquitto clients: run `.venv/bin/python -m tools.get_databases`, which says what is in the "
    "way, or install Debian's mosquitto-clients",
)
VERSIONS = pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])


def command(program: str, server: MqttServerProcess, version: str, *arguments: str) -> list[str]:
    assert ROOT is not None
    path = ROOT / "usr/bin" / program
    return [str(path), "-h", "127.0.0.1", "-p", str(server.port), "-V", version, *arguments]


def environment() -> dict[str, str]:
    return os.environ | (library_path(ROOT) if ROOT not in (None, Path("/")) else {})


def publish(server: MqttServerProcess, version: str, *arguments: str, given: str | None = None) -> str:
    done = subprocess.run(
        command("mosquitto_pub", server, version, *arguments),
        input=given,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@contextmanager
def subscribed(server: MqttServerProcess, version: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A mosquitto_sub that has its subscription: it says so with -d, line by line."""
    process = subprocess.Popen(
        ["stdbuf", "-oL", *command("mosquitto_sub", server, version, "-d", *arguments)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("Subscribed"):
                break
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(PATIENCE_S)
        assert process.stdout is not None
        process.stdout.close()


def printed(process: subprocess.Popen[str]) -> list[str]:
    """The messages that it printed until it ended by itself."""
    output, _ = process.communicate(timeout=PATIENCE_S)
    said = ("Client ", "Subscribed")
    return [line for line in output.splitlines() if line and not line.startswith(said)]


@VERSIONS
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_pub_and_sub(server: MqttServerProcess, version: str, qos: str) -> None:
    topic = unique("mosquitto")
    with subscribed(server, version, "-t", f"{topic}/#", "-q", qos, "-C", "20", "-F", "%t %q %p") as process:
        lines = "\n".join(map(str, range(20)))
        publish(server, version, "-t", f"{topic}/a", "-q", qos, "-l", given=lines + "\n")
        assert printed(process) == [f"{topic}/a {qos} {number}" for number in range(20)]


@VERSIONS
def test_retained_and_removed(server: MqttServerProcess, version: str) -> None:
    topic = unique("kept")
    publish(server, version, "-t", f"{topic}/a", "-m", "stays", "-q", "1", "-r")
    publish(server, version, "-t", f"{topic}/b", "-m", "goes", "-q", "1", "-r")
    publish(server, version, "-t", f"{topic}/b", "-n", "-q", "1", "-r")
    done = subprocess.run(
        command("mosquitto_sub", server, version, "-t", f"{topic}/#", "-C", "1", "-W", "10", "-F", "%t %r %p"),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, f"{topic}/a 1 stays\n"), done.stderr


@VERSIONS
def test_a_lasting_session(server: MqttServerProcess, version: str) -> None:
    topic, client_id = unique("lasting"), unique("mosquitto")
    session = ["-i", client_id, "-c", "-q", "1", "-t", topic, "-W", "10"]
    if version == "mqttv5":
        session += ["-x", "300"]
    done = subprocess.run(
        command("mosquitto_sub", server, version, *session, "-E"),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for number in range(3):
        publish(server, version, "-t", topic, "-m", f"{number}", "-q", "1")
    done = subprocess.run(
        command("mosquitto_sub", server, version, *session, "-C", "3"),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["0", "1", "2"]), done.stderr


def test_properties_of_version_5(server: MqttServerProcess) -> None:
    topic = unique("properties")
    with subscribed(server, "mqttv5", "-t", topic, "-q", "1", "-C", "1", "-F", "%j") as process:
        publish(
            server,
            "mqttv5",
            "-t",
            topic,
            "-m",
            "x",
            "-q",
            "1",
            "-D",
            "publish",
            "content-type",
            "text/plain",
            "-D",
            "publish",
            "user-property",
            "a",
            "b",
            "-D",
            "publish",
            "response-topic",
            "answers",
            "-D",
            "publish",
            "correlation-data",
            "c1",
            "-D",
            "publish",
            "message-expiry-interval",
            "100",
        )
        found = json.loads(printed(process)[0])["properties"]
        assert found["content-type"] == "text/plain"
        assert found["user-properties"] == {"a": "b"}
        assert found["response-topic"] == "answers"


def test_the_documented_way_to_consume_a_queue(server: MqttServerProcess) -> None:
    name = unique("orders")
    group = ("-D", "subscribe", "user-property", "consumer-group", "workers")
    with subscribed(server, "mqttv5", "-t", f"$queue/{name}/#", "-q", "1", "-C", "2", *group) as process:
        publish(server, "mqttv5", "-t", f"$queue/{name}/eu", "-m", "one", "-q", "1")
        publish(server, "mqttv311", "-t", f"$queue/{name}/us", "-m", "two", "-q", "2")
        assert printed(process) == ["one", "two"]


@VERSIONS
def test_a_will(server: MqttServerProcess, version: str) -> None:
    topic = unique("will")
    with Peer(server) as witness:
        witness.subscribe(f"{topic}/#", qos=1)
        will = ("--will-topic", f"{topic}/gone", "--will-payload", "bye", "--will-qos", "1")
        with subscribed(server, version, "-t", "x", *will) as process:
            process.kill()
            assert witness.next().payload == b"bye"


def test_the_request_and_response_client(server: MqttServerProcess) -> None:
    """mosquitto_rr: it publishes with a response topic and prints the answer."""
    topic = unique("rr")
    with Peer(server) as answering:
        answering.subscribe(f"{topic}/questions", qos=1)
        process = subprocess.Popen(
            command(
                "mosquitto_rr",
                server,
                "mqttv5",
                "-t",
                f"{topic}/questions",
                "-e",
                f"{topic}/answers",
                "-m",
                "6*7",
                "-q",
                "1",
                "-W",
                "10",
            ),
            env=environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        asked = answering.next()
        answering.publish(asked.properties.ResponseTopic, b"42")
        output, _ = process.communicate(timeout=PATIENCE_S)
        assert output == "42\n"
