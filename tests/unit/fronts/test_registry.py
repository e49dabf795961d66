"""The registry of fronts: each entry builds a `Front`, and everything that a server does with one follows from it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.cli.serve.fronts import announcement, build_fronts, cannot_listen
from penstock.cli.serve.nodes import own_ports
from penstock.cli.serve.settings import flag_of
from penstock.config import Config, Given, load
from penstock.config.options import SECTIONS
from penstock.fronts.front import Address, Front, Shared
from penstock.fronts.listening import CannotListen
from penstock.fronts.registry import FOR_NODES, FRONTS, Entry
from penstock.node.broker import LocalBroker
from tests.local import open_local

every_front = pytest.mark.parametrize("entry", FRONTS, ids=lambda entry: entry.name)
PORTS = [Given(entry.name, port, "--set", "0") for entry in FRONTS for port in entry.ports]


def play(scenario: Callable[[LocalBroker], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with await open_local(None) as broker:
            await scenario(broker)

    asyncio.run(main())


def free_ports() -> Config:
    return load(None, {}, PORTS).config


def test_names_are_sections_of_the_configuration() -> None:
    assert [entry.name for entry in FRONTS] == [name for name in SECTIONS if name in Config().fronts]
    assert FRONTS[0].name == "http", "what joins a cluster, and has the token"


@every_front
def test_a_front_lives_by_the_protocol(entry: Entry) -> None:
    async def scenario(broker: LocalBroker) -> None:
        front = entry.build(broker, free_ports().fronts[entry.name], Shared())
        await front.start()
        assert front.listening
        for address in front.listening:
            _, writer = await asyncio.open_connection(address.host, address.port)
            writer.close()
        assert [family.name for family in front.measures.families()]
        await front.stop()
        with pytest.raises(OSError):
            await asyncio.open_connection(front.listening[0].host, front.listening[0].port)
        await front.stop()

    play(scenario)


@every_front
def test_a_port_in_use_is_told_with_its_option(entry: Entry) -> None:
    async def scenario(broker: LocalBroker) -> None:
        config = free_ports()
        first = entry.build(broker, config.fronts[entry.name], Shared())
        await first.start()
        taken = first.listening[-1].port
        given = [Given(entry.name, entry.ports[-1], "--set", str(taken))]
        second = entry.build(broker, load(None, {}, [*PORTS, *given]).config.fronts[entry.name], Shared())
        with pytest.raises(CannotListen) as caught:
            await second.start()
        assert (caught.value.port, caught.value.option) == (taken, entry.ports[-1])
        said = str(cannot_listen(entry.name, caught.value))
        assert f"127.0.0.1:{taken}" in said
        assert f"choose another {flag_of(entry.name, entry.ports[-1])}" in said
        assert ("--no-" in said) == (entry.name != "http")
        await first.stop()

    play(scenario)


def test_serve_builds_those_that_are_wanted_and_metrics_show_each() -> None:
    async def scenario(broker: LocalBroker) -> None:
        off = [Given(entry.name, "enabled", "--set", "false") for entry in FRONTS[2:]]
        fronts = build_fronts(broker, load(None, {}, [*PORTS, *off]).config)
        assert list(fronts) == [entry.name for entry in FRONTS[:2]]
        fronts = build_fronts(broker, free_ports())
        assert list(fronts) == [entry.name for entry in FRONTS]
        page = (await fronts["http"].render_metrics(broker)).decode()  # type: ignore[attr-defined]
        for front in fronts.values():
            for family in front.measures.families():
                assert f"# TYPE {family.name}" in page, family.name

    play(scenario)


def test_the_announcement_says_where_each_listens() -> None:
    class Listening:
        def __init__(self, *addresses: Address) -> None:
            self.listening = addresses

    fronts: dict[str, Any] = {
        entry.name: Listening(Address(entry.name, "0.0.0.0", 10 + index)) for index, entry in enumerate(FRONTS)
    }
    text = announcement(load(None, {}), fronts, {})
    assert "listens on http://127.0.0.1:10 " in text
    for index, entry in enumerate(FRONTS[1:], 1):
        assert f"{entry.title} is at {entry.name}://127.0.0.1:{10 + index}\n" in text
    only: dict[str, Front] = {"http": fronts["http"]}
    assert " is at " not in announcement(load(None, {}), only, {})


@pytest.mark.parametrize(
    ("address", "url"),
    [
        (Address("amqp", "127.0.0.1", 5672), "amqp://127.0.0.1:5672"),
        (Address("ws", "0.0.0.0", 1, "/mqtt"), "ws://127.0.0.1:1/mqtt"),
        (Address("http", "::", 1), "http://[::1]:1"),
        (Address("http", "fe80::1", 1), "http://[fe80::1]:1"),
        (Address("http", "example.org", 1), "http://example.org:1"),
    ],
)
def test_addresses_are_to_be_pasted(address: Address, url: str) -> None:
    assert address.url == url


def test_servers_of_one_machine_have_ports_of_their_own() -> None:
    config = load(None, {}, [Given("mqtt", "websocket_port", "--set", "0")]).config
    assert own_ports(config, 2) == [
        *("--set", "http.port=7335", "--set", "amqp.port=5674"),
        *("--set", "mqtt.port=1885", "--set", "mqtt.websocket_port=0"),
    ]


def test_a_new_front_is_one_folder_and_one_line() -> None:
    """Nothing but the registry names a front's server: what else there is, is in its folder."""
    root = Path(penstock.__file__).parent
    for entry in FRONTS[1:]:
        module = entry.server.partition(":")[0]
        folder = root.joinpath(*module.split(".")[1:-1])
        users = [
            path.relative_to(root).as_posix()
            for path in root.rglob("*.py")
            if folder not in path.parents and module.rpartition(".")[0] in path.read_text()
        ]
        assert users == ["fronts/registry.py"]


def test_nodes_reach_each_other_by_the_first_front_alone() -> None:
    assert [entry for entry in FRONTS if entry.is_for_nodes] == [FOR_NODES] == [FRONTS[0]]
