"""The fronts of `penstock serve`: built from the registry and their sections, started, stopped and announced."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final, TypeVar

from penstock.api.front_broker import FrontBroker
from penstock.cli.serve.settings import flag_of
from penstock.config import Config, Loaded
from penstock.fronts.answers import Answers
from penstock.fronts.front import Front, Shared
from penstock.fronts.listening import CannotListen
from penstock.fronts.registry import FOR_NODES, FRONTS
from penstock.model.errors import PenstockError, Unavailable
from penstock.store.open import label_of
from penstock.version import VERSION

PATIENCE_S: Final = 30.0
AGAIN_S: Final = 0.5
"""How long a server that starts among others asks again for what they cannot do now, and how often."""

Result = TypeVar("Result")

log = logging.getLogger("penstock.serve")


class CannotStart(Exception):
    """Why the server does not start, and what to do: one line for people, told by `command.py`."""


class CannotStartYet(CannotStart):
    """The same, where it may be over in a moment."""


def cannot_start(error: Exception) -> CannotStart:
    is_passing = isinstance(error, Unavailable) or isinstance(error.__cause__, Unavailable)
    return (CannotStartYet if is_passing else CannotStart)(str(error))


async def patiently(call: Callable[[], Awaitable[Result]], seconds: float) -> Result:
    """Repeat what fails because other servers or the store come and go: to end here would be one more that goes."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        try:
            return await call()
        except CannotStartYet as error:
            if asyncio.get_running_loop().time() >= deadline:
                raise
            log.warning("not ready yet: %s", error)
            await asyncio.sleep(AGAIN_S)


def build_fronts(broker: FrontBroker, config: Config) -> dict[str, Front]:
    """Every front that the configuration wants, by name. None listens yet."""
    built: dict[str, Front] = {}
    every: list[Front] = []
    shared = Shared(
        credentials=config.credentials,
        log_requests=config.log.requests,
        has_metrics=config.metrics.enabled,
        metrics_queues_max=config.metrics.queues_max,
        fronts=every,
        message_bytes=config.limits.message_bytes,
        batch_bytes=config.limits.batch_bytes,
        answers=Answers(config.limits.answer_bytes, config.limits.answer_seconds),
    )
    for entry in FRONTS:
        options = config.fronts[entry.name]
        if not options.enabled:
            continue
        try:
            front = entry.build(broker, options, shared)
        except PenstockError as error:
            raise CannotStart(str(error)) from None
        built[entry.name] = front
        every.append(front)
    return built


async def listen(stack: AsyncExitStack, name: str, front: Front) -> None:
    """Start a front; the stack stops it."""
    try:
        await front.start()
    except CannotListen as error:
        raise cannot_listen(name, error) from None
    except PenstockError as error:
        raise cannot_start(error) from None
    stack.push_async_callback(front.stop)


def cannot_listen(name: str, error: CannotListen) -> CannotStart:
    """Why a port cannot be listened on, and what to do."""
    cause, host, place = error.cause, error.host, f"{error.host}:{error.port}"
    if isinstance(cause, socket.gaierror):
        return CannotStart(f"{name}.host is {host!r}, which is no address here: {cause.strerror}")
    flag = flag_of(name, error.option)
    if name != FOR_NODES.name:
        flag += f", or --no-{name} to do without {name.upper()}"
    advice: dict[Any, str] = {
        errno.EADDRINUSE: f"it is in use, perhaps by another penstock: choose another {flag}; 0 takes a free one",
        errno.EACCES: f"it may not be used: choose a {flag} from 1024 on",
        errno.EADDRNOTAVAIL: f"this machine has no such address: choose another {flag_of(name, 'host')}",
    }
    return CannotStart(f"cannot listen on {place}: {advice.get(cause.errno, cause.strerror or cause)}")


# When they listen ----------------------------------------------------------------------------------------


def announcement(loaded: Loaded, fronts: Mapping[str, Front], declared: dict[str, int]) -> str:
    """What is printed when the server is ready: where it listens, what it declared, and lines to paste and try."""
    config = loaded.config
    url = fronts[FOR_NODES.name].listening[0].url
    lines = [f"Penstock {VERSION} listens on {url} and keeps its data in {label_of(config.store.path)}"]
    if loaded.file is not None:
        counts = ", ".join(f"{count} {DONE[action]}" for action, count in declared.items())
        lines.append(f"Configured by {loaded.file}" + (f"; declared from it: {counts}" if counts else ""))
    for entry in FRONTS:
        if not entry.is_for_nodes and entry.name in fronts:
            places = " and ".join(address.url for address in fronts[entry.name].listening)
            lines.append(f"{entry.title} is at {places}")
    token = ' -H "Authorization: Bearer $PENSTOCK_TOKEN"' if config.http.token else ""
    queue = f"{url}/v1/queues/hello"
    json = "-H 'Content-Type: application/json'"
    lines += [
        "",
        f"Try in another terminal{', with PENSTOCK_TOKEN set to the token' if token else ''}:",
        f"  curl{token} -X PUT {queue} {json} -d '{{}}'",
        f'  curl{token} {queue}/messages {json} -d \'{{"messages": [{{"payload": "hello, world"}}]}}\'',
        f'  curl{token} {queue}/claim {json} -d \'{{"max": 10, "wait": 5, "ack": true}}\'',
        "",
        f"The API is described at {url}/docs. Ctrl+C stops the server; the data stays.",
    ]
    return "\n".join(lines)


DONE = {"create": "created", "change": "changed", "unchanged": "unchanged", "delete": "deleted"}
