"""The broker without asyncio: threads, interrupts, closing, exits."""

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
from typing import NoReturn

import pytest

import penstock
from penstock import Claim, Closed, InvalidArgument, LeaseLost, Message, NotFound
from penstock.cli.dev.checkout import script_environment
from penstock.loop_thread import LoopThread
from penstock.node.broker import LocalBroker
from penstock.node.node import Node
from penstock.sync import SyncBroker
from tests import nodes

THREADS = 8
MESSAGES_EACH = 150


@pytest.fixture(params=["uvloop", "asyncio"])
def broker(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SyncBroker]:
    if request.param == "asyncio":
        monkeypatch.setitem(sys.modules, "uvloop", None)
    else:
        pytest.importorskip("uvloop")
    with penstock.sync.open(tmp_path / "queue.db") as opened:
        yield opened


def node_of(broker: SyncBroker) -> Node:
    assert isinstance(broker._inner, LocalBroker)
    return nodes.node_of(broker._inner)


# Threads --------------------------------------------------------------------------------------------------


def test_threads_publish_claim_and_ack_together(broker: SyncBroker) -> None:
    broker.declare_queue("work")
    total = THREADS * MESSAGES_EACH
    done: Counter[bytes] = Counter()
    lock = threading.Lock()

    def publish(number: int) -> list[int]:
        return [broker.publish("work", Message(b"%d-%d" % (number, i))).offset for i in range(MESSAGES_EACH)]

    def consume(number: int) -> None:
        while sum(done.values()) < total:
            claim = broker.claim("work", max=10, wait=0.2, consumer=f"consumer-{number}")
            if len(claim):
                with lock:
                    done.update(claim.payloads())
                broker.ack(claim)

    with ThreadPoolExecutor(2 * THREADS) as threads:
        consumers = [threads.submit(consume, number) for number in range(THREADS)]
        offsets = [offset for offsets in threads.map(publish, range(THREADS)) for offset in offsets]
        for consumer in consumers:
            consumer.result()
    assert sorted(offsets) == list(range(total))
    assert done == Counter({b"%d-%d" % (number, i): 1 for number in range(THREADS) for i in range(MESSAGES_EACH)})
    assert broker.stats("work").groups[0].lag == 0


def test_errors_come_out_as_they_are(broker: SyncBroker) -> None:
    with pytest.raises(NotFound, match="no queue 'absent'"):
        broker.publish("absent", Message(b""))
    broker.declare_queue("work")
    with pytest.raises(InvalidArgument, match="max is 0"):
        broker.claim("work", max=0)


def test_a_broker_that_cannot_be_opened_leaves_no_thread(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with pytest.raises(penstock.PenstockError):
        penstock.sync.open(tmp_path)  # a folder
    assert set(threading.enumerate()) <= before  # those of an earlier test may end meanwhile


def fail_after(_done: object) -> NoReturn:
    raise ZeroDivisionError


def make_queue(session: SyncBroker) -> str:
    session.declare_queue("mine", exclusive=True)
    return session.attach("mine")


# Context managers -----------------------------------------------------------------------------------------


def test_a_transaction_is_all_or_nothing(broker: SyncBroker) -> None:
    broker.declare_queue("in")
    broker.declare_queue("out")
    broker.publish("in", Message(b"order"))
    claim = broker.claim("in")
    with broker.transaction() as transaction:
        transaction.ack(claim).publish("out", Message(b"invoice"), Message(b"letter"))
    assert transaction.receipt is not None
    assert [place.offset for place in transaction.receipt] == [0, 1]
    with pytest.raises(LeaseLost), broker.transaction() as transaction:
        transaction.publish("out", Message(b"never")).ack(claim)
    with pytest.raises(ZeroDivisionError), broker.transaction() as transaction:
        fail_after(transaction.publish("out", Message(b"never")))
    assert broker.claim("out", max=9).payloads() == [b"invoice", b"letter"]


def test_a_session_ends_with_its_block(broker: SyncBroker) -> None:
    with broker.session() as session:
        session.declare_queue("mine", exclusive=True)
        assert list(broker.queues()) == ["$events", "mine"]
        with pytest.raises(penstock.Forbidden):
            broker.claim("mine")
    assert list(broker.queues()) == ["$events"]
    with pytest.raises(ZeroDivisionError), broker.session() as session:
        fail_after(make_queue(session))
    assert list(broker.queues()) == ["$events"]


def test_a_session_may_outlive_its_broker(tmp_path: Path) -> None:
    broker = penstock.sync.open(tmp_path / "queue.db")
    with broker.session() as session:
        session.declare_queue("mine", exclusive=True)
        broker.close()
    with pytest.raises(Closed), broker.session():
        pass


def test_a_namespace_is_its_own_world(broker: SyncBroker) -> None:
    other = broker.in_namespace("other")
    other.declare_queue("work")
    assert list(other.queues()) == ["work"]
    assert "work" not in broker.queues()


# Interrupts -----------------------------------------------------------------------------------------------


def interrupt_soon(condition: Callable[[], bool] = lambda: True) -> threading.Thread:
    """Ctrl-C for the main thread, as soon as a condition holds."""

    def strike() -> None:
        while not condition():
            time.sleep(0.001)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=strike)
    thread.start()
    return thread


def test_ctrl_c_cancels_a_claim_that_waits(broker: SyncBroker) -> None:
    broker.declare_queue("work")
    node = node_of(broker)
    striker = interrupt_soon(lambda: node.waiters.count == 1)
    with pytest.raises(KeyboardInterrupt):
        broker.claim("work", wait=60)
    striker.join()
    assert node.waiters.count == 0
    broker.publish("work", Message(b"kept"))
    claim = broker.claim("work")
    assert [(received.payload, received.attempt) for received in claim] == [(b"kept", 1)]


