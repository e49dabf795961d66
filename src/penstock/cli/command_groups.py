"""Groups of commands: one that answers a mistyped name with the nearest, and one made of the scripts in bench/."""

from __future__ import annotations

import difflib

import click

from penstock.cli.dev import checkout


class SuggestingGroup(click.Group):
    """Says which command a mistyped name was probably meant to be."""

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = arguments[0]
        if self.get_command(context, name) is None and not name.startswith("-"):
            context.fail(self._unknown(context, name))
        return super().resolve_command(context, arguments)

    def _unknown(self, context: click.Context, name: str) -> str:
        names = self.list_commands(context)
        nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        advice = f"Did you mean '{nearest[0]}'?" if nearest else f"There are: {', '.join(names) or 'none'}."
        return f"no command '{name}'. {advice}"


class BenchmarkGroup(SuggestingGroup):
    """One command for each script in the checkout's folder bench/; a name with a leading underscore is not one."""

    def list_commands(self, _context: click.Context) -> list[str]:
        try:
            folder = checkout.root() / "bench"
        except click.ClickException:
            return []  # an installed package: its help still works, and running one says why it cannot
        return sorted(script.stem for script in folder.glob("[!_]*.py"))

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        checkout.root()
        if name not in self.list_commands(context):
            return None

        # No help option of its own: `bench core --help` is the script's to answer.
        @click.command(
            name,
            add_help_option=False,
            short_help=f"Run bench/{name}.py.",
            context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
        )
        @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
        def run_script(arguments: tuple[str, ...]) -> None:
            checkout.become_script(f"bench/{name}.py", arguments)

        return run_script
