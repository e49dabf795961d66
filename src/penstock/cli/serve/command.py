"""`penstock serve`: opens the store, declares what the configuration asks for, listens, and stops gracefully.

What goes wrong on the way is one line with advice and exit code 1; tracebacks are for mistakes of Penstock's own.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import click
import msgspec

from penstock import logs, telemetry
from penstock.api.broker import Broker
from penstock.cli.serve.fronts import (
    PATIENCE_S,
    CannotStart,
    announcement,
    build_fronts,
    cannot_start,
    listen,
    patiently,
)
from penstock.cli.serve.settings import Flags
from penstock.config import Config, Loaded
from penstock.config.load import is_unspecified
from penstock.declare.plan import StepFailed, plan_all, take
from penstock.embedded import NodeSettings, open_member, open_store, open_usable, spool_settings
from penstock.fronts.front import Front
from penstock.fronts.registry import FOR_NODES
from penstock.model.errors import Closed, PenstockError, StoreCorrupt
from penstock.node.broker import LocalBroker
from penstock.node.broker.cluster import ClusterBroker
from penstock.node.clock import StoreClock, SystemClock
from penstock.node.cluster.membership import ClusterOptions
from penstock.node.limits import Limits
from penstock.store.folders import make_folder
from penstock.store.open import scheme_of
from penstock.store.sqlite import server_lock
from penstock.store.sqlite.log import sync

GC_THRESHOLDS: Final = (50_000, 20, 20)
"""New objects before the collector looks; a broker makes many that live long and hardly any in circles.

Seen with 20,000 queues, each declared, published to, claimed from and acknowledged, on two cores that others used too:
0.4 s of collecting instead of 9.5 s, the longest pause 58 ms instead of 746 ms.
"""

SWITCH_SECONDS: Final = 0.0005
"""How long a thread of the store may keep the event loop waiting for Python's lock; the default is ten times that.

Seen at 2,000 single messages a second, from due to acknowledged: p50 7 to 8 ms instead of 11 to 15, on a busy machine.
"""

STOP_WITH: Final = "PENSTOCK_STOP_WITH"
FILES_BESIDE: Final = 200
"""Open files that are no connections: the store's, the library's, one or two to spare."""

log = logging.getLogger("penstock.serve")


def run(flags: Flags) -> None:
    loaded = flags.load()
    logs.set_up(loaded.config.log.level, loaded.config.log.format)
    if loaded.config.cluster.nodes > 1:
        from penstock.cli.serve import nodes

        raise SystemExit(nodes.run(flags, loaded.config))
    try:
        with ExitStack() as stack:
            if not scheme_of(loaded.config.store.path):
                lock_store(stack, Path(loaded.config.store.path))
            trace(stack, loaded.config)
            raise_file_limit([front.max_connections for front in loaded.config.fronts.values() if front.enabled])
            sys.setswitchinterval(SWITCH_SECONDS)
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                runner.run(serve(loaded))
    except CannotStart as error:
        raise click.ClickException(str(error)) from None


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def lock_store(stack: ExitStack, path: Path) -> None:
    """Make the store's folder and hold its lock until the stack ends."""
    try:
        make_folder(path.parent)
        if path.is_dir():
            raise CannotStart(f"{path} is a folder; --store (store.path) names a file")
        stack.enter_context(server_lock.held(path))
    except server_lock.Locked as locked:
        process = f", process {locked}," if str(locked) else ""
        raise CannotStart(
            f"another penstock{process} is serving {path}; stop it, or give this one a file of its own with --store"
        ) from None
    except OSError as error:
        raise CannotStart(
            f"{error.filename or path}: {error.strerror or error}; choose a place that can be written with --store"
        ) from None


