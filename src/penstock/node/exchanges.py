"""Declare and delete exchanges, bind and unbind. Declaring the same thing twice is fine."""

from __future__ import annotations

from collections.abc import Iterable, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.core.routing.router import Router
from penstock.model import Binding, ExchangeConfig, check_name, make_config
from penstock.model.errors import AlreadyExists, Forbidden, NotFound
from penstock.model.rows import REGISTRAR_SLOT
from penstock.node.catalog import Catalog, binding_row, exchange_row
from penstock.node.catalog_writer import CatalogWriter
from penstock.node.cluster.ownership import Ownership
from penstock.node.timers import Tasks


@dataclass(eq=False, repr=False)
class Exchanges:
    """Exchanges and bindings of every namespace."""

    _catalog: Catalog
    _writer: CatalogWriter
    _tasks: Tasks
    _ownership: Ownership

    async def declare(self, namespace: str, name: str, options: dict[str, Any]) -> None:
        config = make_config(ExchangeConfig, options)
        check_name(namespace, "a namespace")
        async with self._writer.declaring("exchange", namespace, name):
            trial = Router(lambda _: True)
            trial.declare_exchange(name, config)
            existing = self._catalog.router(namespace).exchanges().get(name)
            if existing is not None:
                if existing != config:
                    raise AlreadyExists(f"exchange {name!r} exists with other options: {msgspec.to_builtins(existing)}")
                return
            await self._writer.commit([exchange_row(self._catalog.new_id(), namespace, name, config)])

    async def delete(self, namespace: str, name: str, *, only_unbound: bool = False) -> None:
        catalog = self._catalog
        async with self._writer.declaring("exchange", namespace, name):
            id = catalog.exchange_ids.get((namespace, name))
            if id is None:
                raise NotFound(f"there is no exchange {name!r}")
            if only_unbound and catalog.router(namespace).bindings(name):
                return
            bindings = catalog.router(namespace).delete_exchange(name)
            deleted = [("exchange", id)]
            for binding in bindings:
                binding_id = catalog.binding_id(namespace, binding)
                if binding_id is not None:
                    deleted.append(("binding", binding_id))

            def forget() -> None:
                catalog.exchange_ids.remove((namespace, name))
                catalog.remove_bindings(namespace, bindings)

            await self._writer.commit([], deleted, forget)
        await self.drop_unbound(namespace, {binding.exchange for binding in bindings} - {name})

    async def drop_unbound(self, namespace: str, names: Iterable[str]) -> None:
        """Delete those of these exchanges that live as long as they have bindings, and have lost the last one."""
        router = self._catalog.router(namespace)
        for name in names:
            config = router.exchanges().get(name)
            if config is not None and config.auto_delete and not router.bindings(name):
                with suppress(NotFound):  # or it was deleted meanwhile
                    await self.delete(namespace, name, only_unbound=True)

    async def drop_ephemeral(self) -> None:
        """Delete the exchanges that do not outlive the broker: it has just started."""
        for namespace, name in list(self._catalog.exchange_ids):
            config = self._catalog.router(namespace).exchanges().get(name)
            if config is not None and config.ephemeral:
                await self.delete(namespace, name)

    async def bind(self, namespace: str, binding: Binding) -> None:
        """Bind a queue or exchange to an exchange."""
        catalog = self._catalog
        async with self._writer.declaring("exchange", namespace, binding.exchange):
            router = catalog.router(namespace)
            if not router.bind(binding):
                return
            # Only to see whether it can be bound: it becomes known after its commit.
            router.unbind(binding)
            target = catalog.queues.get((namespace, binding.target)) if binding.target_kind == "queue" else None
            ephemeral = target is not None and target.config.ephemeral
            if ephemeral and not self._ownership.is_sole:
                raise Forbidden(
                    f"queue {binding.target!r} is ephemeral, so only its owner knows it; among several nodes it cannot "
                    "be bound: publish to it by name, or bind one that is stored"
                )
            id = catalog.new_id(ephemeral=ephemeral)
            queue_id = 0 if target is None or ephemeral else target.id
            row = binding_row(id, namespace, binding, queue_id)
            if ephemeral:
                self._writer.put_in_memory([row])
            else:
                await self._writer.commit([row])

    async def unbind(self, namespace: str, binding: Binding) -> None:
        catalog = self._catalog
        async with self._writer.declaring("exchange", namespace, binding.exchange):
            id = catalog.binding_id(namespace, binding)
            if id is None:
                raise NotFound(f"there is no such binding on exchange {binding.exchange!r}: {binding.pattern!r}")

            def forget() -> None:
                catalog.router(namespace).unbind(binding)
                catalog.remove_bindings(namespace, [binding])

            await self._writer.commit([], [("binding", id)], forget)
        await self.drop_unbound(namespace, [binding.exchange])

    async def slots_served(self, slots: Set[int]) -> None:
        if REGISTRAR_SLOT in slots:
            self.drop_orphans_soon()

    def drop_unbound_soon(self, namespace: str, names: Iterable[str]) -> None:
        """Like `drop_unbound`, in the background."""
        self._tasks.spawn(self.drop_unbound(namespace, names))

    def drop_orphans_soon(self) -> None:
        """Delete the rows of bindings whose queue another node has deleted, in the background."""
        self._tasks.spawn(self._drop_orphan_bindings())

    async def _drop_orphan_bindings(self) -> None:
        """Delete the rows of bindings whose queue another node has deleted: only the registrar changes them."""
        catalog = self._catalog
        orphans = dict(catalog.orphans)
        if orphans:

            def forget() -> None:
                for id in orphans:
                    catalog.orphans.pop(id, None)

            await self._writer.commit([], [("binding", id) for id in orphans], forget)
