"""When a thread renews a node's lease instead of the event loop, and what that is worth to the node."""

from __future__ import annotations

import asyncio
import time

from penstock.node.cluster.ownership import Ownership
from penstock.node.cluster.renewal import HUNG_LEASES, Renewal

LEASE_S = 2.0


class Renewing:
    def renew(self, _incarnation: int) -> bool:
        return True

    def close(self) -> None:
        pass


class Rig:
    """Times are seconds after the last heartbeat, which is also the event loop's last tick."""

    def __init__(self) -> None:
        self.zero = float(round(time.monotonic()))  # whole, so that spans are exact
        self.now = self.zero
        self.ownership = Ownership(lambda: self.now)
        self.ownership.lease_for(LEASE_S)
        self.ownership.joined(1)
        self.ownership.heard(self.zero)
        self.renewal = Renewal(Renewing(), self.ownership, LEASE_S, lambda: self.zero)
        self.renewal._renewed_at = self.renewal._ticked_at = self.zero

    def is_heard(self, seconds: float) -> bool:
        self.now = self.zero + seconds
        return self.ownership.is_heard

    def is_due(self, seconds: float) -> bool:
        return self.renewal.is_due(self.zero + seconds)


def test_the_thread_renews_only_when_the_event_loop_is_late() -> None:
    async def check() -> None:
        rig = Rig()
        assert not rig.is_due(LEASE_S / 2)
        assert rig.is_due(LEASE_S / 2 + 0.01)

    asyncio.run(check())


def test_an_event_loop_that_does_not_run_for_ten_leases_is_given_up() -> None:
    async def check() -> None:
        rig = Rig()
        assert rig.is_due(HUNG_LEASES * LEASE_S)
        assert not rig.is_due(HUNG_LEASES * LEASE_S + 0.01)

    asyncio.run(check())


def test_a_node_that_is_no_member_has_nothing_to_renew() -> None:
    async def check() -> None:
        rig = Rig()
        rig.ownership.joined(0)
        assert not rig.is_due(LEASE_S)

    asyncio.run(check())


def test_a_renewal_counts_as_heard_for_a_lease() -> None:
    async def check() -> None:
        rig = Rig()
        assert not rig.is_heard(3 * LEASE_S)
        rig.ownership.renewed(rig.zero + 2.5 * LEASE_S)
        assert rig.is_heard(3 * LEASE_S)
        assert not rig.is_heard(3.51 * LEASE_S)

    asyncio.run(check())


def test_after_a_refused_commit_no_renewal_counts_until_the_store_has_told_who_owns_what() -> None:
    async def check() -> None:
        rig = Rig()
        rig.ownership.doubt()
        rig.ownership.renewed(rig.zero)
        assert not rig.is_heard(0.0)
        rig.ownership.heard(rig.zero)
        assert rig.is_heard(0.0)

    asyncio.run(check())
