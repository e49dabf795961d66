"""A program that gives work to the Celery app and prints what came of it, as one line of JSON.

python -m tests.clients.amqp.celery_client SCENARIO [ARGUMENT]
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from celery import chain, chord, group

from tests.clients.amqp.celery_app import add, app, flaky, hang, say, total

SECONDS = 20.0
COUNTDOWN = 3.0


def results() -> list[Any]:
    single = [add.delay(number, 1) for number in range(20)]
    joined = group(add.s(number, number) for number in range(5))()
    chained = chain(add.s(1, 2), add.s(10))()
    return [[result.get(SECONDS) for result in single], joined.get(SECONDS), chained.get(SECONDS)]


def retries() -> Any:
    return flaky.delay(2).get(SECONDS)


def countdown() -> list[float]:
    """When a task of now and the first task of later were done, in seconds from the beginning."""
    begun = time.time()
    later = [say.apply_async(("later",), countdown=COUNTDOWN) for _ in range(4)]
    now = say.apply_async(("now",))
    return [now.get(SECONDS) - begun, min(result.get(SECONDS) for result in later) - begun]


def ping() -> list[Any]:
    """Remote control: a fanout to all workers, and a queue of answers."""
    return [list(answer.values()) for answer in app.control.ping(timeout=SECONDS, limit=1)]


def priorities() -> None:
    sent = [
        say.apply_async((f"p{priority} {index}",), priority=priority)
        for index, priority in enumerate([1, 1, 9, 0, 5, 9])
    ]
    print("sent", flush=True)
    for result in sent:
        result.get(SECONDS)


def chords() -> Any:
    return chord(add.s(number, number) for number in range(10))(total.s()).get(SECONDS)


def killed(path: str) -> Any:
    return hang.delay(path).get(SECONDS)


SCENARIOS = {
    scenario.__name__: scenario for scenario in (results, retries, countdown, ping, priorities, chords, killed)
}

if __name__ == "__main__":
    print(json.dumps(SCENARIOS[sys.argv[1]](*sys.argv[2:])), flush=True)