def raise_file_limit(connections: Sequence[int]) -> None:
    """Each connection is an open file: take as many as the fronts may have, where the system allows it.

    A warning says where not even those of the first front, HTTP, have room.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = sum(connections) + FILES_BESIDE
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if allowed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < connections[0]:
        log.warning(
            "the system allows %d open files, http.max_connections is %d: some may find no place (ulimit -n)",
            allowed,
            connections[0],
        )


def trace(stack: ExitStack, config: Config) -> None:
    """Turn telemetry on where that is asked for; what is left of it is sent when the stack ends."""
    wanted = config.telemetry
    settings = telemetry.Settings(enabled=wanted.enabled, endpoint=wanted.endpoint, service_name=wanted.service_name)
    try:
        telemetry.configure(settings)
    except PenstockError as error:
        raise CannotStart(str(error)) from None
    stack.callback(telemetry.shutdown)


# The server's life ---------------------------------------------------------------------------------------


async def serve(loaded: Loaded) -> None:
    """Serve until a signal says stop."""
    config = loaded.config
    stop = stop_signal()
    broker = await open_broker(config)
    try:
        declared = {} if isinstance(broker, ClusterBroker) else await declare(broker, loaded)
        async with AsyncExitStack() as stack:
            fronts = build_fronts(broker, config)
            patience_s = PATIENCE_S if isinstance(broker, ClusterBroker) else 0.0
            for name, front in fronts.items():
                await patiently(partial(listen, stack, name, front), patience_s)
                if name == FOR_NODES.name and isinstance(broker, ClusterBroker):
                    declared = await join(broker, loaded, front)
                    # Before HTTP stops: it sends requests on to the nodes that take over.
                    stack.push_async_callback(broker.cluster.leave)
            settle_memory()
            click.echo(announcement(loaded, fronts, declared))
            if not scheme_of(config.store.path):
                sync.make_ready()  # now, rather than in the middle of somebody's commits
            await stop.wait()
            log.info("stopping: answers under way are finished, waiting claims are answered empty")
    finally:
        await broker.close()
    log.info("stopped")


def stop_signal() -> asyncio.Event:
    """Set by the first SIGTERM or SIGINT; the second ends the process at once, by that signal."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def caught(number: signal.Signals) -> None:
        if stop.is_set():
            # What is committed is safe: this is no worse than a crash.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        stop.set()

    def parent_gone(pipe: int) -> None:
        loop.remove_reader(pipe)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, caught, number)
    stop_with = os.environ.get(STOP_WITH, "")
    if stop_with.isdigit():  # a pipe that closes when the process that started this server ends
        loop.add_reader(int(stop_with), parent_gone, int(stop_with))
    return stop


async def join(broker: ClusterBroker, loaded: Loaded, http: Front) -> dict[str, int]:
    """Become one of the servers of the store, then declare what the file asks for, wherever it belongs."""
    config = loaded.config
    url = config.cluster.advertise or http.listening[0].url
    if not config.cluster.advertise and is_unspecified(config.http.host):
        raise CannotStart(
            f"http.host is {config.http.host!r}, which other servers of the store cannot use to reach this one; "
            "say where they can with --advertise http://ADDRESS:PORT"
        )
    try:
        await broker.cluster.join(url)
    except PenstockError as error:
        raise CannotStart(str(error)) from None
    return await patiently(partial(declare, broker, loaded), PATIENCE_S)


async def open_broker(config: Config) -> LocalBroker | ClusterBroker:
    limits = msgspec.convert(config.limits, Limits, from_attributes=True)
    try:
        spool = None
        if has_spool(config):
            spool = spool_settings(config.spool.folder, config.spool.bytes, config.http.port)
        store = await open_usable(config.store.path)
        settings: NodeSettings = {
            "cache_bytes": config.node.cache_bytes,
            "events": config.node.events,
            "limits": limits,
            "enqueue_poll": config.node.enqueue_poll,
            "spool": spool,
            "scrub_bytes_per_second": config.node.scrub_bytes_per_second,
            "disks": disks(config),
        }
        if scheme_of(config.store.path):
            options = ClusterOptions(heartbeat_ms=config.cluster.heartbeat_ms, lease_ms=config.cluster.lease_ms)
            return ClusterBroker.of(await open_member(store, StoreClock(), options=options, **settings))
        return await open_store(store, SystemClock(), **settings)
    except StoreCorrupt as error:
        raise CannotStart(f"{error}; choose another file with --store, or restore this one from a backup") from None
    except PenstockError as error:
        advice = (
            ""
            if scheme_of(config.store.path) or isinstance(error, Closed)
            else "; choose a place that can be written with --store"
        )
        raise CannotStart(f"{error}{advice}") from None


def disks(config: Config) -> dict[str, Path]:
    """The folders that need room, by what is in them."""
    found = {} if scheme_of(config.store.path) else {"store": Path(config.store.path).absolute().parent}
    return found | ({"spool": Path(config.spool.folder).absolute()} if has_spool(config) else {})


def has_spool(config: Config) -> bool:
    """A file is on the same disk as its spool would be: where it is away, so is that."""
    if config.spool.enabled == "auto":
        return bool(scheme_of(config.store.path))
    return config.spool.enabled == "yes"


async def declare(broker: Broker, loaded: Loaded) -> dict[str, int]:
    """Declare what the configuration's file asks for; how many things were created, changed and left."""
    try:
        steps = await plan_all(broker, loaded.declarations)
    except PenstockError as error:
        raise cannot_start(error) from None
    for step in steps:
        if step.action == "conflict":
            changes = ", ".join(f"{change.option} {change.old!r} → {change.new!r}" for change in step.changes)
            raise CannotStart(
                f"{step.where}: {step.title} exists and cannot change so: {changes}; "
                "take the change back, or delete it first"
            )
    try:
        await take(broker, steps)
    except StepFailed as error:
        raise cannot_start(error) from None
    actions = [step.action for step in steps]
    return {action: actions.count(action) for action in dict.fromkeys(actions)}


def settle_memory() -> None:
    """Freeze the objects alive now: they stay, so the garbage collector skips them and runs less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
