"""The six programs with which people learn AMQP, each in processes of its own, as the tutorials have them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.amqp.programs import Program, Programs, programs
from tests.clients.amqp.rig import Address, until


@pytest.fixture
def tutorials(address: Address, tmp_path: Path) -> Iterator[Programs]:
    with programs(address, tmp_path) as started:
        yield started


def received(program: Program, prefix: str = " [x] ") -> list[str]:
    return [line.removeprefix(prefix) for line in list(program.lines) if line.startswith(prefix)]


def test_hello_world(tutorials: Programs) -> None:
    assert tutorials.run("send") == [" [x] Sent 'Hello World!'"]
    receiver = tutorials.start("receive").wait_for("Received Hello World!")
    tutorials.run("send")
    until(lambda: received(receiver) == ["Received Hello World!"] * 2, "the second message")


def test_work_queues(tutorials: Programs) -> None:
    """Each worker has one task at a time; what a killed worker had goes to the other."""
    slow = tutorials.start("worker").wait_for("Waiting for messages")
    tutorials.run("new_task", "a" + "." * 600)
    slow.wait_for("Received a")
    fast = tutorials.start("worker").wait_for("Waiting for messages")
    for name in "bcd":
        tutorials.run("new_task", name)
    for name in "bcd":
        fast.wait_for(f"Done {name}")
    assert not any("b" in line for line in received(slow))
    slow.stop()
    fast.wait_for("Received a")


def test_publish_and_subscribe(tutorials: Programs) -> None:
    tutorials.run("emit_log", "nobody hears this")
    listeners = [tutorials.start("receive_logs") for _ in range(2)]
    for listener in listeners:
        listener.wait_for("Waiting for logs")
    tutorials.run("emit_log", "hello, all")
    for listener in listeners:
        listener.wait_for("hello, all")
        assert received(listener) == ["hello, all"]


def test_routing(tutorials: Programs) -> None:
    errors = tutorials.start("receive_logs_direct", "error").wait_for("Waiting for logs")
    everything = tutorials.start("receive_logs_direct", "info", "warning", "error").wait_for("Waiting for logs")
    for severity in ("info", "error", "warning"):
        tutorials.run("emit_log_direct", severity, "it", "happened")
    everything.wait_for("warning:it happened")
    errors.wait_for("error:it happened")
    assert received(everything) == [f"{severity}:it happened" for severity in ("info", "error", "warning")]
    assert received(errors) == ["error:it happened"]


def test_topics(tutorials: Programs) -> None:
    patterns = ("#", "kern.*", "*.critical", "kern.*|*.critical")
    listeners: dict[str, Program] = {
        pattern: tutorials.start("receive_logs_topic", *pattern.split("|")) for pattern in patterns
    }
    for listener in listeners.values():
        listener.wait_for("Waiting for logs")
    sent = ("kern.critical", "kern.info", "cron.critical", "cron.info", "kern.critical.late", "end")
    for key in sent:
        tutorials.run("emit_log_topic", key, "x")
    expected = {
        "#": sent,
        "kern.*": ("kern.critical", "kern.info"),
        "*.critical": ("kern.critical", "cron.critical"),
        "kern.*|*.critical": ("kern.critical", "kern.info", "cron.critical"),
    }
    for pattern, keys in expected.items():
        listeners[pattern].wait_for(f"{keys[-1]}:x")
        assert received(listeners[pattern]) == [f"{key}:x" for key in keys]


def test_rpc(tutorials: Programs) -> None:
    server = tutorials.start("rpc_server").wait_for("Awaiting RPC requests")
    assert tutorials.run("rpc_client")[-1] == " [.] Got 6765"
    server.wait_for("fib(20)")
