"""`penstock demo`: the README's embedded example, run for real in a temporary folder."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import click
from rich.console import Console


def run() -> None:
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as folder:
        asyncio.run(embedded_example(Path(folder), console))


async def embedded_example(folder: Path, console: Console) -> None:
    """The same calls as in README.md, in the same order, each followed by what it did."""
    console.print(f"A broker on SQLite in {folder}")
    raise click.ClickException("the embedded broker is not in this checkout yet.")
