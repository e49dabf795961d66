"""What the commands that talk to a running server share: which server, which namespace, and its errors in one line."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from penstock.cli.grouped_options import as_one
from penstock.cli.output import Answer, printable_lines

if TYPE_CHECKING:
    from penstock.client.client import AsyncClient
    from penstock.client.sync import Client
    from penstock.client.transport.channel import Retry
    from penstock.model.errors import PenstockError

DEFAULT_URL = "http://127.0.0.1:7333"

Result = TypeVar("Result")


class ServerAddress(NamedTuple):
    """Where the server is, and what to bring."""

    url: str
    token: str
    namespace: str

    def client(self, *, is_patient: bool = False) -> AsyncClient:
        """An `AsyncClient` for it: `async with server.client() as client: …`.

        One that is patient waits a minute for a server that went away; others say so almost at once.
        """
        from penstock.client.client import AsyncClient

        return AsyncClient(self.url, token=self.token or None, namespace=self.namespace, retry=_retry(is_patient))

    def sync_client(self) -> Client:
        """The same for code without a loop; it is not patient."""
        from penstock.client.sync import Client

        return Client(self.url, token=self.token or None, namespace=self.namespace, retry=_retry(False))


def _retry(is_patient: bool) -> Retry:
    from penstock.client.transport.channel import Retry

    return Retry() if is_patient else Retry(attempts=4, seconds=2.0)


server_options = as_one(
    "server",
    ServerAddress,
    click.option(
        "--url", envvar="PENSTOCK_URL", default=DEFAULT_URL, show_default=True, show_envvar=True, help="The server."
    ),
    click.option(
        "--token", envvar="PENSTOCK_TOKEN", default="", show_envvar=True, help="The server's token, if it wants one."
    ),
    click.option(
        "--namespace",
        "-n",
        envvar="PENSTOCK_NAMESPACE",
        default="default",
        show_default=True,
        show_envvar=True,
        help="Whose queues and exchanges.",
    ),
)
"""--url, --token and --namespace; the command gets them as one argument, `server`."""
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


def answered(command: Callable[..., Coroutine[Any, Any, Answer]]) -> Callable[..., None]:
    """--url, --token, --namespace and --json for a coroutine that takes a client and returns an `Answer`."""

    @server_options
    @json_option
    @functools.wraps(command)
    def run_command(*, server: ServerAddress, as_json: bool, **given: Any) -> None:
        with_client(server, lambda client: command(client, **given)).show(as_json)

    decorated: Callable[..., None] = run_command
    return decorated


def with_client(
    server: ServerAddress, work: Callable[[AsyncClient], Coroutine[Any, Any, Result]], *, is_patient: bool = False
) -> Result:
    """Run a command's work; what Penstock refuses becomes one line and exit code 1. Ctrl+C ends it without a word."""
    import asyncio

    from penstock.model.errors import PenstockError

    async def connected() -> Result:
        async with server.client(is_patient=is_patient) as client:
            if is_patient:
                await client.check_ready()  # patience is for a server that was there
            return await work(client)

    try:
        return asyncio.run(connected())
    except PenstockError as error:
        raise click.ClickException(error_text(error, server)) from None
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None
    except asyncio.CancelledError:  # what `consuming.stop_on_sigterm` does
        raise SystemExit(128 + signal.SIGTERM) from None


def error_text(error: PenstockError, server: ServerAddress | None) -> str:
    """What to tell; where no server answered, how to start one, and where it wants a token, how to give it."""
    from penstock.client.transport.connection import ConnectFailed
    from penstock.model.errors import Unauthorized, Unavailable

    if isinstance(error, Unavailable) and isinstance(error.__cause__, ConnectFailed):
        place = f" at {server.url}" if server is not None else ""
        return printable_lines(f"there is no server{place} ({error.__cause__}); start one with: penstock serve")
    if isinstance(error, Unauthorized):
        given = "the token is not the server's" if server is not None and server.token else "the server wants a token"
        return f"{given}; give it with --token, or in the variable PENSTOCK_TOKEN"
    return printable_lines(str(error))
