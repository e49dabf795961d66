"""Writes docs/http.md: every operation of the HTTP API, from the routes and shapes that the server itself uses.

    .venv/bin/python tools/make_http_reference.py

Summaries come from the handlers, words about fields from the strings below them, errors from what the routes declare.
A test compares the page with what this makes; another sends random requests and compares the answers with the routes.
"""

from __future__ import annotations

import ast
import inspect
import sys
import types
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Raw, Struct, UnsetType

from penstock.fronts.http.errors import FAULTS
from penstock.fronts.http.handlers import all_routes
from penstock.fronts.http.openapi import COMMON, tag
from penstock.fronts.http.routes import Route
from penstock.model import ExchangeConfig, GroupConfig, QueueConfig
from penstock.model.errors import CLASSES, NotOwner, PenstockError, UnknownError
from penstock.wire.http.shapes import ARROW_TYPE, BATCH_TYPE, BATCHES_TYPE, JSON_TYPE, NEXT_OFFSET_HEADER, ErrorAnswer

ROOT: Final = Path(__file__).resolve().parents[1]
RESULT: Final = ROOT / "docs" / "http.md"

CONFIGS: Final = {
    QueueConfig: "queues-declare_queue",
    GroupConfig: "groups-declare_group",
    ExchangeConfig: "exchanges-declare_exchange",
}
PATH_WORDS: Final = {
    "queue": "The queue's name.",
    "group": "The group's name; `default` is the one that claims use unless they name another.",
    "exchange": "The exchange's name.",
    "schedule": "The schedule's name.",
    "trace": "The trace's id: any text.",
    "lease": "The token that a claim gave.",
    "session": "The session's id.",
    "mark": "The mark's name.",
    "transaction": "The name of what is staged and committed together: any text of your own.",
    "chunk": "The chunk's name in its transaction; any but `commit`.",
    "lane": "The lane's place in its queue; 0 is the first.",
    "offset": "The message's place in its lane.",
}
HIDDEN: Final = (PenstockError.code, NotOwner.code, UnknownError.code)
"""Errors that no answer has."""
COMMON_CODES: Final = ", ".join(f"{kind.row.http} `{kind.code}`" for kind in COMMON)

INTRODUCTION: Final = f"""# The HTTP API

Made by `tools/make_http_reference.py` from the server's routes; do not edit.

`./penstock serve` listens on `http://127.0.0.1:7333`. The same for programs is at `/openapi.json` (OpenAPI 3.1),
and for people at `/docs`. Bodies and answers are JSON with `Content-Type: {JSON_TYPE}`; a request without a body
needs none.

```sh
curl -sf -X PUT http://127.0.0.1:7333/v1/queues/reference
```

```text
{{"name":"reference","options":{{}}}}
```

```sh
curl -sf http://127.0.0.1:7333/v1/queues/reference/messages -H 'Content-Type: {JSON_TYPE}' \\
    -d '{{"messages": [{{"payload": "hello"}}, {{"payload_json": {{"n": 1}}, "headers": {{"region": "eu"}}}}]}}'
```

```text
{{"count":2,"results":[{{"index":0,"queue":"reference","lane":0,"offset":0,"duplicate":false}},{{"index":1,"queue":"reference","lane":0,"offset":1,"duplicate":false}}]}}
```

```sh
curl -sf http://127.0.0.1:7333/v1/queues/reference/claim -H 'Content-Type: {JSON_TYPE}' -d '{{"max": 10, "wait": 5}}'
```

The claim's `lease` is what its messages are settled with; a message that is not settled in time comes again.

**Names** in paths are percent-encoded, with `/` as `%2F`; `.` and `..` as `%2E` and `%2E%2E`, because clients take
them for steps in a path. **Namespaces**: every operation under `/v1` takes the query parameter `namespace`,
`default` without it; queues, exchanges, schedules and marks of one are not seen from another. **Sessions**: it also
takes `session`, the id of one that was begun; exclusive queues need it. **Times** end in `_ms` and are milliseconds
since the epoch, spans in milliseconds too; `wait`, `delay` and `seconds` are seconds, fractions allowed. **Unknown**
fields and query parameters are errors, so that a typing mistake does not pass for a default.
Where a server has a **token**, every request but those to `/healthz`, `/readyz`, `/openapi.json` and `/docs` needs
`Authorization: Bearer TOKEN`. Every answer has an `X-Request-Id`, the request's own where it sent one.

## Errors

Every answer that is not a success is `{{"error": {{"code", "message", "detail"}}}}`: the code is stable and for
programs, the message says what was wrong, with which value, and what to do. Answers 429 and 503 have `Retry-After`
in seconds. [Errors](errors.md) has what each means and its answer in the other protocols.

Any operation under `/v1` may answer {COMMON_CODES}
and what is wrong with HTTP itself; which errors it has beyond these is said with it.

| status | code | when |
| --- | --- | --- |
"""

