"""The client without asyncio: threads, interrupts, signals, exits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock import Client, Closed, InvalidArgument, LeaseLost, Message, NotFound, Received, Reject
from penstock.cli.dev.checkout import script_environment
from tests.clients.http.rig import PATIENCE_S, ServerProcess


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path / "queue.db")
    process.start()
    try:
        yield process
    finally:
        process.kill()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.url) as opened:
        yield opened


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.005)


# Use ------------------------------------------------------------------------------------------------------


def test_threads_share_a_client(client: Client) -> None:
    client.declare_queue("q")
    threads, each = 8, 50
    done: Counter[bytes] = Counter()
    lock = threading.Lock()

    def publish(number: int) -> None:
        for i in range(each):
            client.publish("q", Message(b"%d-%d" % (number, i)))

    def consume(number: int) -> None:
        while done.total() < threads * each:
            claim = client.claim("q", max=10, wait=0.1, consumer=f"c{number}")
            if len(claim):
                with lock:
                    done.update(claim.payloads())
                client.ack(claim)

    with ThreadPoolExecutor(2 * threads) as pool:
        for future in [pool.submit(work, n) for n in range(threads) for work in (publish, consume)]:
            future.result(PATIENCE_S)
    assert done == Counter({b"%d-%d" % (number, i): 1 for number in range(threads) for i in range(each)})


def test_all_of_it(client: Client) -> None:
    queue = client.queue("q").declare(max_attempts=3)
    assert queue.name == "q"
    group = queue.group("g").declare(kind="stream", auto_commit=False)
    exchange = client.exchange("e").declare(kind="fanout").bind("q")
    with client.producer("q") as sender:
        sent = sender.send(Message(b"1"))
        more = sender.send_many([Message(b"2"), Message(b"3")])
        assert sent.result()[0].offset == 0
        assert sent.message.payload == b"1"
    assert [one.done() for one in more] == [True, True]
    exchange.publish(Message(b"4"))
    with client.stream("q", "g", wait=0.05) as reader:
        assert [received.payload for received in reader] == [b"1", b"2", b"3", b"4"]
    assert client.stats("q").groups[0].lag == 0
    group.seek(to="first")
    assert (group.queue, len(group.read())) == ("q", 4)
    claim = client.claim("q", max=2)
    with client.transaction() as unit:
        unit.ack(claim, [0]).publish("q", Message(b"5")).release(claim, [1])
    assert unit.receipt is not None
    assert [place.offset for place in unit.receipt] == [4]
    with pytest.raises(LeaseLost), client.transaction() as unit:
        unit.ack(claim)
    other = client.in_namespace("other")
    assert other.queues() == {}
    with pytest.raises(NotFound):
        other.publish("q", Message(b""))
    client.check_ready()


def test_a_consumer_runs_plain_handlers_in_threads(client: Client) -> None:
    client.declare_queue("q")
    client.publish_many("q", [Message(b"%d" % i) for i in range(40)])
    names: set[str] = set()

    def handler(received: Received) -> None:
        names.add(threading.current_thread().name)
        time.sleep(0.002)
        if received.offset == 7:
            raise Reject("seven")

    runner = client.consumer("q", handler, concurrency=4, poll_seconds=0.1)
    running = threading.Thread(target=runner.run)
    running.start()
    wait_for(lambda: runner.handled + runner.failed == 40)
    runner.stop()
    running.join()
    assert (runner.handled, runner.failed, runner.is_stopping) == (39, 1, True)
    assert len(names) == 4
    group = client.stats("q").groups[0]
    assert (group.lag, group.dead) == (0, 1)


def test_bad_options_leave_no_thread() -> None:
    before = set(threading.enumerate())
    with pytest.raises(InvalidArgument):
        Client("ftp://nowhere")
    assert set(threading.enumerate()) <= before  # those of an earlier test may end meanwhile


def test_ctrl_c_ends_a_claim_that_waits(client: Client) -> None:
    client.declare_queue("q")
    waiting = threading.Event()

    def strike() -> None:
        waiting.wait()
        time.sleep(0.2)  # it is not known from outside when the claim waits; before or after, it must end
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    striker = threading.Thread(target=strike)
    striker.start()
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the strike comes after the first line
        waiting.set()
        client.claim("q", wait=600)
    striker.join()
    client.publish("q", Message(b"kept"))
    wait_for(lambda: len(client.claim("q")) == 1)


def test_use_after_close_is_refused(server: ServerProcess) -> None:
    client = Client(server.url)
    sender = client.producer("q")
    client.close()
    client.close()
    for call in (
        client.queues,
        client.transaction,
        lambda: sender.send(Message(b"")),
        lambda: client.in_namespace("x"),
    ):
        with pytest.raises(Closed, match="the client is closed"):
            call()


# Processes ------------------------------------------------------------------------------------------------

CONSUME = """
import sys, time, penstock
client = penstock.Client(sys.argv[1])
def handler(received):
    sys.stdout.write(f"{received.offset}\\n")  # at once: print writes the end of a line apart, and threads mix them
    sys.stdout.flush()
    time.sleep(0.3)
client.consume("q", handler, concurrency=2, prefetch=10, poll_seconds=0.2)
print("left", flush=True)
client.close()
"""

EXIT_WITHOUT_CLOSE = """
import sys, threading, penstock
client = penstock.Client(sys.argv[1])
client.publish("q", penstock.Message(b"last"))
threading.excepthook = lambda arguments: None
threading.Thread(target=client.claim, args=("empty",), kwargs={"wait": 600}, daemon=True).start()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_consumer_with_care(client: Client, server: ServerProcess, number: signal.Signals) -> None:
    client.declare_queue("q")
    client.publish_many("q", [Message(b"%d" % i) for i in range(30)])
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", CONSUME, server.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=script_environment(),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        first = process.stdout.readline()
        os.kill(process.pid, number)
        # Not `communicate`: it would pass over what `readline` has already taken in behind the first line.
        out, err = process.stdout.read(), process.stderr.read()
    assert (process.wait(PATIENCE_S), err) == (0, "")
    *begun, last = (first + out).split()
    assert last == "left"
    assert len(begun) < 10
    group = client.stats("q").groups[0]
    assert (group.leased, group.lag) == (0, 30 - len(begun))
    assert {received.attempt for received in client.claim("q", max=100).messages} == {1}


def test_an_exit_without_close_neither_hangs_nor_loses(client: Client, server: ServerProcess) -> None:
    client.declare_queue("q")
    client.declare_queue("empty")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", EXIT_WITHOUT_CLOSE, server.url],
        env=script_environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert client.claim("q").payloads() == [b"last"]
