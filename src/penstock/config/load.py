"""Where the configuration comes from: defaults, a TOML file, the environment, flags; the later ones are stronger.

Every value knows its source, and every mistake is told with its line, variable or flag, all of them at once. It may not
know the command line or who uses the values.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit

from penstock.config.options import OPTIONS, SECTIONS, BadValue, Config, Option, checked, parsed
from penstock.declare.file import TABLES, Declarations, declarations_of
from penstock.fronts.auth import Credentials
from penstock.fronts.exposure import is_exposed
from penstock.fronts.registry import FRONTS
from penstock.toml_file import FileProblems, TomlFile, read_toml

FILE_NAME: Final = "penstock.toml"
FILE_VARIABLE: Final = "PENSTOCK_CONFIG"
OTHER_VARIABLES: Final = frozenset(
    {
        FILE_VARIABLE,
        "PENSTOCK_PYTHON",  # the launcher's
        "PENSTOCK_URL",  # where clients and commands find the server, and what they bring
        "PENSTOCK_TOKEN",
        "PENSTOCK_NAMESPACE",
        "PENSTOCK_STOP_WITH",  # how `serve --nodes` tells its servers that it has gone
        "PENSTOCK_LAKE",  # where the pipeline's jobs find theirs
        "PENSTOCK_KILLS",  # how long the tests look
        "PENSTOCK_KILL_SEED",
        "PENSTOCK_MODEL_EXAMPLES",
        "PENSTOCK_COLUMN_ROUNDS",
    }
)
"""Variables for other programs: `serve` neither reads them nor complains about them."""


class Source(NamedTuple):
    """Where a value came from: `where` is a file with its line, a variable, or a flag."""

    kind: Literal["default", "file", "environment", "flag"]
    where: str = ""


class Given(NamedTuple):
    """A value from the command line."""

    section: str
    option: str
    flag: str
    text: str


class Loaded(NamedTuple):
    """The configuration in force, where each value came from, and what the file declares."""

    config: Config
    sources: dict[tuple[str, str], Source]
    file: str | None
    declarations: Declarations


def load(file: str | Path | None, environment: Mapping[str, str], given: Sequence[Given] = ()) -> Loaded:
    """Read every source. Raises `FileProblems` with all that is wrong."""
    toml = _file(file, environment)
    values: dict[tuple[str, str], Any] = {key: option.default for key, option in OPTIONS.items()}
    sources = dict.fromkeys(OPTIONS, Source("default"))
    problems: list[str] = []
    declarations: Declarations = {}
    if toml is not None:
        _take_file(toml, values, sources, problems)
        declarations = declarations_of(toml, problems, others=SECTIONS)
    _take_environment(environment, values, sources, problems)
    for place in given:
        _take_flag(place, values, sources, problems)
    if not problems:
        problems += _contradictions(values, sources)
    if problems:
        raise FileProblems(problems)
    sections = {
        section: kind(**{name: value for (owner, name), value in values.items() if owner == section})
        for section, kind in SECTIONS.items()
    }
    fronts = {entry.name: sections.pop(entry.name) for entry in FRONTS}
    return Loaded(Config(**sections, fronts=fronts), sources, None if toml is None else toml.name, declarations)


def _file(file: str | Path | None, environment: Mapping[str, str]) -> TomlFile | None:
    if file is not None:
        return read_toml(Path(file))
    if environment.get(FILE_VARIABLE):
        try:
            return read_toml(Path(environment[FILE_VARIABLE]))
        except FileProblems as error:
            raise FileProblems([f"{problem} (named by {FILE_VARIABLE})" for problem in error.problems]) from None
    return read_toml(Path(FILE_NAME)) if Path(FILE_NAME).exists() else None


def _take_file(
    toml: TomlFile, values: dict[tuple[str, str], Any], sources: dict[tuple[str, str], Source], problems: list[str]
) -> None:
    for section, table in toml.data.items():
        if section not in SECTIONS:
            if section not in TABLES:
                hint = nearest(section, [*SECTIONS, *TABLES])
                problems.append(f"{toml.place([section])}: unknown section {section!r}{hint}")
            continue
        if not isinstance(table, dict):
            problems.append(f"{toml.place([section])}: {section} is a section; write its options below [{section}]")
            continue
        for name, value in table.items():
            place = toml.place([section, name])
            option = OPTIONS.get((section, name))
            if option is None:
                problems.append(f"{place}: unknown option {section}.{name}{nearest(name, names_of(section))}")
                continue
            try:
                values[section, name] = checked(option, value)
                sources[section, name] = Source("file", place)
            except BadValue as error:
                problems.append(f"{place}: {option.title} {error}")


def _take_environment(
    environment: Mapping[str, str],
    values: dict[tuple[str, str], Any],
    sources: dict[tuple[str, str], Source],
    problems: list[str],
) -> None:
    by_variable = {option.variable: key for key, option in OPTIONS.items()}
    for variable, text in sorted(environment.items()):
        if not variable.startswith("PENSTOCK_") or variable in OTHER_VARIABLES:
            continue
        key = by_variable.get(variable)
        if key is None:
            hint = nearest(variable, [*by_variable, *OTHER_VARIABLES])
            problems.append(f"environment: unknown variable {variable}{hint}")
            continue
        _take_text(OPTIONS[key], text, Source("environment", variable), values, sources, problems)


def _take_flag(
    given: Given, values: dict[tuple[str, str], Any], sources: dict[tuple[str, str], Source], problems: list[str]
) -> None:
    option = OPTIONS.get((given.section, given.option))
    if option is None:
        title = f"{given.section}.{given.option}"
        hint = nearest(title, [option.title for option in OPTIONS.values()])
        problems.append(f"{given.flag}: unknown option {title}{hint}")
        return
    _take_text(option, given.text, Source("flag", given.flag), values, sources, problems)


def _take_text(
    option: Option,
    text: str,
    source: Source,
    values: dict[tuple[str, str], Any],
    sources: dict[tuple[str, str], Source],
    problems: list[str],
) -> None:
    key = option.section, option.name
    try:
        values[key] = parsed(option, text)
        sources[key] = source
    except BadValue as error:
        problems.append(f"{source.where}: {option.title} {error}")


def _contradictions(values: dict[tuple[str, str], Any], sources: dict[tuple[str, str], Source]) -> list[str]:
    return [*_open_doors(values, sources), *_cluster_problems(values)]


def _cluster_problems(values: dict[tuple[str, str], Any]) -> list[str]:
    problems: list[str] = []
    heartbeat_ms, lease_ms = values["cluster", "heartbeat_ms"], values["cluster", "lease_ms"]
    if lease_ms < 2 * heartbeat_ms:
        problems.append(
            f"cluster.lease_ms is {lease_ms} and cluster.heartbeat_ms {heartbeat_ms}: a lease must outlast two "
            "heartbeats, or servers that are well would be declared dead"
        )
    if values["cluster", "nodes"] > 1 and "://" not in values["store", "path"]:
        problems.append(
            f"cluster.nodes is {values['cluster', 'nodes']} and store.path {values['store', 'path']!r}: a file is for "
            "one server; give several a database, --store postgresql://user@host/database or mysql://user@host/database"
        )
    url = values["cluster", "advertise"]
    if url:
        problems += _url_problems(url)
    return problems


def _url_problems(url: str) -> list[str]:
    host = ""
    try:
        parts = urlsplit(url)
        if parts.scheme == "http" and parts.path in ("", "/") and parts.port != 0:
            host = parts.hostname or ""
    except ValueError:
        pass
    if not host:
        return [f"cluster.advertise is {url!r}; it must be like http://10.0.0.5:7333"]
    if is_unspecified(host):
        return [f"cluster.advertise is {url!r}: no other server can reach that; name this machine's address"]
    return []


def is_unspecified(host: str) -> bool:
    """Whether it stands for every address of a machine, and so for none that another could use."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _open_doors(values: dict[tuple[str, str], Any], sources: dict[tuple[str, str], Source]) -> list[str]:
    credentials = Credentials(values["http", "token"], values["http", "insecure"])
    names = [entry.name for entry in FRONTS if values.get((entry.name, "enabled"), True)]
    return [
        f"{sources[name, 'host'].where}: {name}.host is {values[name, 'host']!r}, where others can reach the server, "
        "and there is no http.token: set one (PENSTOCK_HTTP_TOKEN), listen on 127.0.0.1, or say http.insecure = true"
        for name in names
        if is_exposed(values[name, "host"], credentials)
    ]


def nearest(name: str, known: Sequence[str]) -> str:
    """How a complaint of an unknown name goes on."""
    near = get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; there are {', '.join(sorted(known))}"


def names_of(section: str) -> list[str]:
    return [name for owner, name in OPTIONS if owner == section]
