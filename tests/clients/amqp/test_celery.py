"""A Celery app, unchanged: workers, and the program that gives them work, in processes of their own.

Results come back over the same broker (`rpc://`). Celery itself refuses chords with that backend, so the chord keeps
its results in files; the tasks that unlock it go through the broker, delayed and retried.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.clients.amqp.celery_client import COUNTDOWN
from tests.clients.amqp.programs import ROOT, Program
from tests.clients.amqp.rig import Address, unique

APP = "tests.clients.amqp.celery_app"
CLIENT = "tests.clients.amqp.celery_client"
SHARED = unique("celery")


class Celery:
    """Starts workers and clients of one queue, and stops them."""

    def __init__(self, address: Address, stack: ExitStack, queue: str, backend: str = "rpc://") -> None:
        self._stack = stack
        self._variables = {
            "CELERY_TEST_BROKER": address.url,
            "CELERY_TEST_BACKEND": backend,
            "CELERY_TEST_QUEUE": queue,
        }

    def worker(self, pool: str = "solo") -> Program:
        options = ("--pool", pool, "--concurrency", "1", "--loglevel", "INFO", "--hostname", unique("worker"))
        return self._start("-m", "celery", "-A", APP, "worker", *options)

    def client(self, scenario: str, *arguments: str) -> Program:
        return self._start("-m", CLIENT, scenario, *arguments)

    def outcome(self, scenario: str, *arguments: str) -> Any:
        return outcome(self.client(scenario, *arguments))

    def _start(self, *arguments: str) -> Program:
        started = Program(*arguments, folder=ROOT, **self._variables)
        self._stack.callback(started.stop)
        return started


def outcome(client: Program) -> Any:
    return json.loads(client.end()[-1])


@pytest.fixture(scope="module")
def shared(address: Address) -> Iterator[Celery]:
    """With one worker that is there already, with a pool of processes as by default."""
    with ExitStack() as stack:
        celery = Celery(address, stack, SHARED)
        worker = celery.worker(pool="prefork").wait_for(" ready.")
        yield celery
        # By itself, so that its processes end with it.
        worker.process.terminate()
        worker.process.wait()


@pytest.fixture
def make(address: Address) -> Iterator[Callable[..., Celery]]:
    with ExitStack() as stack:
        yield lambda **options: Celery(address, stack, unique("celery"), **options)


def test_tasks_and_their_results(shared: Celery) -> None:
    assert shared.outcome("results") == [list(range(1, 21)), [0, 2, 4, 6, 8], 13]


def test_retries(shared: Celery) -> None:
    assert shared.outcome("retries") == 2


def test_countdown(shared: Celery) -> None:
    """Tasks of later do not hold up tasks of now, though the worker takes one at a time."""
    now, later = shared.outcome("countdown")
    assert now < COUNTDOWN <= later


def test_the_worker_can_be_asked(shared: Celery) -> None:
    assert shared.outcome("ping") == [[{"ok": "pong"}]]


def test_priorities(make: Callable[..., Celery]) -> None:
    celery = make()
    client = celery.client("priorities").wait_for("sent")
    worker = celery.worker()
    client.end()
    said = [line.partition("said ")[2] for line in list(worker.lines) if "said " in line]
    assert said == ["p9 2", "p9 5", "p5 4", "p1 0", "p1 1", "p0 3"]


def test_a_chord(make: Callable[..., Celery], tmp_path: Path) -> None:
    celery = make(backend=f"file://{tmp_path}")
    celery.worker()
    assert celery.outcome("chords") == 90


def test_what_a_killed_worker_had_is_done_by_another(make: Callable[..., Celery], tmp_path: Path) -> None:
    celery = make()
    client = celery.client("killed", str(tmp_path / "begun"))
    celery.worker().wait_for("hanging").stop()
    celery.worker()
    assert outcome(client) == "redelivered=True"
