"""Which engine a place names: a file is SQLite's, a URL that of its scheme, nothing at all is memory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from penstock.model.errors import InvalidArgument
from penstock.store.contract import FullStore

POSTGRES: Final = ("postgresql", "postgres")
MYSQL: Final = ("mysql", "mariadb")
_SCHEME: Final = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)


def scheme_of(place: str | Path) -> str:
    """The scheme of a URL in small letters; empty for the path of a file."""
    found = _SCHEME.match(place) if isinstance(place, str) else None
    return found[1].lower() if found else ""


def label_of(place: str | Path) -> str:
    """The place for people to read: a file's whole path, a URL without its password."""
    if not scheme_of(place):
        return str(Path(place).absolute())
    if scheme_of(place) in MYSQL:
        from penstock.store.mysql.pool import StoreAddress as MysqlAddress

        return MysqlAddress.parse(str(place)).label
    from penstock.store.postgres.pool import StoreAddress

    return StoreAddress.parse(str(place)).label


async def open_engine(place: str | Path | None, *, must_exist: bool = False) -> FullStore:
    """An open store, made and brought up to date where it is not; with `must_exist`, that is an error."""
    if place is None:
        from penstock.store.memory.engine import MemoryStore

        return MemoryStore()
    scheme = scheme_of(place)
    if not scheme:
        from penstock.store.sqlite.engine import SqliteStore

        if must_exist:
            from penstock.store.sqlite.snapshot import check_there

            check_there(Path(place))
        return await SqliteStore.open(place)
    if scheme in POSTGRES:
        from penstock.store.postgres.engine import PostgresStore

        return await PostgresStore.open(str(place), must_exist=must_exist)
    if scheme in MYSQL:
        from penstock.store.mysql.engine import MysqlStore

        return await MysqlStore.open(str(place), must_exist=must_exist)
    raise InvalidArgument(
        f"{scheme}:// is no store that Penstock knows; name a file, postgresql://user@host/database or "
        "mysql://user@host/database"
    )
