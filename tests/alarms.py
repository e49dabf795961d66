"""Alarms for tests: a broker's memory is low when a test says so."""

from __future__ import annotations

from penstock.node.broker import LocalBroker
from penstock.node.limits import Limits

WAIT_S = 0.05


def raise_alarm(broker: LocalBroker, wait: float = WAIT_S) -> None:
    """Publishes wait for so many seconds, and are then refused."""
    alarms = broker._services.alarms
    alarms._limits = Limits(memory_share=0.5, alarm_wait=wait)
    alarms.memory_mark = 100 << 20
    alarms.judge_memory(101 << 20)


def end_alarm(broker: LocalBroker) -> None:
    broker._services.alarms.judge_memory(0)
