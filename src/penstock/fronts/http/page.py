"""`/docs`: the OpenAPI document as one page for people, without scripts and without anything from elsewhere."""

from __future__ import annotations

import json
from html import escape
from typing import Any

Document = dict[str, Any]

STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1c2430;background:#fff}
h1{margin-bottom:0}h2{margin-top:3rem;border-bottom:1px solid #d5dae2;text-transform:capitalize}
details{border:1px solid #d5dae2;border-radius:6px;margin:.5rem 0;padding:.4rem .8rem}
summary{cursor:pointer}code,pre{font:14px/1.45 ui-monospace,monospace}
pre{background:#f4f6f9;padding:.8rem;overflow:auto;border-radius:6px}
b.method{display:inline-block;min-width:4.2rem;color:#0b5cad}table{border-collapse:collapse}
td,th{text-align:left;padding:.2rem 1rem .2rem 0;vertical-align:top}nav a{margin-right:1rem}
@media(prefers-color-scheme:dark){body{background:#14181f;color:#dde3ec}pre{background:#1d232d}
details,h2{border-color:#323b49}b.method,a{color:#7ab8ff}}
"""


def render(document: Document) -> bytes:
    """The page."""
    by_tag: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            by_tag.setdefault(operation["tags"][0], []).append(_operation(method, path, operation))
    links = "".join(f'<a href="#{escape(name)}">{escape(name)}</a>' for name in (*by_tag, "shapes"))
    sections = "".join(f'<h2 id="{escape(name)}">{escape(name)}</h2>{"".join(parts)}' for name, parts in by_tag.items())
    schemas = document["components"]["schemas"]
    shapes = "".join(
        f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>{_code(schema)}</details>'
        for name, schema in sorted(schemas.items())
    )
    title = f"{document['info']['title']} {document['info']['version']}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}: HTTP API</title><style>{STYLE}</style></head><body>"
        f"<h1>{escape(title)}</h1><p>{escape(document['info']['description'])} "
        'For programs: <a href="/openapi.json">openapi.json</a>.</p>'
        f'<nav>{links}</nav>{sections}<h2 id="shapes">shapes</h2>{shapes}</body></html>'
    ).encode()


def _operation(method: str, path: str, operation: Document) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(one['name'])}</code></td><td>{escape(one['in'])}</td><td>{_kind(one['schema'])}</td></tr>"
        for one in operation["parameters"]
    )
    body = "".join(
        f"<tr><td><code>{escape(media)}</code></td><td>body</td><td>{_kind(content['schema'])}</td></tr>"
        for media, content in operation.get("requestBody", {}).get("content", {}).items()
    )
    answers = "".join(
        f"<tr><td>{escape(status)}</td><td>{_answer(answer)}</td><td>{escape(answer['description'])}</td></tr>"
        for status, answer in sorted(operation["responses"].items())
    )
    return (
        f'<details><summary><b class="method">{escape(method.upper())}</b> <code>{escape(path)}</code><br>'
        f"{escape(operation['summary'])}</summary><table>{rows}{body}</table><h4>Answers</h4><table>{answers}</table></details>"
    )


def _answer(answer: Document) -> str:
    return "<br>".join(_kind(content["schema"]) for content in answer.get("content", {}).values())


def _kind(schema: Document) -> str:
    reference = schema.get("$ref")
    if reference is not None:
        name = escape(reference.rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    return f"<code>{escape(json.dumps(schema, ensure_ascii=False))}</code>"


def _code(schema: Document) -> str:
    return f"<pre>{escape(json.dumps(schema, indent=2, ensure_ascii=False))}</pre>"
