"""`penstock exchange …`: exchanges and the bindings that lead from them to queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from penstock.cli.command_groups import SuggestingGroup
from penstock.cli.connection import answered
from penstock.cli.grouped_options import as_one
from penstock.cli.message_options import headers_of
from penstock.cli.names import confirmed, exchange_argument
from penstock.cli.option_values import options_of
from penstock.cli.output import Answer, declared, listed, option_text, print_options, print_table, said, value_text

if TYPE_CHECKING:
    from penstock.client.client import AsyncClient
    from penstock.model import Binding

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
@answered
async def create(client: AsyncClient, name: str, kind: str | None, options: dict[str, Any]) -> Answer:
    """Create an exchange.

    \b
    Examples:
      penstock exchange create orders --kind topic
      penstock exchange create orders --kind topic --option alternate=unrouted
    """
    if kind is not None:
        options["kind"] = kind
    existed = name in await client.exchanges()
    await client.declare_exchange(name, **options)
    return declared("exchange", {"name": name}, existed, (await client.exchanges())[name])


@exchange.command("list")
@answered
async def list_exchanges(client: AsyncClient) -> Answer:
    """List exchanges.

    \b
    Examples:
      penstock exchange list
      penstock exchange list --json
    """
    found = sorted((await client.exchanges()).items())
    rest = [{name: value for name, value in options.items() if name != "kind"} for _, options in found]
    return listed(
        [{"name": name, "options": options} for name, options in found],
        ("exchange", "kind", "options"),
        [
            (name or "(default)", options.get("kind", "direct"), option_text(others))
            for (name, options), others in zip(found, rest, strict=True)
        ],
        empty="There are no exchanges. Make one with: penstock exchange create NAME --kind topic",
    )


@exchange.command("show")
@exchange_argument
@answered
async def show(client: AsyncClient, exchange: str) -> Answer:
    """Show an exchange's options and its bindings.

    \b
    Example:
      penstock exchange show orders
    """
    from penstock.model import ExchangeConfig

    options = (await client.exchanges()).get(exchange, {})
    bindings = await client.bindings(exchange)

    def tell() -> None:
        print_options(ExchangeConfig(), options)
        click.echo()
        rows = [(one.target, one.target_kind, one.pattern, header_words(one)) for one in bindings]
        print_table(("target", "kind", "pattern", "headers"), rows, empty="Nothing is bound to it.")

    return Answer({"name": exchange, "options": options, "bindings": [binding_data(one) for one in bindings]}, tell)


def binding_data(binding: Binding) -> dict[str, Any]:
    """A binding as the HTTP API writes it."""
    import msgspec

    from penstock.model.typed_headers import json_headers

    data: dict[str, Any] = msgspec.to_builtins(binding)
    del data["exchange"]
    return data if binding.headers is None else data | {"headers": json_headers(binding.headers)}


def header_words(binding: Binding) -> str:
    if not binding.headers:
        return ""
    from penstock.model.typed_headers import json_headers

    return f"{binding.match} of {value_text(json_headers(binding.headers))}"


@exchange.command("delete")
@exchange_argument
@confirmed("Delete exchange {exchange!r} with the bindings from and to it?")
@answered
async def delete(client: AsyncClient, exchange: str) -> Answer:
    """Delete an exchange with its bindings.

    \b
    Example:
      penstock exchange delete orders --yes
    """
    await client.delete_exchange(exchange)
    return said({"deleted": exchange}, f"Exchange {exchange} deleted.")


def _binding(to_exchange: bool, headers: tuple[str, ...], **named: Any) -> dict[str, Any]:
    return named | {"target_kind": "exchange" if to_exchange else "queue", "headers": headers_of(headers)}


binding_options = as_one(
    "binding",
    _binding,
    exchange_argument,
    click.argument("target"),
    click.argument("pattern", default=""),
    click.option("--to-exchange", is_flag=True, help="TARGET is an exchange, not a queue."),
    click.option(
        "--header",
        "headers",
        multiple=True,
        metavar="NAME=VALUE",
        help="For a headers exchange; NAME:=JSON for what is no text.",
    ),
    click.option(
        "--match",
        type=click.Choice(["all", "any"]),
        default="all",
        show_default=True,
        help="How many headers must fit.",
    ),
    names=("exchange", "target", "pattern", "to_exchange", "headers", "match"),
)
"""What names a binding, as one argument: the same to make it and to take it away."""


@exchange.command("bind")
@binding_options
@answered
async def bind(client: AsyncClient, binding: dict[str, Any]) -> Answer:
    """Lead messages from an exchange to a queue, or to another exchange.

    PATTERN is the key (direct), the pattern (topic, mqtt) or the condition (filter); fanout needs none.

    \b
    Examples:
      penstock exchange bind orders billing "order.*.paid"
      penstock exchange bind alerts pager "severity >= 3"
      penstock exchange bind files images --header type=image --match any
    """
    await client.bind(**binding)
    return said(bound(binding, True), "{exchange} leads to {target_kind} {target} now.".format(**binding))


@exchange.command("unbind")
@binding_options
@answered
async def unbind(client: AsyncClient, binding: dict[str, Any]) -> Answer:
    """Take a binding away; say it as it was made.

    \b
    Example:
      penstock exchange unbind orders billing "order.*.paid"
    """
    await client.unbind(**binding)
    words = "{exchange} does not lead to {target_kind} {target} that way any more.".format(**binding)
    return said(bound(binding, False), words)


def bound(binding: dict[str, Any], is_bound: bool) -> dict[str, Any]:
    return {name: binding[name] for name in ("exchange", "target", "target_kind", "pattern")} | {"bound": is_bound}
