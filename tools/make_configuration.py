"""Writes docs/configuration.md: every option of the server, from the classes that define them.

    .venv/bin/python tools/make_configuration.py

Types, defaults, limits and words come from src/penstock/config/options.py and the fronts' own options.py. A test
compares the page with what this makes, and tries every limit that it names.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from penstock.config.options import OPTIONS, SECTIONS, Option, number_words, type_words
from penstock.config.show import EXAMPLE_DECLARATIONS, toml_value

ROOT: Final = Path(__file__).resolve().parents[1]
RESULT: Final = ROOT / "docs" / "configuration.md"

INTRODUCTION: Final = """# Configuration

Made by `tools/make_configuration.py` from `src/penstock/config/options.py` and `options.py` of each front; do not edit.

`penstock serve` needs none. Where a value is given several times, the strongest counts; from weak to strong:

1. the default;
2. a TOML file: `--config FILE`, else the one that `PENSTOCK_CONFIG` names, else `penstock.toml` in the folder that the
   server is started in;
3. an environment variable: `PENSTOCK_`, the section and the option, as in `PENSTOCK_HTTP_PORT=8000`;
4. a flag: `--port 8000`, or for any option `--set http.port=8000`.

`penstock config` prints what is in force and where each value comes from, `penstock config --check` only says whether
it is good, and `penstock config --example` prints a commented file. An unknown option, section or `PENSTOCK_…`
variable, or a value that cannot be, is an error at the start, with the file and line, the variable or the flag.
"""

DECLARATIONS: Final = """
## Declarations

The same file, or one of its own, says which queues, groups, exchanges, bindings and schedules there should be, with the
[options](options.md) that the API takes. The server declares them when it starts; `penstock apply FILE` does so on a
running one, and `--dry-run` shows the difference first. Options that are not named keep the value that they have, and
nothing is deleted (but see `penstock apply --prune`). A table within `[namespaces.NAME]` is declared in that namespace.

```toml
"""


def render() -> str:
    parts = [INTRODUCTION]
    for section, kind in SECTIONS.items():
        parts.append(f"\n## `[{section}]`\n\n{kind.__doc__}\n\n")
        parts.append("| option | type | default | limits | what it does |\n| --- | --- | --- | --- | --- |\n")
        parts += [row(option) for (owner, _), option in OPTIONS.items() if owner == section]
    return "".join([*parts, DECLARATIONS, declarations(), "```\n"])


def row(option: Option) -> str:
    limits = "" if option.low is None or option.high is None else f"{option.low:g} to {number_words(option.high)}"
    default = f"`{toml_value(option.default)}`"
    return f"| `{option.name}` | {type_words(option)} | {default} | {limits} | {option.words} |\n"


def declarations() -> str:
    """The example's tables, as a file would have them."""
    lines = EXAMPLE_DECLARATIONS.splitlines()
    tables = lines[next(index for index, line in enumerate(lines) if line.startswith("# [")) :]
    return "\n".join(line.removeprefix("# ") for line in tables) + "\n"


if __name__ == "__main__":
    RESULT.write_text(render())
