"""The router: from an exchange and a routing key to queues.

It walks from exchange to exchange; what one exchange's bindings match is in `exchanges.py`. A walk enters no exchange
twice, so bindings may form cycles. Answers are sorted by name and do not depend on the order of binding.

May not know: payloads, lanes, stores, sessions, permissions, clocks. Whether a queue exists is the caller's to say.
A message's next stop is the broker, which turns a queue's name into a lane and its owner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from penstock.batch import Meta
from penstock.core.routing.exchanges import INDEXES, BatchMessage, Exchange, Identity, OneMessage, Subject, identity_of
from penstock.core.routing.tries import Target
from penstock.model import Binding, ExchangeConfig, Message, check_headers, check_name
from penstock.model.errors import AlreadyExists, Forbidden, InvalidArgument, NotFound
from penstock.model.options import check_config
from penstock.model.work import Budget, Steps, at_once

ROUTES_CACHED_MAX: Final = 10_000

Queues = tuple[str, ...]


class Routed(NamedTuple):
    """Where the messages of a batch go: each queue's indexes in ascending order, and those that reached no queue."""

    queues: dict[str, Sequence[int]]
    unroutable: Sequence[int]


class Router:
    """The exchanges and bindings of one namespace."""

    def __init__(self, queue_exists: Callable[[str], bool]) -> None:
        self._queue_exists = queue_exists
        self._exchanges: dict[str, Exchange] = {}
        self._into: dict[Target, dict[Identity, Binding]] = {}
        self._routes: dict[tuple[str, str], Queues] = {}
        self._by_key_alone: dict[str, bool] = {}
        self._changes = 0
        """How often bindings or exchanges changed: a route found before is not kept."""

    # Changes ---------------------------------------------------------------------------------------------

    def declare_exchange(self, name: str, config: ExchangeConfig) -> bool:
        """Create an exchange; False if it exists with the same options."""
        if name == "":
            raise Forbidden("the default exchange '' is always there and cannot be declared")
        check_name(name, "an exchange's name")
        check_config(config)
        if config.kind not in INDEXES:
            raise InvalidArgument(f"exchange {name!r} has kind {config.kind!r}; there are {', '.join(INDEXES)}")
        existing = self._exchanges.get(name)
        if existing is not None:
            _check_same(name, existing.config, config)
            return False
        self._exchanges[name] = Exchange(config)
        self._forget_routes()
        return True

    def delete_exchange(self, name: str) -> list[Binding]:
        """Delete an exchange with the bindings from and to it; returns these bindings."""
        if name == "":
            raise Forbidden("the default exchange '' cannot be deleted")
        leaving = list(self._exchange(name).bindings.values())
        entering = self._into.get(Target("exchange", name), {}).values()
        dropped = leaving + [binding for binding in entering if binding.exchange != name]
        for binding in dropped:
            self.unbind(binding)
        del self._exchanges[name]
        self._forget_routes()
        return dropped

    def bind(self, binding: Binding) -> bool:
        """Add a binding; False if it exists. Its target must exist."""
        exchange = self._bindable(binding)
        identity = identity_of(binding)
        if identity in exchange.bindings:
            return False
        exchange.index.add(binding, _target(binding))
        exchange.bindings[identity] = binding
        self._into.setdefault(_target(binding), {})[identity] = binding
        self._forget_routes()
        return True

    def unbind(self, binding: Binding) -> bool:
        """Remove a binding; False if it does not exist."""
        if binding.exchange == "":
            raise Forbidden("the default exchange '' has no bindings of its own")
        exchange = self._exchange(binding.exchange)
        if binding.headers is not None:
            check_headers(binding.headers)
        identity = identity_of(binding)
        if exchange.bindings.pop(identity, None) is None:
            return False
        target = _target(binding)
        exchange.index.remove(binding, target)
        del self._into[target][identity]
        if not self._into[target]:
            del self._into[target]
        self._forget_routes()
        return True

    def queue_deleted(self, name: str) -> list[Binding]:
        """Remove the bindings to a deleted queue; returns them."""
        dropped = list(self._into.get(Target("queue", name), {}).values())
        for binding in dropped:
            self.unbind(binding)
        return dropped

    # Questions -------------------------------------------------------------------------------------------

    def exchanges(self) -> dict[str, ExchangeConfig]:
        """Every declared exchange, in the order of declaration."""
        return {name: exchange.config for name, exchange in self._exchanges.items()}

    def bindings(self, exchange: str) -> list[Binding]:
        """The bindings of an exchange, in the order of binding."""
        return list(self._exchange(exchange).bindings.values())

    def route(self, exchange: str, message: Message) -> Queues:
        """The queues, sorted by name, that a message published to an exchange goes to; none if it is unroutable."""
        return at_once(self.routing(exchange, message, Budget()))

    def known_route(self, exchange: str, message: Message) -> Queues | None:
        """The same, if it was found for another message of the same key, and may be so for this one."""
        return self._routes.get((exchange, message.key or ""))

    def routing(self, exchange: str, message: Message, budget: Budget) -> Steps[Queues]:
        """The same in steps: a stop wherever the budget is spent, which is renewed there."""
        if exchange == "":
            return self._default_route(message.key or "")
        self._check_published(exchange)
        if self._is_by_key_alone(exchange):
            return (yield from self._route_by_key(exchange, message.key or "", budget))
        return (yield from self._walk(exchange, OneMessage(message), budget))

    def route_batch(self, exchange: str, columns: Meta, count: int) -> Routed:
        """The same for all `count` messages of a batch, by their columns."""
        return at_once(self.routing_batch(exchange, columns, count, Budget()))

    def routing_batch(self, exchange: str, columns: Meta, count: int, budget: Budget) -> Steps[Routed]:
        """The same in steps.

        Where only keys matter, each distinct key is routed once; a whole batch under one key costs one lookup.
        """
        if exchange != "":
            self._check_published(exchange)
        if exchange != "" and not self._is_by_key_alone(exchange):
            return (yield from self._route_each(exchange, columns, count, budget))
        routes: list[tuple[Queues, Sequence[int]]] = []
        for key, indexes in _indexes_by_key(columns.key, count).items():
            if exchange == "":
                routes.append((self._default_route(key), indexes))
            else:
                routes.append(((yield from self._route_by_key(exchange, key, budget)), indexes))
        return _collected(routes)

    # The way through -------------------------------------------------------------------------------------

    def _default_route(self, key: str) -> Queues:
        return (key,) if self._queue_exists(key) else ()

    def _route_by_key(self, exchange: str, key: str, budget: Budget) -> Steps[Queues]:
        route = self._routes.get((exchange, key))
        if route is None:
            changes = self._changes
            route = yield from self._walk(exchange, OneMessage(Message(key=key)), budget)
            if len(self._routes) >= ROUTES_CACHED_MAX:
                # Starting over keeps the bound with no bookkeeping on a hit.
                self._routes.clear()
            if changes == self._changes:
                self._routes[exchange, key] = route
        return route

    def _route_each(self, exchange: str, columns: Meta, count: int, budget: Budget) -> Steps[Routed]:
        groups: dict[Queues, list[int]] = {}
        subject = BatchMessage(columns)
        for index in range(count):
            subject.move_to(index)
            groups.setdefault((yield from self._walk(exchange, subject, budget)), []).append(index)
        return _collected(groups.items())

    def _walk(self, start: str, subject: Subject, budget: Budget) -> Steps[Queues]:
        queues: set[str] = set()
        seen = {start}
        waiting = [start]
        while waiting:
            exchange = self._exchanges.get(waiting.pop())
            if exchange is None:
                continue  # it was deleted at a stop
            is_matched = False
            for targets in exchange.index.match(subject, budget):
                for kind, name in targets:
                    is_matched = True
                    if kind == "queue":
                        queues.add(name)
                    elif name not in seen:
                        seen.add(name)
                        waiting.append(name)
                if budget.left <= 0:
                    yield None
                    budget.renew()
            alternate = exchange.config.alternate
            if not is_matched and alternate is not None and alternate in self._exchanges and alternate not in seen:
                seen.add(alternate)
                waiting.append(alternate)
        return tuple(sorted(queues))

    def _is_by_key_alone(self, name: str) -> bool:
        """Whether no exchange that can be reached from here looks at anything but the key."""
        answer = self._by_key_alone.get(name)
        if answer is None:
            answer = all(self._exchanges[reached].index.by_key_alone for reached in self._reachable(name))
            self._by_key_alone[name] = answer
        return answer

    def _reachable(self, name: str) -> set[str]:
        seen = {name}
        waiting = [name]
        while waiting:
            exchange = self._exchanges[waiting.pop()]
            following = [binding.target for binding in exchange.bindings.values() if binding.target_kind == "exchange"]
            if exchange.config.alternate in self._exchanges:
                following.append(exchange.config.alternate)
            waiting += [found for found in dict.fromkeys(following) if found not in seen]
            seen.update(following)
        return seen

    # Checks ----------------------------------------------------------------------------------------------

    def _exchange(self, name: str) -> Exchange:
        exchange = self._exchanges.get(name)
        if exchange is None:
            raise NotFound(f"there is no exchange {name!r}")
        return exchange

    def _check_published(self, name: str) -> None:
        if self._exchange(name).config.internal:
            raise Forbidden(f"exchange {name!r} is internal: it is reached only through other exchanges")

    def _bindable(self, binding: Binding) -> Exchange:
        if binding.exchange == "":
            raise Forbidden("the default exchange '' routes by queue name and takes no bindings")
        exchange = self._exchange(binding.exchange)
        if binding.target_kind == "exchange":
            if binding.target == "":
                raise InvalidArgument("the default exchange '' cannot be the target of a binding")
            self._exchange(binding.target)
        elif binding.target_kind != "queue":
            raise InvalidArgument(f"target_kind is {binding.target_kind!r}; it must be queue or exchange")
        elif not self._queue_exists(binding.target):
            raise NotFound(f"there is no queue {binding.target!r}")
        if binding.match not in ("all", "any"):
            raise InvalidArgument(f"match is {binding.match!r}; it must be all or any")
        if binding.headers is not None:
            check_headers(binding.headers)
        return exchange

    def _forget_routes(self) -> None:
        self._changes += 1
        self._routes.clear()
        self._by_key_alone.clear()


