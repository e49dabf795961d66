"""`penstock serve` without what the clock decides, so that a schedule of callers leads to the same work in every run.

How long something takes depends on the machine, and under a meter everything takes longer. Nothing else is changed.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

from penstock.cli.main import main
from penstock.fronts.amqp091 import server as amqp
from penstock.fronts.http import server as http
from penstock.fronts.mqtt import server as mqtt
from penstock.node import alarms
from penstock.node.background import retention
from penstock.node.commit import loop
from penstock.store.sqlite import index
from penstock.store.sqlite.log import sync

NEVER_S: Final = 3600.0
NEVER_MS: Final = 3_600_000
SETTINGS: Final[tuple[tuple[ModuleType, str, Any], ...]] = (
    # An ack over AMQP or MQTT waits for another commit to go with: here until there is one.
    (loop, "DEFERRED_SECONDS", NEVER_S),
    # Commits are brought into SQLite's tables when there are so many rows, not once a second.
    (index, "INDEX_SECONDS", NEVER_S),
    (index, "INDEX_ROWS", 256),
    # What is done every so often, however many messages there were.
    (retention, "LIMITS_EVERY_MS", NEVER_MS),
    (alarms, "MEMORY_EVERY_S", NEVER_S),
    (alarms, "DISKS_EVERY_S", NEVER_S),
    (http, "SWEEP_SECONDS", NEVER_S),
    (amqp, "SWEEP_SECONDS", NEVER_S),
    (mqtt, "TICK_SECONDS", NEVER_S),
    (mqtt, "SWEEP_SECONDS", NEVER_S),
    # Every commit looks whether its files are in place, not one in 5 ms.
    (index, "LOOK_SECONDS", -1.0),
    # The event loop syncs, however slow the disk is: not every kernel takes orders to, and a server whose sync is
    # under way looks as if it had nothing to do. The instructions are the same, but for some in a thousand.
    (sync, "load", lambda: None),
    (index, "AT_ONCE_SECONDS", NEVER_S),
)


def set_all() -> None:
    for module, name, value in SETTINGS:
        if name not in vars(module):
            raise SystemExit(
                f"{module.__name__} has no {name} any more: change SETTINGS in {__file__} to the name it has now"
            )
        vars(module)[name] = value


if __name__ == "__main__":
    set_all()
    main()
