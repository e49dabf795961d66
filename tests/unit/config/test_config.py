"""The configuration: every source, which one is stronger, and mistakes told with their line, variable or flag."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from penstock.config import Config, Given, Source, load
from penstock.config.load import OTHER_VARIABLES
from penstock.config.options import HIDDEN, OPTIONS, Option
from penstock.config.show import example, in_force, toml_value
from penstock.toml_file import FileProblems

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to be in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def problems(text: str = "", environment: dict[str, str] | None = None, *given: Given) -> list[str]:
    file = Path("x.toml")
    file.write_text(text)
    with pytest.raises(FileProblems) as raised:
        load(file, environment or {}, given)
    return raised.value.problems


def other_value(option: Option) -> Any:
    """A good value that is not the default."""
    if option.choices:
        return next(choice for choice in option.choices if choice != option.default)
    if option.kind is bool:
        return not option.default
    if option.title == "cluster.advertise":
        return "http://elsewhere:7333"
    return {int: option.high, float: min(7.5, option.high or 7.5), str: "elsewhere"}[option.kind]


def allowed(option: Option) -> dict[str, str]:
    """What must be beside the value: an address that others can reach wants a token, several servers a database."""
    return {
        "http.host": {"PENSTOCK_HTTP_TOKEN": "t"},
        "amqp.host": {"PENSTOCK_HTTP_TOKEN": "t"},
        "mqtt.host": {"PENSTOCK_HTTP_TOKEN": "t"},
        "cluster.nodes": {"PENSTOCK_STORE_PATH": "postgresql://host/database"},
        "cluster.heartbeat_ms": {"PENSTOCK_CLUSTER_LEASE_MS": "600000"},
    }.get(option.title, {})


# Sources ----------------------------------------------------------------------------------------------------


def test_without_any_source_all_is_default() -> None:
    loaded = load(None, {})
    assert loaded.config == Config()
    assert set(loaded.sources.values()) == {Source("default")}
    assert loaded.file is None
    assert loaded.declarations == {}


@pytest.mark.parametrize("option", OPTIONS.values(), ids=lambda option: option.title)
def test_every_option_can_come_from_every_source(option: Option) -> None:
    value = other_value(option)
    Path("x.toml").write_text(f"\n[{option.section}]\n{option.name} = {toml_value(value)}\n")
    text = str(value).lower() if isinstance(value, bool) else str(int(value) if option.kind is int else value)
    key = option.section, option.name
    for file, environment, given, source in (
        ("x.toml", {}, [], Source("file", "x.toml:3")),
        (None, {option.variable: text}, [], Source("environment", option.variable)),
        (None, {}, [Given(*key, "--flag", text)], Source("flag", "--flag")),
    ):
        loaded = load(file, environment | allowed(option), given)
        assert getattr(loaded.config.section(option.section), option.name) == value
        assert loaded.sources[key] == source


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[cluster]\nnodes = 2\n", "a file is for one server"),
        ("[cluster]\nheartbeat_ms = 1001\n", "a lease must outlast two heartbeats"),
        ('[cluster]\nadvertise = "elsewhere"\n', "it must be like http://"),
        ('[cluster]\nadvertise = "http://0.0.0.0:7333"\n', "no other server can reach that"),
        ('[cluster]\nadvertise = "http://host:1/path"\n', "it must be like http://"),
    ],
)
def test_servers_that_could_not_work_together_are_refused(text: str, complaint: str) -> None:
    Path("x.toml").write_text(text)
    with pytest.raises(FileProblems) as raised:
        load("x.toml", {})
    assert [problem for problem in raised.value.problems if complaint in problem]


def test_a_stronger_source_wins() -> None:
    Path("x.toml").write_text("[http]\nport = 1\nidle_seconds = 1\nstop_seconds = 1\n")
    environment = {"PENSTOCK_HTTP_PORT": "2", "PENSTOCK_HTTP_IDLE_SECONDS": "2"}
    loaded = load("x.toml", environment, [Given("http", "port", "--port", "3")])
    http = loaded.config.http
    assert (http.port, http.idle_seconds, http.stop_seconds, http.request_seconds) == (3, 2.0, 1.0, 30.0)
    kinds = [loaded.sources["http", name].kind for name in ("port", "idle_seconds", "stop_seconds", "request_seconds")]
    assert kinds == ["flag", "environment", "file", "default"]


def test_the_file_is_the_flags_then_the_variables_then_the_folders() -> None:
    for number, name in enumerate(("flag.toml", "variable.toml", "penstock.toml"), 1):
        Path(name).write_text(f"[http]\nport = {number}\n")
    environment = {"PENSTOCK_CONFIG": "variable.toml"}
    assert load("flag.toml", environment).config.http.port == 1
    assert load(None, environment).config.http.port == 2
    assert load(None, {}).config.http.port == 3
    assert load(None, {"PENSTOCK_CONFIG": ""}).file == "penstock.toml"


def test_a_file_that_is_named_must_be_there() -> None:
    for file, environment in (("none.toml", {}), (None, {"PENSTOCK_CONFIG": "none.toml"})):
        with pytest.raises(FileProblems, match=r"none\.toml: No such file"):
            load(file, environment)


# Mistakes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[http]\nhost = 'localhost'\nprot = 1\n", "x.toml:3: unknown option http.prot; did you mean port?"),
        ("\n\n[htp]\nport = 1\n", "x.toml:3: unknown section 'htp'; did you mean http?"),
        ("http.port = 'x'\n", "x.toml:1: http.port is 'x'; it must be a whole number"),
        ("[http]\nport = true\n", "x.toml:2: http.port is True; it must be a whole number"),
        ("[http]\n\nport = 65536\n", "x.toml:3: http.port is 65536; it must be 0 to 65_535"),
        ("[http]\nport = 1.5\n", "x.toml:2: http.port is 1.5; it must be a whole number"),
        ("[http]\nidle_seconds = nan\n", "x.toml:2: http.idle_seconds is nan; it must be 0.1 to 86_400"),
        ("[http]\nidle_seconds = true\n", "x.toml:2: http.idle_seconds is True; it must be a number"),
        ("[node]\nevents = 1\n", "x.toml:2: node.events is 1; it must be true or false"),
        ("[log]\nlevel = 'loud'\n", "x.toml:2: log.level is 'loud'; it must be debug, info, warning or error"),
        ("[store]\npath = ''\n", "x.toml:2: store.path is empty; leave it out for the default"),
        (
            "[store]\npath = 'a\\u0000'\n".replace("'", '"'),
            "x.toml:2: store.path is 'a\\x00'; it must not have control characters",
        ),
        ("store = 5\n", "x.toml:1: store is a section; write its options below [store]"),
        ("[http]\ntoken = 7\n", f"x.toml:2: http.token is {HIDDEN}; it must be text"),
        (
            "[http]\ntoken = 'a b'\n",
            "x.toml:2: http.token must be of ASCII characters without spaces: it travels in a header",
        ),
        ("a = 1\nb =\n", "x.toml:2: Invalid value"),
    ],
)
def test_a_mistake_in_the_file_is_told_with_its_line(text: str, problem: str) -> None:
    assert problems(text) == [problem]


def test_an_unknown_option_like_no_other_is_answered_with_all() -> None:
    [problem] = problems("[metrics]\nxyzzy = 1\n")
    assert problem == "x.toml:2: unknown option metrics.xyzzy; there are enabled, queues_max"


@pytest.mark.parametrize(
    ("variable", "value", "problem"),
    [
        ("PENSTOCK_HTTP_PORT", "many", "PENSTOCK_HTTP_PORT: http.port is 'many'; it must be a whole number"),
        ("PENSTOCK_HTTP_PORT", "", "PENSTOCK_HTTP_PORT: http.port is ''; it must be a whole number"),
        ("PENSTOCK_HTTP_PORT", "70000", "PENSTOCK_HTTP_PORT: http.port is 70000; it must be 0 to 65_535"),
        ("PENSTOCK_NODE_EVENTS", "maybe", "PENSTOCK_NODE_EVENTS: node.events is 'maybe'; it must be true or false"),
        ("PENSTOCK_HTP_PORT", "1", "environment: unknown variable PENSTOCK_HTP_PORT; did you mean PENSTOCK_HTTP_PORT?"),
    ],
)
def test_a_mistake_in_the_environment_names_the_variable(variable: str, value: str, problem: str) -> None:
    assert problems("", {variable: value}) == [problem]


def test_variables_of_others_are_let_be() -> None:
    environment = dict.fromkeys(OTHER_VARIABLES - {"PENSTOCK_CONFIG"}, "x") | {"HTTP_PORT": "x"}
    assert load(None, environment).config == Config()


def test_the_variables_that_this_repository_uses_are_known() -> None:
    ours = {"test_config.py", "test_serve.py", "test_apply.py"}
    files = [ROOT / "penstock", *(ROOT / "requirements").glob("*.py")]
    for folder in ("src", "tests", "bench"):
        files += [path for path in (ROOT / folder).rglob("*.py") if path.name not in ours]
    named = {name for file in files for name in re.findall(r"\bPENSTOCK_[A-Z][A-Z_]*[A-Z]\b", file.read_text())}
    assert "PENSTOCK_PYTHON" in named
    assert named - OTHER_VARIABLES - {option.variable for option in OPTIONS.values()} == set()


def test_a_mistake_in_a_flag_names_the_flag() -> None:
    flags = [Given("http", "port", "--port", "x"), Given("http", "prt", "--set http.prt", "1")]
    assert problems("", {}, *flags) == [
        "--port: http.port is 'x'; it must be a whole number",
        "--set http.prt: unknown option http.prt; did you mean http.port?",
    ]


def test_all_mistakes_are_told_at_once() -> None:
    found = problems(
        "[http]\nport = -1\n[queues.a]\nlanes = 0\n", {"PENSTOCK_X": "1"}, Given("a", "b", "--set a.b", "1")
    )
    assert [problem.partition(" ")[0] for problem in found] == ["x.toml:2:", "x.toml:4:", "environment:", "--set"]


@pytest.mark.parametrize(
    ("host", "safe"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True),
     ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("example.org", False)],
)  # fmt: skip
def test_an_address_that_others_can_reach_needs_a_token(host: str, safe: bool) -> None:
    text = f"\n[http]\nhost = '{host}'\n"
    Path("good.toml").write_text(text)
    if safe:
        assert load("good.toml", {}).config.http.host == host
    else:
        [problem] = problems(text)
        assert problem.startswith(f"x.toml:3: http.host is {host!r}")
        assert "http.token" in problem
        assert load("good.toml", {"PENSTOCK_HTTP_TOKEN": "secret"}).config.http.token == "secret"
        assert load("good.toml", {"PENSTOCK_HTTP_INSECURE": "true"}).config.http.insecure


# Showing ----------------------------------------------------------------------------------------------------


def test_a_secret_is_not_shown() -> None:
    shown = {one.option: one for one in in_force(load(None, {"PENSTOCK_HTTP_TOKEN": "hush"}))}
    assert shown["http.token"].value == HIDDEN
    assert shown["http.token"].where == "PENSTOCK_HTTP_TOKEN"
    assert {one.option: one.value for one in in_force(load(None, {}))}["http.token"] == ""


def test_the_example_says_the_defaults() -> None:
    text = example()
    assert tomllib.loads(text) == {section: {} for section, _ in OPTIONS}
    uncommented = re.sub(r"^# (\w+ = )", r"\1", text.partition("# What should exist")[0], flags=re.MULTILINE)
    Path("x.toml").write_text(uncommented)
    loaded = load("x.toml", {})
    assert loaded.config == Config()
    assert {source.kind for source in loaded.sources.values()} == {"file"}


def test_the_examples_declarations_are_good() -> None:
    declarations = example().partition("nothing is deleted.")[2]
    Path("x.toml").write_text(re.sub(r"^# ", "", declarations, flags=re.MULTILINE))
    declared = load("x.toml", {}).declarations
    assert set(declared["default"].queues) == {"mail"}
    assert set(declared["default"].schedules) == {"nightly"}
    assert set(declared["staging"].queues) == {"mail"}
