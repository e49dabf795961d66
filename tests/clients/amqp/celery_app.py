"""A Celery app as people write them: the broker and the backend come from the environment, nothing else is special."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery
from kombu import Exchange, Queue

NAME = os.environ.get("CELERY_TEST_QUEUE", "celery-test")

app = Celery("app", broker=os.environ.get("CELERY_TEST_BROKER"), backend=os.environ.get("CELERY_TEST_BACKEND"))
app.conf.update(
    task_default_queue=NAME,
    task_queues=[Queue(NAME, Exchange(NAME), routing_key=NAME, queue_arguments={"x-max-priority": 10})],
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    result_expires=60,
)


@app.task
def add(x: int, y: int) -> int:
    return x + y


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task(bind=True, max_retries=5)
def flaky(self: Any, failures: int) -> int:
    """Fails so many times; the number of its retries."""
    if self.request.retries < failures:
        raise self.retry(countdown=0.1)
    return int(self.request.retries)


@app.task
def say(text: str) -> float:
    """Prints, and tells when."""
    print(f"said {text}", flush=True)
    return time.time()


@app.task(bind=True)
def hang(self: Any, path: str) -> str:
    """The first time it hangs; whoever gets it again finds the file of the first time."""
    try:
        with open(path, "x") as file:  # noqa: PTH123
            file.write("begun")
    except FileExistsError:
        return f"redelivered={self.request.delivery_info['redelivered']}"
    print("hanging", flush=True)
    time.sleep(600)
    return "never"