SPECIALS: Final = f"""
## Names in paths

| part | what it is |
| --- | --- |
{"".join(f"| `{{{name}}}` | {words} |{chr(10)}" for name, words in PATH_WORDS.items())}
## Idempotent publishing

A publish whose answer was lost can be sent again: with the query parameter `publish_id`, which names the whole
request, or with a `dedup_id` on each message. Within the queue's `dedup_window_ms` what is known already is not
stored again, and the answer names the first one's offset with `duplicate`.

## Typed headers

JSON has fewer types than headers. Bytes are written as `{{"$base64": "AP8="}}` and times as `{{"$time":
"2026-01-31T12:00:00+00:00"}}`, in lists and objects too. An object of your own that happens to have one of these
shapes is wrapped: `{{"$object": {{"$base64": "just text"}}}}`.

## Binary batches

The fast way in and out carries [encoded batches](batch-format.md), which the server stores and sends as they are.

- A publish with `Content-Type: {BATCH_TYPE}` has one batch in its frame as its body; the answer has `parts`
  instead of `results`: runs of messages that went to one lane.
- A claim or read with `Accept: {BATCHES_TYPE}` is answered in MessagePack, as arrays:
  a claim is `[queue, lane, lease, deadline_ms, slices]`, a read `[queue, lane, next_offset, primary_committed, slices,
  done, damaged]`, and each slice `[offset, published_ms, attempt, count, meta, body]`, a batch of `count` consecutive
  messages.
- A [scan](#get-v1queuesqueuelaneslanescan) is always binary: `[queue, queue_id, lane, first, end, next_offset,
  slices, damaged]`, each slice `[base, count, published_ms, start, stop, meta, body, rows, states]`: the messages
  `start` to `stop` of a stored batch of `count` whose first offset is `base`. What was left out is null; `rows` are the
  places that match `where`, as little-endian 32-bit numbers, null where all do; `states` are `[start, end, state,
  attempts, reason]` of the offsets that `group` is not done with. `Accept: {ARROW_TYPE}` gives
  the same rows as Arrow instead, for DuckDB, Polars or pandas; then the answer's `{NEXT_OFFSET_HEADER}` says
  where to go on, and the schema's metadata has `penstock.damaged`, as JSON, where something was passed over.
- `damaged` has an object with `lane`, `start` and `end` for each range that was passed over because it is
  [damaged in the store](store.md#damaged-messages). A scan has slices without messages in its place.

Errors are JSON in every case.
"""


def render() -> str:
    routes = all_routes()
    by_tag: dict[str, list[Route]] = {}
    for route in routes:
        by_tag.setdefault(tag(route), []).append(route)
    parts = [INTRODUCTION, *error_rows(), SPECIALS]
    for name, group in by_tag.items():
        module = sys.modules[group[0].handler.__module__]
        parts.append(f"\n## {name.capitalize()}\n\n{inspect.getdoc(module)}\n")
        parts += [operation(route) for route in group]
    parts.append("\n## Shapes\n\nFields without a default are always there.\n")
    parts += [shape(kind) for kind in shapes(routes)]
    return "".join(parts)


def error_rows() -> list[str]:
    """What a server can answer: the catalogue's errors and those of HTTP itself."""
    rows = [(fault.status, fault.code, f"{fault.words[0].upper()}{fault.words[1:]}.") for fault in FAULTS]
    rows += [(kind.row.http, code, inspect.getdoc(kind) or "") for code, kind in CLASSES.items() if code not in HIDDEN]
    return [f"| {status} | `{code}` | {words} |\n" for status, code, words in sorted(rows)]


# One operation -------------------------------------------------------------------------------------------


def operation(route: Route) -> str:
    summary = " ".join((inspect.getdoc(route.handler) or "").split())
    lines = [f"\n### `{route.method} {route.path}`\n\n{summary}\n\n"]
    if route.query is not None:
        lines += [table("query parameter", route.query), "\n"]
    if route.body is not None:
        lines.append(f"Body: {body_text(route)}. ")
    answers = [f"{status} {answer_text(route, kind)}" for status, kind in route.answers.items()]
    lines.append(f"Answers: {', '.join(answers)}.")
    own = [kind for kind in dict.fromkeys(route.errors) if kind not in COMMON]
    if own:
        codes = ", ".join(f"{kind.row.http} `{kind.code}`" for kind in own)
        lines.append(f" Errors beyond the common ones: {codes}.")
    lines.append("\n")
    return "".join(lines)