def _check_same(name: str, existing: ExchangeConfig, wanted: ExchangeConfig) -> None:
    if existing == wanted:
        return
    for option in ExchangeConfig.__struct_fields__:
        old, new = getattr(existing, option), getattr(wanted, option)
        if old != new:
            raise AlreadyExists(f"exchange {name!r} exists with {option} {old!r}, not {new!r}")


def _target(binding: Binding) -> Target:
    return Target(binding.target_kind, binding.target)


def _indexes_by_key(keys: Sequence[str | None] | None, count: int) -> dict[str, Sequence[int]]:
    """The messages of a batch by key; no key is the empty key."""
    if count == 0:
        return {}
    if keys is None:
        return {"": range(count)}
    groups: dict[str, list[int]] = {}
    for index, found in enumerate(keys):
        groups.setdefault(found or "", []).append(index)
    return {only: range(count) for only in groups} if len(groups) == 1 else dict(groups)


def _collected(groups: Iterable[tuple[Queues, Sequence[int]]]) -> Routed:
    """By queue what came by route. A queue of one group shares its indexes, so one route copies nothing."""
    parts: dict[str, list[Sequence[int]]] = {}
    unroutable: list[Sequence[int]] = []
    for queues, indexes in groups:
        if not queues:
            unroutable.append(indexes)
        for queue in queues:
            parts.setdefault(queue, []).append(indexes)
    return Routed({queue: _merged(parts[queue]) for queue in sorted(parts)}, _merged(unroutable))


def _merged(parts: list[Sequence[int]]) -> Sequence[int]:
    if len(parts) == 1:
        return parts[0]
    return sorted(index for part in parts for index in part)
