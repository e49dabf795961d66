"""The PostgreSQL engine's schema: its name, what its errors are called, and how it reaches the newest version.

The tables are described in `docs/schema/postgres.sql`, the steps to them are in `migrations/`. It may not know commits.
Next stop: `apply.py`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.model.errors import InvalidArgument, NotFound
from penstock.store.postgres.apply import FUNCTIONS, QUERIES
from penstock.store.sql.queries import Migration, Queries, fill, in_schema, load_migrations, quoted

if TYPE_CHECKING:
    import asyncpg

DEFAULT_SCHEMA: Final = "penstock"
FENCED: Final = "PN001"
"""SQLSTATE of a commit under an epoch that has passed."""
SUPERSEDED: Final = "PN002"
"""SQLSTATE of a commit that was given up before it arrived."""
LEFT_OVER: Final = "PN003"
"""SQLSTATE of a commit that writes where swept rows may still lie: they have to be removed first."""
CHANNEL: Final = "penstock_enqueued"
"""What is notified when rows are enqueued; the payload is the schema's name."""
MIGRATIONS: Final = load_migrations(__package__)

_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")


def check_schema(name: str) -> str:
    """The name of a schema, if it needs no quotes in psql."""
    if not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"{name!r} cannot be the schema's name: small letters, digits and underscores, 63 at the most"
        )
    return name


def queries_in(schema: str) -> Queries:
    """Every query, for a schema of this name."""
    return QUERIES.renamed(DEFAULT_SCHEMA, quoted(schema))


async def check_made(connection: asyncpg.Connection[Any], schema: str, migrations: Sequence[Migration]) -> None:
    """Raise unless the schema is there and up to date; changes nothing."""
    sql = queries_in(schema)
    if not await connection.fetchval(sql.has_schema, schema) or not await connection.fetchval(sql.has_version):
        raise NotFound(f"there is no store in the schema {schema!r}")
    version: int = await connection.fetchval(sql.version)
    if version < len(migrations):
        raise InvalidArgument(
            f"the schema {schema!r} is of version {version}, this Penstock's of {len(migrations)}: start a server on "
            "it once, which brings it up to date"
        )


async def migrate(connection: asyncpg.Connection[Any], schema: str, migrations: Sequence[Migration]) -> None:
    """Bring the schema to the newest version, under a lock; refuse what Penstock cannot have made."""
    sql = queries_in(schema)
    await connection.execute(sql.lock_migration, schema)
    if not await connection.fetchval(sql.has_schema, schema):
        await connection.execute(fill(sql.make_schema, schema=quoted(schema)))
    if not await connection.fetchval(sql.has_version):
        if await connection.fetchval(sql.count_tables, schema):
            raise InvalidArgument(
                f"the schema {schema!r} has tables that Penstock did not make; name another with ?schema=…"
            )
        await connection.execute(sql.make_version)
    version: int = await connection.fetchval(sql.version)
    if version > len(migrations):
        raise InvalidArgument(
            f"the schema {schema!r} is of version {version} and this Penstock knows versions up to {len(migrations)}; "
            "run the newer Penstock that wrote it"
        )
    if version < len(migrations):
        steps = [statement for statements in migrations[version:] for statement in statements]
        for statement in (*steps, *FUNCTIONS):
            await connection.execute(in_schema(statement, DEFAULT_SCHEMA, quoted(schema)))
        await connection.execute(sql.put_version, len(migrations))
