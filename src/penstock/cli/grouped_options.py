"""Options that a command gets as one argument: which server, which dead letters, how a message is described."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

Command = TypeVar("Command", bound=Callable[..., Any])
Decorator = Callable[[Command], Command]


def as_one(
    argument: str, make: Callable[..., Any], *options: Decorator[Any], names: Iterable[str] = ()
) -> Decorator[Any]:
    """A decorator that adds options, in the order of --help, and hands `make`'s result over as one argument.

    `names` are the values that `make` takes: those of its parameters unless given.
    """
    taken = tuple(names) or tuple(inspect.signature(make).parameters)

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def with_argument(**given: Any) -> Any:
            made = make(**{name: given.pop(name) for name in taken})
            return command(**given, **{argument: made})

        decorated: Any = with_argument
        for option in reversed(options):
            decorated = option(decorated)
        stacked: Command = decorated
        return stacked

    return decorate
