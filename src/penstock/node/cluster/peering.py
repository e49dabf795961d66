"""This node, for the other nodes of its store. Next stop: `membership.py`, or the local broker."""

from __future__ import annotations

import hmac
from typing import Any

import msgspec

from penstock.api.front_broker import ClusterNumbers, Peering
from penstock.model import check_name
from penstock.model.errors import Forbidden
from penstock.model.rows import ClusterView
from penstock.node.broker.local import LocalBroker
from penstock.node.cluster.forward import Forwarder
from penstock.node.cluster.membership import Cluster
from penstock.node.cluster.remote_publish import Landed, Landing
from penstock.node.session import Session


class ClusterPeering(Peering):
    """Carries out what other nodes ask for."""

    def __init__(self, cluster: Cluster, local: LocalBroker, forwarder: Forwarder) -> None:
        self._cluster = cluster
        self._local = local
        self._forwarder = forwarder

    @property
    def incarnation(self) -> int:
        return self._cluster.ownership.incarnation

    @property
    def view(self) -> ClusterView:
        return self._cluster.ownership.view

    def check(self, secret: bytes) -> None:
        known = self._cluster.secret
        if not known or not hmac.compare_digest(secret, known.encode()):
            raise Forbidden("this is for the nodes of the same store alone")

    def broker_for(self, namespace: str, session_key: str | None) -> LocalBroker:
        session = None if session_key is None else Session.parse(session_key)
        return self._local.bound_to(check_name(namespace, "a namespace"), session)

    async def notify_changed(self) -> None:
        await self._cluster.notify_changed()

    async def hand_over(self, slots: list[int], to: int) -> None:
        await self._cluster.give(slots, to)

    async def landed(self, landings: list[dict[str, Any]]) -> list[Landed]:
        return await self._cluster.landed(msgspec.convert(landings, list[Landing]))

    async def end_session(self, session_key: str) -> None:
        await self._cluster.end_session(session_key)

    def numbers(self) -> ClusterNumbers:
        cluster, forwarder = self._cluster, self._forwarder
        return ClusterNumbers(
            len(cluster.ownership.owned),
            cluster.heartbeat_age_s,
            cluster.heartbeats_failed,
            cluster.renewals,
            forwarder.forwarded,
            forwarder.failed,
        )
