"""The broker of a node among others: each operation is carried out here, or by the node that owns what it is about.

The table in `ClusterBroker` says for each operation how its owner is found. What this node owns, its local broker does,
with nothing in between. For the rest the same operation goes to the owner through the Python client's own code, in the
name of the same session; while the owner changes, it is tried again. A front never learns that there is another node.
Next stop: `local.py`, or `node/cluster/forward.py`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import update_wrapper
from typing import Any, Concatenate, Final, Literal, ParamSpec, TypeVar

from penstock.api.arguments import lease_of
from penstock.api.broker import Broker
from penstock.api.front_broker import FrontBroker, Peering
from penstock.api.messages import Transaction
from penstock.api.principal import Principal
from penstock.api.results import Claim, Receipt, StreamRead
from penstock.api.ticket import Ticket, ticketed
from penstock.model import DEFAULT_GROUP
from penstock.model.errors import NotOwner, PenstockError, Unavailable
from penstock.model.rows import REGISTRAR_SLOT, slot_of
from penstock.node.broker.cluster_transaction import ClusterTransaction
from penstock.node.broker.local import LocalBroker
from penstock.node.broker.peer_client import PeerClient
from penstock.node.cluster.forward import Destination, Forwarder, PeerChannel, TryAgain
from penstock.node.cluster.membership import Cluster
from penstock.node.cluster.peering import ClusterPeering
from penstock.node.cluster.peers import HttpPeers

OWNER_WITHIN_S: Final = 8.0
"""How long an operation waits for its slot to have an owner: longer than a takeover takes."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Taken = TypeVar("Taken", Claim, StreamRead)
Owner = LocalBroker | PeerClient
Where = Callable[["ClusterBroker", tuple[Any, ...], dict[str, Any]], Destination | None]
"""From an operation's arguments to its owner; None where only the local broker can find that out."""


# How the owner of an operation is found -------------------------------------------------------------------


def queue(broker: ClusterBroker, args: tuple[Any, ...], named: dict[str, Any]) -> Destination | None:
    """By the queue: the first argument."""
    name = args[0] if args else named.get("queue", named.get("name"))
    return broker.destination_of(name) if isinstance(name, str) else None


def target(broker: ClusterBroker, args: tuple[Any, ...], named: dict[str, Any]) -> Destination | None:
    """By the queue; here while this node's spool holds earlier publishes to it, which go first."""
    name = args[0] if args else named.get("queue")
    return None if isinstance(name, str) and broker.spools_for(name) else queue(broker, args, named)


def lease(_broker: ClusterBroker, args: tuple[Any, ...], named: dict[str, Any]) -> Destination | None:
    """By the lease, which names its lane."""
    return Destination(slot_of(lease_of(args[0] if args else named["lease"]).lane))


def registrar(_broker: ClusterBroker, _args: tuple[Any, ...], _named: dict[str, Any]) -> Destination | None:
    """The one node that keeps what is in no queue: exchanges, bindings, schedules, marks, staged transactions."""
    return Destination(REGISTRAR_SLOT)


def routed(_broker: ClusterBroker, _args: tuple[Any, ...], _named: dict[str, Any]) -> Destination | None:
    """By where the messages are routed to: only the local broker can tell."""
    return None


def at(
    where: Where,
    operation: Callable[Concatenate[Any, Arguments], Coroutine[Any, Any, Result]],
    *,
    declares: bool = False,
) -> Callable[Concatenate[ClusterBroker, Arguments], Coroutine[Any, Any, Result]]:
    """The operation, carried out by its owner. One that `declares` something is known here too when it returns."""
    name = operation.__name__

    async def method(self: ClusterBroker, /, *args: Arguments.args, **named: Arguments.kwargs) -> Result:
        began, destination = asyncio.get_running_loop().time(), self.pinned or where(self, args, named)
        if destination is None or self._forwarder.is_here(destination):
            try:
                result: Result = await getattr(self._local, name)(*args, **named)
                return result
            except NotOwner as error:  # and nothing was done: it has moved, or the local broker has found its owner
                destination = Destination(error.slot, error.incarnation)
        carried_out = _carried_out(name, args, named)
        forwarded: Result = await self._forward(destination, carried_out, began=began, declares=declares)
        return forwarded

    update_wrapper(method, operation, ("__name__", "__qualname__"), ())
    return method


