"""One server for all tests of commands that talk to one; each test has a namespace of its own on it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.cli.commands import Cli
from tests.cli.servers import Server, running

_namespaces = itertools.count(1)


@pytest.fixture(scope="session")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def cli(one_server: Server) -> Cli:
    """Commands against a namespace in which nothing is declared."""
    return Cli(one_server, f"test-{next(_namespaces)}")
