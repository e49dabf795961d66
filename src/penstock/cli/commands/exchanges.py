"""`penstock exchange …`: exchanges and the bindings that lead from them to queues."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from penstock.cli.command_groups import SuggestingGroup
from penstock.cli.commands.queues import declared, print_options, said
from penstock.cli.connection import ServerAddress, json_option, server_options, with_client
from penstock.cli.message_options import headers_of
from penstock.cli.names import exchange_argument, yes_option
from penstock.cli.option_values import options_of
from penstock.cli.output import confirm, option_text, print_json, print_table, value_text

if TYPE_CHECKING:
    from penstock.client.client import AsyncClient
    from penstock.model import Binding

Command = TypeVar("Command", bound=Callable[..., Any])
KINDS = ("direct", "topic", "fanout", "headers", "filter", "mqtt")


@click.group(cls=SuggestingGroup)
def exchange() -> None:
    """Create, list, bind and delete exchanges.

    An exchange hands each message to the queues that its bindings lead to.

    \b
    Examples:
      penstock exchange create orders --kind topic
      penstock exchange bind orders billing "order.*.paid"
      penstock publish --exchange orders --key order.eu.paid '{"id": 1}'
    """


@exchange.command("create")
@click.argument("name")
@click.option("--kind", type=click.Choice(KINDS), help="What its bindings look at; direct unless given.")
@options_of("ExchangeConfig")
@server_options
@json_option
def create(name: str, kind: str | None, options: dict[str, Any], server: ServerAddress, as_json: bool) -> None:
    """Create an exchange.

    \b
    Examples:
      penstock exchange create orders --kind topic
      penstock exchange create orders --kind topic --option alternate=unrouted
    """
    if kind is not None:
        options["kind"] = kind

    async def work(client: AsyncClient) -> tuple[bool, dict[str, Any]]:
        existed = name in await client.exchanges()
        await client.declare_exchange(name, **options)
        return existed, (await client.exchanges())[name]

    existed, found = with_client(server, work)
    declared("exchange", {"name": name}, existed, found, as_json)


@exchange.command("list")
@server_options
@json_option
def list_exchanges(server: ServerAddress, as_json: bool) -> None:
    """List exchanges.

    \b
    Examples:
      penstock exchange list
      penstock exchange list --json
    """

    async def work(client: AsyncClient) -> dict[str, dict[str, Any]]:
        return await client.exchanges()

    found = sorted(with_client(server, work).items())
    if as_json:
        print_json([{"name": name, "options": options} for name, options in found])
        return
    rows = [(name or "(default)", options.pop("kind", "direct"), option_text(options)) for name, options in found]
    empty = "There are no exchanges. Make one with: penstock exchange create NAME --kind topic"
    print_table(("exchange", "kind", "options"), rows, empty=empty)


@exchange.command("show")
@exchange_argument
@server_options
@json_option
def show(exchange: str, server: ServerAddress, as_json: bool) -> None:
    """Show an exchange's options and its bindings.

    \b
    Example:
      penstock exchange show orders
    """

    async def work(client: AsyncClient) -> tuple[dict[str, dict[str, Any]], list[Binding]]:
        return await client.exchanges(), await client.bindings(exchange)

    found, bindings = with_client(server, work)
    options = found.get(exchange, {})
    if as_json:
        print_json({"name": exchange, "options": options, "bindings": [binding_data(one) for one in bindings]})
        return
    from penstock.model import ExchangeConfig

    print_options(ExchangeConfig(), options)
    click.echo()
    rows = [(one.target, one.target_kind, one.pattern, header_words(one)) for one in bindings]
    print_table(("target", "kind", "pattern", "headers"), rows, empty="Nothing is bound to it.")


def binding_data(binding: Binding) -> dict[str, Any]:
    """A binding as the HTTP API writes it."""
    import msgspec

    from penstock.wire.http.shapes import json_headers

    data: dict[str, Any] = msgspec.to_builtins(binding)
    del data["exchange"]
    return data if binding.headers is None else data | {"headers": json_headers(binding.headers)}


def header_words(binding: Binding) -> str:
    if not binding.headers:
        return ""
    from penstock.wire.http.shapes import json_headers

    return f"{binding.match} of {value_text(json_headers(binding.headers))}"


@exchange.command("delete")
@exchange_argument
@yes_option
@server_options
@json_option
def delete(exchange: str, yes: bool, server: ServerAddress, as_json: bool) -> None:
    """Delete an exchange with its bindings.

    \b
    Example:
      penstock exchange delete orders --yes
    """
    confirm(f"Delete exchange {exchange!r} with the bindings from and to it?", yes)

    async def work(client: AsyncClient) -> None:
        await client.delete_exchange(exchange)

    with_client(server, work)
    said({"deleted": exchange}, f"Exchange {exchange} deleted.", as_json)


def binding_options(command: Command) -> Command:
    """What names a binding: the same to make it and to take it away."""
    decorated: Any = click.option(
        "--match",
        type=click.Choice(["all", "any"]),
        default="all",
        show_default=True,
        help="How many headers must fit.",
    )(command)
    decorated = click.option(
        "--header",
        "headers",
        multiple=True,
        metavar="NAME=VALUE",
        help="For a headers exchange; NAME:=JSON for what is no text.",
    )(decorated)
    decorated = click.option("--to-exchange", is_flag=True, help="TARGET is an exchange, not a queue.")(decorated)
    decorated = click.argument("pattern", default="")(decorated)
    decorated = click.argument("target")(decorated)
    made: Command = exchange_argument(decorated)
    return made


@exchange.command("bind")
@binding_options
@server_options
@json_option
def bind(
    exchange: str,
    target: str,
    pattern: str,
    to_exchange: bool,
    headers: tuple[str, ...],
    match: Literal["all", "any"],
    server: ServerAddress,
    as_json: bool,
) -> None:
    """Lead messages from an exchange to a queue, or to another exchange.

    PATTERN is the key (direct), the pattern (topic, mqtt) or the condition (filter); fanout needs none.

    \b
    Examples:
      penstock exchange bind orders billing "order.*.paid"
      penstock exchange bind alerts pager "severity >= 3"
      penstock exchange bind files images --header type=image --match any
    """
    kind: Literal["queue", "exchange"] = "exchange" if to_exchange else "queue"
    wanted = headers_of(headers)

    async def work(client: AsyncClient) -> None:
        await client.bind(exchange, target, pattern, target_kind=kind, headers=wanted, match=match)

    with_client(server, work)
    data = {"exchange": exchange, "target": target, "target_kind": kind, "pattern": pattern, "bound": True}
    said(data, f"{exchange} leads to {kind} {target} now.", as_json)


@exchange.command("unbind")
@binding_options
@server_options
@json_option
def unbind(
    exchange: str,
    target: str,
    pattern: str,
    to_exchange: bool,
    headers: tuple[str, ...],
    match: Literal["all", "any"],
    server: ServerAddress,
    as_json: bool,
) -> None:
    """Take a binding away; say it as it was made.

    \b
    Example:
      penstock exchange unbind orders billing "order.*.paid"
    """
    kind: Literal["queue", "exchange"] = "exchange" if to_exchange else "queue"
    wanted = headers_of(headers)

    async def work(client: AsyncClient) -> None:
        await client.unbind(exchange, target, pattern, target_kind=kind, headers=wanted, match=match)

    with_client(server, work)
    data = {"exchange": exchange, "target": target, "target_kind": kind, "pattern": pattern, "bound": False}
    said(data, f"{exchange} does not lead to {kind} {target} that way any more.", as_json)
