"""Options of a read or a write as Spark hands them over: strings by name, whose case does not matter.

Knows neither which options there are nor what they mean: `source/options.py` and `sink/options.py` do.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from penstock.model import suggestion
from penstock.model.errors import InvalidArgument, UnknownOption

PATH: Final = "path"
"""What `load("orders")`, `save("orders")` and `start("orders")` become: another way to say `queue`."""
UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class OptionTexts:
    """The given strings by an option's real name."""

    def __init__(
        self, given: Mapping[str, str], known: Collection[str], what: str, *, others: Collection[str] = ()
    ) -> None:
        """Refuse what is not among `known`; `others` are passed over. `what` says of what the options are."""
        self._values = {name.lower(): str(value).strip() for name, value in given.items()}
        by_key = {name.lower(): name for name in known}
        for name in self._values:
            if name not in by_key and name not in others and name != PATH:
                hint = suggestion(name, by_key, cutoff=0.5, shown=by_key)
                raise UnknownOption(f"{what} has no option {name!r}: {hint}")

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._values

    def text(self, name: str) -> str | None:
        value = self._values.get(name.lower())
        if value == "":
            raise InvalidArgument(f"option {name} is empty: give it a value, or leave it out")
        return value

    def required(self, name: str, example: str) -> str:
        value = self.text(name)
        if value is None:
            raise InvalidArgument(f"option {name} is missing: {example}")
        return value

    def queue(self, method: str) -> str | None:
        """Option queue, or what the method of that name was given in its place."""
        queue, path = self.text("queue"), self.text(PATH)
        if queue is not None and path is not None:
            raise InvalidArgument(f"queue is given twice: as option queue={queue!r} and as {method}({path!r})")
        return path if queue is None else queue

    def integer(self, name: str, low: int, high: int) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if not re.fullmatch(r"-?[0-9]+", text):
            raise InvalidArgument(f"option {name} must be a whole number, not {text!r}")
        if not low <= int(text) <= high:
            raise InvalidArgument(f"option {name} is {text}; it must be {low} to {high}")
        return int(text)

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """One of a few words; the first is the default."""
        text = (self.text(name) or choices[0]).lower()
        if text not in choices:
            raise InvalidArgument(f"option {name} is {text!r}; it must be one of {', '.join(choices)}")
        return text

    def boolean(self, name: str, default: bool) -> bool:
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise InvalidArgument(f"option {name} must be true or false, not {text!r}")
        return text.lower() == "true"

    def span_ms(self, name: str) -> int | None:
        """A span such as `500ms`, `30s`, `15m`, `1h`, in milliseconds."""
        text = self.text(name)
        if text is None:
            return None
        found = re.fullmatch(r"([0-9]+)\s*([a-z]+)", text.lower())
        if found is None or found[2] not in UNITS_MS:
            raise InvalidArgument(f"option {name} must be a span such as 500ms, 30s, 15m or 1h, not {text!r}")
        return int(found[1]) * UNITS_MS[found[2]]