def taken_at(
    where: Where, operation: Callable[Concatenate[Any, Arguments], Coroutine[Any, Any, Taken]]
) -> Callable[Concatenate[ClusterBroker, Arguments], Coroutine[Any, Any, Taken]]:
    """The same for what a session takes at its owner: not delivered where this process was declared dead meanwhile.

    Sessions end with their process. An answer that lay in a socket while this one was paused may hold messages that
    others have had, and settled, since.
    """
    carry_out = at(where, operation)

    async def method(self: ClusterBroker, /, *args: Arguments.args, **named: Arguments.kwargs) -> Taken:
        forwarder = self._forwarder
        incarnation = forwarder.incarnation
        taken = await carry_out(self, *args, **named)
        if (
            self._local.session_key is not None
            and _may_be_taken_again(taken)
            and not await forwarder.is_still(incarnation)
        ):
            raise Unavailable("this node was declared dead, and its sessions have ended: others have the messages")
        return taken

    update_wrapper(method, operation, ("__name__", "__qualname__"), ())
    return method


def _may_be_taken_again(taken: Claim | StreamRead) -> bool:
    """Whether others get it when the session ends: there is something, and it was not acknowledged as it was taken."""
    return len(taken) > 0 and (isinstance(taken, StreamRead) or taken.lease is not None)


def ticket_at(
    where: Where, operation: Callable[Concatenate[Any, Arguments], Ticket[Result]]
) -> Callable[Concatenate[ClusterBroker, Arguments], Ticket[Result]]:
    """The same for what needs no task where this node is the owner: the local broker's own ticket."""
    name = operation.__name__

    @ticketed
    def method(self: ClusterBroker, /, *args: Arguments.args, **named: Arguments.kwargs) -> Ticket[Result]:
        def moved(error: BaseException) -> Ticket[Result]:
            if not isinstance(error, NotOwner):
                return Ticket.failed(error)
            owner = Destination(error.slot, error.incarnation)
            return Ticket.of(self._forward(owner, _carried_out(name, args, named)))

        destination = self.pinned or where(self, args, named)
        if destination is not None and not self._forwarder.is_here(destination):
            return Ticket.of(self._forward(destination, _carried_out(name, args, named)))
        ticket: Ticket[Result] = getattr(self._local, name)(*args, **named)
        return ticket.recover(moved)

    update_wrapper(method, operation, ("__name__", "__qualname__"), ())
    return method


