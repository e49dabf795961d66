"""Where the configuration comes from: defaults, a TOML file, the environment, flags; the later ones are stronger.

Every value knows its source, and every mistake is told with its line, variable or flag, all of them at once. It may not
know the command line or who uses the values.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit

from penstock.config.options import OPTIONS, SECTIONS, BadValue, Config, Option, checked, parsed
from penstock.declare.file import TABLES, Declarations, declarations_of
from penstock.fronts.auth import Credentials, exposure
from penstock.fronts.registry import FRONTS
from penstock.model import suggestion
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
    found = _Values()
    declarations: Declarations = {}
    if toml is not None:
        found.take_file(toml)
        declarations = declarations_of(toml, found.problems, others=SECTIONS)
    found.take_environment(environment)
    for place in given:
        found.take_flag(place)
    values = found.values
    problems = found.problems or [*_open_doors(values, found.sources), *_cluster_problems(values)]
    if problems:
        raise FileProblems(problems)
    sections = {
        section: kind(**{name: value for (owner, name), value in values.items() if owner == section})
        for section, kind in SECTIONS.items()
    }
    fronts = {entry.name: sections.pop(entry.name) for entry in FRONTS}
    return Loaded(Config(**sections, fronts=fronts), found.sources, None if toml is None else toml.name, declarations)


def _file(file: str | Path | None, environment: Mapping[str, str]) -> TomlFile | None:
    if file is not None:
        return read_toml(Path(file))
    if environment.get(FILE_VARIABLE):
        try:
            return read_toml(Path(environment[FILE_VARIABLE]))
        except FileProblems as error:
            raise FileProblems([f"{problem} (named by {FILE_VARIABLE})" for problem in error.problems]) from None
    return read_toml(Path(FILE_NAME)) if Path(FILE_NAME).exists() else None


class _Values:
    """The value of each option and where it came from, as far as the sources have been read, and what was wrong."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], Any] = {key: option.default for key, option in OPTIONS.items()}
        self.sources = dict.fromkeys(OPTIONS, Source("default"))
        self.problems: list[str] = []

    def take_file(self, toml: TomlFile) -> None:
        for section, table in toml.data.items():
            place = toml.place([section])
            if section not in SECTIONS:
                if section not in TABLES:
                    hint = suggestion(section, sorted([*SECTIONS, *TABLES]))
                    self.problems.append(f"{place}: unknown section {section!r}; {hint}")
            elif not isinstance(table, dict):
                self.problems.append(f"{place}: {section} is a section; write its options below [{section}]")
            else:
                for name, value in table.items():
                    self._take_line(section, name, value, toml.place([section, name]))

    def _take_line(self, section: str, name: str, value: Any, place: str) -> None:
        option = OPTIONS.get((section, name))
        if option is None:
            known = sorted(name for owner, name in OPTIONS if owner == section)
            self.problems.append(f"{place}: unknown option {section}.{name}; {suggestion(name, known)}")
        else:
            self._take(option, Source("file", place), checked, value)

    def take_environment(self, environment: Mapping[str, str]) -> None:
        by_variable = {option.variable: option for option in OPTIONS.values()}
        for variable, text in sorted(environment.items()):
            if not variable.startswith("PENSTOCK_") or variable in OTHER_VARIABLES:
                continue
            if variable in by_variable:
                self._take(by_variable[variable], Source("environment", variable), parsed, text)
            else:
                hint = suggestion(variable, sorted([*by_variable, *OTHER_VARIABLES]))
                self.problems.append(f"environment: unknown variable {variable}; {hint}")

    def take_flag(self, given: Given) -> None:
        option = OPTIONS.get((given.section, given.option))
        if option is None:
            title = f"{given.section}.{given.option}"
            hint = suggestion(title, sorted(option.title for option in OPTIONS.values()))
            self.problems.append(f"{given.flag}: unknown option {title}; {hint}")
        else:
            self._take(option, Source("flag", given.flag), parsed, given.text)

    def _take(self, option: Option, source: Source, read: Callable[[Option, Any], Any], given: Any) -> None:
        key = option.section, option.name
        try:
            self.values[key] = read(option, given)
            self.sources[key] = source
        except BadValue as error:
            self.problems.append(f"{source.where}: {option.title} {error}")


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
    found = {name: exposure(name, values[name, "host"], credentials) for name in names}
    return [f"{sources[name, 'host'].where}: {exposed}" for name, exposed in found.items() if exposed]
