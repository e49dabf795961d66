"""A server that others can reach asks for credentials, or was told not to: one rule, and every front follows it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.api.principal import ANONYMOUS
from penstock.fronts.auth import OPEN, Credentials, check_exposure
from penstock.fronts.front import Shared
from penstock.fronts.registry import FRONTS, Entry
from penstock.model.errors import InvalidArgument
from tests.local import open_local

every_front = pytest.mark.parametrize("entry", FRONTS, ids=lambda entry: entry.name)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "10.0.0.1", "example.org", "", "127.0.0.1.example.org"])
def test_a_server_that_others_can_reach_needs_credentials(host: str) -> None:
    with pytest.raises(InvalidArgument, match=r"web\.host .* no http\.token"):
        check_exposure("web", host, OPEN)
    check_exposure("web", host, Credentials(token="x"))
    check_exposure("web", host, Credentials(insecure=True))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_a_server_of_this_machine_alone_needs_none(host: str) -> None:
    check_exposure("web", host, OPEN)


@every_front
def test_no_front_is_made_where_it_would_be_open_to_all(entry: Entry) -> None:
    async def main() -> None:
        async with await open_local(None) as broker:
            options: Any = entry.options
            with pytest.raises(InvalidArgument, match=rf"{entry.name}\.host .* others can reach"):
                entry.build(broker, options(host="0.0.0.0", port=0), Shared())
            given = {"insecure": True} if entry.name == "http" else {}
            entry.build(broker, options(host="0.0.0.0", port=0, **given), Shared(Credentials(insecure=True)))

    asyncio.run(main())


def test_a_server_without_a_token_lets_anyone_in() -> None:
    assert [OPEN.authenticate(given) for given in (b"", b"anything")] == [ANONYMOUS, ANONYMOUS]


def test_a_token_is_compared_byte_by_byte() -> None:
    asked = Credentials("caf\u00e9")
    assert asked.authenticate("caf\u00e9".encode()) == ANONYMOUS
    assert [asked.authenticate(given) for given in (b"", b"cafe", b"\xff\xfe")] == [None, None, None]
