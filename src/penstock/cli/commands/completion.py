"""`penstock completion`: prints the script that teaches a shell to complete commands, options and names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a completion script for a shell.

    It completes commands and options, and the names of queues, groups, exchanges and schedules from the server, where
    that answers at once. It is for a 'penstock' that is found on the PATH.

    \b
    Examples:
      eval "$(penstock completion bash)"                      in ~/.bashrc
      eval "$(penstock completion zsh)"                       in ~/.zshrc
      penstock completion fish > ~/.config/fish/completions/penstock.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    root = context.find_root()
    click.echo(kind(root.command, {}, "penstock", "_PENSTOCK_COMPLETE").source())