def body_text(route: Route) -> str:
    for kind, anchor in CONFIGS.items():
        if route.body_schema is kind:
            return f"[options](options.md#{anchor}) by name"
    text = type_text(route.json_body)
    return f"{text}, or a [batch](#binary-batches)" if route.takes_batch else text


def answer_text(route: Route, kind: Any) -> str:
    if kind is None:
        return "without a body"
    if not isinstance(kind, type) or not issubclass(kind, Struct):
        other = "" if route.or_gives is None else f" or `{route.or_gives}`, as `Accept` says"
        return f"`{route.gives.partition(';')[0]}`{other}"
    return f"{type_text(kind)}, or [batches](#binary-batches)" if route.gives_batches else type_text(kind)


# Shapes --------------------------------------------------------------------------------------------------


def shapes(routes: list[Route]) -> list[type[Struct]]:
    """Every shape that bodies and answers are made of, by name."""
    found: set[type[Struct]] = set()
    waiting: list[Any] = [ErrorAnswer]
    for route in routes:
        waiting += [route.json_body, *route.answers.values()]
    while waiting:
        kind = waiting.pop()
        waiting += get_args(kind)
        if isinstance(kind, type) and issubclass(kind, Struct) and kind not in CONFIGS and kind not in found:
            found.add(kind)
            waiting += [field.type for field in msgspec.structs.fields(kind)]
    return sorted(found, key=lambda kind: kind.__name__)


def shape(kind: type[Struct]) -> str:
    about = inspect.getdoc(kind) if "__doc__" in vars(kind) and kind.__doc__ else ""
    return f"\n### {kind.__name__}\n\n{' '.join((about or '').split())}\n\n{table('field', kind)}".replace(
        "\n\n\n\n", "\n\n"
    )


def table(title: str, kind: type[Struct]) -> str:
    """A row for each field of a shape or query."""
    words = docstrings(kind)
    head = f"| {title} | type | default | what it is |\n| --- | --- | --- | --- |\n"
    rows = [
        f"| `{field.name}` | {type_text(field.type)} | {default_text(field)} | {words.get(field.name, '')} |\n"
        for field in msgspec.structs.fields(kind)
    ]
    return head + "".join(rows)


@cache
def docstrings(kind: type[Struct]) -> dict[str, str]:
    """The string under each field in the class's source, by name; those of its bases where it says nothing itself."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base is Struct or not issubclass(base, Struct):
            continue
        for field, below in pairwise(classes(base.__module__)[base.__name__].body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                match below:
                    case ast.Expr(ast.Constant(str(text))):
                        found[field.target.id] = " ".join(text.split()).replace("|", "\\|")
    return found


@cache
def classes(module: str) -> dict[str, ast.ClassDef]:
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


NAMES: Final[dict[Any, str]] = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    bytes: "base64",
    Any: "anything",
    dict: "object",
    Raw: "anything",
    type(None): "null",
}


def type_text(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_text(arguments[0]) + "".join(limits_text(one) for one in arguments[1:] if isinstance(one, Meta))
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (Union, types.UnionType):
        texts = [type_text(one) for one in arguments if one is not type(None) and one is not UnsetType]
        return " or ".join(dict.fromkeys(texts))
    if origin is list:
        return f"list of {type_text(arguments[0])}"
    if origin is tuple:
        return f"[{', '.join(type_text(one) for one in arguments)}]"
    if origin is dict:
        return "object" if arguments[1] is Any else f"object of {type_text(arguments[1])}"
    if isinstance(annotation, TypeVar):
        raise TypeError(f"{annotation} has no words")
    if isinstance(annotation, type) and issubclass(annotation, Struct):
        return f"[{annotation.__name__}](#{annotation.__name__.lower()})"
    return NAMES[annotation]


def limits_text(meta: Meta) -> str:
    if meta.ge is not None and meta.le is not None:
        return f", {meta.ge} or more" if meta.le == 2**63 - 1 else f", {meta.ge} to {meta.le}"
    return ", not empty" if meta.min_length else ""


def default_text(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return ""
    if field.default is msgspec.NODEFAULT:
        return "`[]`" if field.default_factory() == [] else "`{}`"
    if field.default is None or field.default is msgspec.UNSET:
        return "none"
    if isinstance(field.default, bool):
        return str(field.default).lower()
    return f"`{field.default}`" if field.default != "" else "empty"


if __name__ == "__main__":
    RESULT.write_text(render())