def here(
    operation: Callable[Concatenate[Any, Arguments], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[ClusterBroker, Arguments], Coroutine[Any, Any, Result]]:
    """The operation, carried out by this node whoever owns what it is about."""
    begin = here_now(operation)

    async def method(self: ClusterBroker, /, *args: Arguments.args, **named: Arguments.kwargs) -> Result:
        return await begin(self, *args, **named)

    update_wrapper(method, operation, ("__name__", "__qualname__"), ())
    return method


def here_now(
    operation: Callable[Concatenate[Any, Arguments], Result],
) -> Callable[Concatenate[ClusterBroker, Arguments], Result]:
    """Like `here`, for plain methods."""
    name = operation.__name__

    def method(self: ClusterBroker, /, *args: Arguments.args, **named: Arguments.kwargs) -> Result:
        result: Result = getattr(self._local, name)(*args, **named)
        return result

    update_wrapper(method, operation, ("__name__", "__qualname__"), ())
    return method


def _carried_out(name: str, args: tuple[Any, ...], named: dict[str, Any]) -> Callable[[Owner, Attempt], Awaitable[Any]]:
    """The operation as any owner carries it out, at any attempt."""
    is_publish = name.startswith("publish")
    return lambda owner, attempt: getattr(owner, name)(*args, **attempt.adapted(named, is_publish=is_publish))


class Attempt:
    """What an operation that is tried again keeps: since when, and under which id a publish is stored once."""

    def __init__(self, began: float | None) -> None:
        """`began`: when the operation was asked for, if it was tried here before."""
        self.now = asyncio.get_running_loop().time
        self._began = self.now() if began is None else began
        self._deadline = self.now() + OWNER_WITHIN_S
        self._publish_id = secrets.token_hex(12)

    def adapted(self, named: dict[str, Any], *, is_publish: bool) -> dict[str, Any]:
        """The arguments of the next attempt: with the rest of the wait, and the same id for a publish."""
        adapted = dict(named)
        if "wait" in named:
            adapted["wait"] = max(0.0, named["wait"] - (self.now() - self._began))
        if is_publish:
            adapted["publish_id"] = named.get("publish_id") or self._publish_id
        return adapted

    def waited_there(self, since: float) -> None:
        """What it waited at an owner was not without an owner."""
        self._deadline += self.now() - since

    @property
    def is_over(self) -> bool:
        return self.now() > self._deadline


class ClusterBroker(FrontBroker):
    """A broker of several nodes, seen from one of them."""

    def __init__(
        self, local: LocalBroker, forwarder: Forwarder, pinned: Destination | None = None, session_id: str = ""
    ) -> None:
        """`pinned`: every operation is for the process that has the session `session_id` of an HTTP client."""
        self._local = local
        self._forwarder = forwarder
        self._session_id = session_id
        self.pinned = pinned
        self.namespace = local.namespace
        self.consumer_name = "" if pinned else local.consumer_name
        self._peers: dict[Destination, PeerClient] = {}
        self._peering = ClusterPeering(forwarder.cluster, local, forwarder)

    @classmethod
    def of(cls, local: LocalBroker) -> ClusterBroker:
        """The broker of a node among others, which reaches them over HTTP."""
        cluster = local.cluster
        assert cluster is not None, "a node that has its store for itself needs no other"
        cluster.peers = peers = HttpPeers(cluster.ownership, lambda: cluster.secret)
        return cls(local, Forwarder(cluster, cluster.ownership, peers))

    @property
    def cluster(self) -> Cluster:
        """This node's place among the others, which `serve` joins and leaves."""
        return self._forwarder.cluster

    # The table: each operation, and how its owner is found ------------------------------------------------

    publish = at(target, Broker.publish)
    publish_many = ticket_at(target, FrontBroker.publish_many)
    publish_batch = ticket_at(target, FrontBroker.publish_batch)
    publish_to = ticket_at(routed, FrontBroker.publish_to)
    claim = taken_at(queue, Broker.claim)
    settle = ticket_at(lease, FrontBroker.settle)
    settle_and_claim = taken_at(lease, Broker.settle_and_claim)
    extend = at(lease, Broker.extend)
    read = taken_at(queue, Broker.read)
    commit = at(queue, Broker.commit)
    read_from = at(queue, Broker.read_from)

    declare_queue = at(queue, Broker.declare_queue, declares=True)
    delete_queue = at(queue, Broker.delete_queue, declares=True)
    queue_options = at(queue, Broker.queue_options)
    declare_group = at(queue, Broker.declare_group, declares=True)
    delete_group = at(queue, Broker.delete_group, declares=True)
    groups = at(queue, Broker.groups)
    declare_exchange = at(registrar, Broker.declare_exchange, declares=True)
    delete_exchange = at(registrar, Broker.delete_exchange, declares=True)
    bind = at(registrar, Broker.bind, declares=True)
    unbind = at(registrar, Broker.unbind, declares=True)
    stop_waiting = at(queue, Broker.stop_waiting)

    declare_schedule = at(registrar, Broker.declare_schedule)
    delete_schedule = at(registrar, Broker.delete_schedule)
    schedule = at(registrar, Broker.schedule)
    schedules = at(registrar, Broker.schedules)

    browse = at(queue, Broker.browse)
    history = at(queue, Broker.history)
    stats = at(queue, Broker.stats)
    dead = at(queue, Broker.dead)
    dead_page = at(queue, FrontBroker.dead_page)
    dead_ranges = at(queue, Broker.dead_ranges)
    dead_reasons = at(queue, Broker.dead_reasons)
    redrive = at(queue, Broker.redrive)
    purge_dead = at(queue, Broker.purge_dead)
    seek = at(queue, Broker.seek)
    purge = at(queue, Broker.purge)
    pause = at(queue, Broker.pause)
    resume = at(queue, Broker.resume)
    trace_event = at(routed, Broker.trace_event)
    lanes = at(queue, Broker.lanes)
    scan = at(queue, Broker.scan)
    extent = at(queue, Broker.extent)

    marks = at(registrar, Broker.marks)
    marks_page = at(registrar, FrontBroker.marks_page)
    mark = at(registrar, Broker.mark)
    put_mark = at(registrar, Broker.put_mark)
    delete_mark = at(registrar, Broker.delete_mark)
    stage = at(registrar, Broker.stage)
    commit_staged = at(registrar, Broker.commit_staged)
    abort_staged = at(registrar, Broker.abort_staged)
    staged = at(registrar, Broker.staged)
    retry_enqueued = at(registrar, Broker.retry_enqueued)
    purge_enqueued = at(registrar, Broker.purge_enqueued)

    async def attach(
        self, queue: str, group: str = DEFAULT_GROUP, *, consumer: str | None = None, exclusive: bool = False
    ) -> str:
        if not group and not self._owns(queue):  # no path leads to it: such a reader is not counted at another node
            self.authorize("consume", "queue", queue)
            return self.consumer_name if consumer is None else consumer
        return await self._attach(queue, group, consumer=consumer, exclusive=exclusive)

    async def detach(
        self, queue: str, group: str = DEFAULT_GROUP, *, consumer: str | None = None, keep: bool = False
    ) -> None:
        if group or self._owns(queue):
            await self._detach(queue, group, consumer=consumer, keep=keep)
        else:
            self.authorize("consume", "queue", queue)

    _attach = at(queue, Broker.attach)
    _detach = at(queue, Broker.detach)

    # What every node knows, and what is only about this one ------------------------------------------------

    queues = here(Broker.queues)
    has_queue = here(Broker.has_queue)
    exchanges = here(Broker.exchanges)
    bindings = here(Broker.bindings)
    trace = here(Broker.trace)
    enqueued_failed = here(Broker.enqueued_failed)
    check_ready = here(Broker.check_ready)
    measures = here(FrontBroker.measures)
    queues_page = here(FrontBroker.queues_page)
    authorize = here_now(FrontBroker.authorize)
    knows_queue = here_now(FrontBroker.knows_queue)
    knows_exchange = here_now(FrontBroker.knows_exchange)
    knows_namespace = here_now(FrontBroker.knows_namespace)
    follow_events = here_now(FrontBroker.follow_events)
    spool = here_now(FrontBroker.spool)
    damage = here_now(FrontBroker.damage)
    alarms = here_now(FrontBroker.alarms)
    keep_writing = here_now(FrontBroker.keep_writing)
    is_alive = here_now(FrontBroker.is_alive)
    new_session_name = here_now(FrontBroker.new_session_name)
    drain = here_now(FrontBroker.drain)
    flush = here_now(FrontBroker.flush)

    @property
    def peering(self) -> Peering | None:
        return self._peering

    @property
    def is_shared(self) -> bool:
        return True

    @property
    def process(self) -> str:
        return self._local.process

    @property
    def is_caretaker(self) -> bool:
        return self._local.is_caretaker

    async def close(self) -> None:
        await self._local.close()
        self._forwarder.close()

    # Namespaces, sessions, transactions -------------------------------------------------------------------

    def in_namespace(self, namespace: str) -> ClusterBroker:
        return ClusterBroker(self._local.in_namespace(namespace), self._forwarder, self.pinned, self._session_id)

    def acting_as(self, principal: Principal) -> ClusterBroker:
        return ClusterBroker(self._local.acting_as(principal), self._forwarder, self.pinned, self._session_id)

    @asynccontextmanager
    async def session(self, *, seconds: float = 30.0) -> AsyncIterator[ClusterBroker]:
        async with self._local.session(seconds=seconds) as session:
            yield ClusterBroker(session, self._forwarder)

    def begin_session(self, name: str) -> ClusterBroker:
        return ClusterBroker(self._local.begin_session(name), self._forwarder)

    async def end_session(self) -> None:
        if self.pinned is None:
            await self._local.end_session()
        else:
            await self._forward(self.pinned, lambda owner, _: _peer_of(owner).end_session(self._session_id))

    async def renew_session(self) -> None:
        if self.pinned is not None:
            await self._forward(self.pinned, lambda owner, _: _peer_of(owner).renew_session(self._session_id))

    def new_session_id(self) -> str:
        return f"{self.process}.{self._local.new_session_id()}"

    def locate_session(self, id: str) -> Literal["here", "elsewhere", "ended"]:
        process = id.partition(".")[0]
        if process == self.process:
            return "here"
        return "elsewhere" if len(process) < 20 and self.is_alive(process) else "ended"

    def in_session(self, id: str) -> ClusterBroker:
        destination = Destination(incarnation=int(id.partition(".")[0]))
        return ClusterBroker(self._local, self._forwarder, destination, id)

    def transaction(self) -> Transaction:
        return ClusterTransaction(self._local.transaction(), self._commit)

    async def _commit(self, local: Transaction, replay: Callable[[Transaction], Transaction]) -> Receipt:
        """Commit what was collected where it belongs."""
        destination = self.pinned
        if destination is None:
            try:
                return await local.commit()
            except NotOwner as error:
                destination = Destination(error.slot, error.incarnation)
        return await self._forward(destination, lambda owner, _: replay(owner.transaction()).commit())

    # Forwarding -------------------------------------------------------------------------------------------

    def destination_of(self, name: str) -> Destination:
        """Who owns a queue. Of one that this node does not know, the owner of its home slot knows the truth."""
        return Destination(self._local.slot_of_queue(name))

    def spools_for(self, queue: str) -> bool:
        """Whether this node's spool takes what is published to a queue now."""
        return self._local.spools_for(queue)

    def _owns(self, queue: str) -> bool:
        return self.pinned is None and self._forwarder.is_here(self.destination_of(queue))

    def _peer(self, destination: Destination) -> PeerClient:
        peer = self._peers.get(destination)
        if peer is None:
            local = self._local
            channel = PeerChannel(
                self._forwarder, destination, self.consumer_name, local.principal.name, local.session_key
            )
            peer = PeerClient(channel, self.namespace, self.consumer_name, self._session_id or None)
            self._peers[destination] = peer
        return peer

    async def _forward(
        self,
        destination: Destination,
        carry_out: Callable[[Owner, Attempt], Awaitable[Result]],
        *,
        began: float | None = None,
        declares: bool = False,
    ) -> Result:
        """Have the owner carry it out; if the owner changes meanwhile, the next one."""
        attempt, forwarder = Attempt(began), self._forwarder
        reason: PenstockError = Unavailable("nobody owns it now")
        while True:
            began = attempt.now()
            try:
                result = await carry_out(self._peer(destination), attempt)
            except TryAgain as failed:
                reason = failed.reason
                attempt.waited_there(began)
            else:
                if declares:
                    await forwarder.refresh_catalog()
                return result
            if forwarder.is_here(destination):
                try:
                    return await carry_out(self._local, attempt)
                except NotOwner as moved:
                    destination, reason = Destination(moved.slot, moved.incarnation), moved
            if attempt.is_over:
                forwarder.failed += 1
                raise Unavailable(f"no node could be found that owns this: {reason}")
            await forwarder.look_again()


def _peer_of(owner: Owner) -> PeerClient:
    """A session is never this process's where it is pinned to another one."""
    assert isinstance(owner, PeerClient)
    return owner