def test_an_answer_that_nobody_saw_is_undone() -> None:
    thread = LoopThread("test")
    waiting, undone = threading.Event(), list[str]()

    async def stubborn() -> str:
        import asyncio

        waiting.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "done all the same"
        return "never"

    async def undo(answer: str) -> None:
        undone.append(answer)

    striker = interrupt_soon(waiting.is_set)
    with pytest.raises(KeyboardInterrupt):
        thread.run_or_undo(undo, stubborn)
    striker.join()
    assert undone == ["done all the same"]
    thread.close()


def test_a_claim_that_nobody_saw_is_given_back(broker: SyncBroker) -> None:
    broker.declare_queue("work")
    broker.publish("work", Message(b"once"))
    claim = broker.claim("work")
    broker._thread.run(broker._give_back, claim)
    broker._thread.run(broker._give_back, Claim("work", 0, None, 0, []))
    assert [received.attempt for received in broker.claim("work")] == [1]


# Closing --------------------------------------------------------------------------------------------------


def test_use_after_close_is_refused(tmp_path: Path) -> None:
    broker = penstock.sync.open(tmp_path / "queue.db")
    broker.declare_queue("work")
    transaction, other = broker.transaction(), broker.in_namespace("other")
    broker.close()
    broker.close()
    calls: list[Callable[[], object]] = [
        broker.queues,
        broker.transaction,
        lambda: broker.publish("work", Message(b"")),
        lambda: broker.claim("work"),
        lambda: transaction.publish("work", Message(b"")),
        transaction.commit,
        other.queues,
    ]
    for call in calls:
        with pytest.raises(Closed):
            call()


def test_close_ends_those_who_wait_and_joins_the_thread(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    broker = penstock.sync.open(tmp_path / "queue.db")
    broker.declare_queue("work")
    with ThreadPoolExecutor(THREADS) as threads:
        waiting = [threads.submit(broker.claim, "work", wait=60) for _ in range(THREADS - 1)]
        while node_of(broker).waiters.count < THREADS - 1:
            time.sleep(0.001)
        closing = threads.submit(broker.close)
        broker.close()
        closing.result()
        for future in waiting:
            with pytest.raises(Closed):
                future.result()
    assert set(threading.enumerate()) <= before  # those of an earlier test may end meanwhile


def test_what_was_answered_is_there_after_a_close_under_load(tmp_path: Path) -> None:
    broker = penstock.sync.open(tmp_path / "queue.db")
    broker.declare_queue("work")
    answered: list[int] = []

    def publish() -> None:
        while True:
            try:
                answered.append(broker.publish("work", Message(b"x")).offset)
            except Closed:
                return

    with ThreadPoolExecutor(THREADS) as threads:
        futures = [threads.submit(publish) for _ in range(THREADS)]
        while len(answered) < 50:
            time.sleep(0.001)
        broker.close()
        for future in futures:
            future.result()
    with penstock.sync.open(tmp_path / "queue.db") as reopened:
        stored = {received.offset for received in reopened.read_from("work", max=100_000).messages}
    assert set(answered) <= stored
    assert len(set(answered)) == len(answered)


# Exits ----------------------------------------------------------------------------------------------------


def run_script(source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", source, *arguments]
    return subprocess.run(command, env=script_environment(), capture_output=True, text=True, timeout=30, check=False)


EXIT_WITH_BUSY_THREADS = """
import sys, threading, time, penstock
broker = penstock.sync.open(sys.argv[1])
broker.declare_queue("work")
def publish():
    while True:
        sys.stdout.write(f"{broker.publish('work', penstock.Message(b'x')).offset}\\n")
threads = [threading.Thread(target=publish, daemon=True) for _ in range(4)]
def quiet(arguments):
    if arguments.exc_type is not penstock.Closed:
        sys.__excepthook__(arguments.exc_type, arguments.exc_value, arguments.exc_traceback)
threading.excepthook = quiet
for thread in threads:
    thread.start()
while broker.stats("work").published < 100:
    time.sleep(0.001)
"""


def test_an_exit_without_close_neither_hangs_nor_loses(tmp_path: Path) -> None:
    path = str(tmp_path / "queue.db")
    started = time.monotonic()
    done = run_script(EXIT_WITH_BUSY_THREADS, path)
    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - started < 10
    answered = [int(line) for line in done.stdout.split()]
    with penstock.sync.open(path) as broker:
        stored = {received.offset for received in broker.read_from("work", max=100_000).messages}
    assert len(answered) >= 50
    assert set(answered) <= stored


def test_an_exit_while_a_claim_waits_does_not_hang(tmp_path: Path) -> None:
    source = """
import sys, threading, penstock
broker = penstock.sync.open(sys.argv[1])
broker.declare_queue("work")
threading.excepthook = lambda arguments: None
threading.Thread(target=broker.claim, args=("work",), kwargs={"wait": 600}, daemon=True).start()
"""
    done = run_script(source, str(tmp_path / "queue.db"))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_is_told_to_open_its_own(tmp_path: Path) -> None:
    source = """
import os, sys, warnings, penstock
warnings.simplefilter("ignore")
broker = penstock.sync.open(sys.argv[1])
if os.fork() == 0:
    try:
        broker.queues()
    except penstock.Closed as error:
        print(error, flush=True)
    broker.close()
    os._exit(0)
os.wait()
print(list(broker.queues()))
"""
    done = run_script(source, str(tmp_path / "queue.db"))
    assert done.stderr == ""
    assert "a child process must open its own\n['$events']" in done.stdout
