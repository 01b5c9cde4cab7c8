"""`/docs`: the OpenAPI document as one page to read. It loads nothing, from here or elsewhere, and runs no script."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from html import escape
from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse

VERBS = ("get", "post", "put", "patch", "delete")
STYLE = """
:root { color-scheme: light dark; --line: light-dark(#ccc, #444); --soft: light-dark(#f4f4f4, #222); }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1rem; overflow-wrap: anywhere; }
code, pre { font: 14px/1.4 ui-monospace, monospace; }
pre { background: var(--soft); padding: .6rem; white-space: pre-wrap; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0; }
td, th { border: 1px solid var(--line); padding: .25rem .5rem; text-align: left; vertical-align: top; }
details { border: 1px solid var(--line); border-radius: 4px; margin: .5rem 0; padding: .3rem .7rem; }
summary { cursor: pointer; }
nav a { margin-right: 1rem; }
"""
_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_CODE = re.compile(r"`([^`]+)`")
_BOLD = re.compile(r"\*\*([^*]+)\*\*")


def add(app: FastAPI) -> None:
    @cache
    def page() -> str:
        return page_of(app.openapi())

    @app.get("/docs", include_in_schema=False)
    def docs() -> HTMLResponse:
        return HTMLResponse(page(), headers=HEADERS)


def page_of(document: Mapping[str, Any]) -> str:
    info, by_tag = document["info"], _by_tag(document)
    links = "".join(f'<a href="#{_anchor(tag)}">{escape(tag)}</a>' for tag in by_tag)
    sections = "".join(
        f'<h2 id="{_anchor(tag)}">{escape(tag)}</h2>{"".join(operations)}' for tag, operations in by_tag.items()
    )
    schemas = document.get("components", {}).get("schemas", {})
    forms = "".join(
        f'<details id="{_anchor(name)}"><summary><code>{escape(name)}</code></summary>{_form(schema)}</details>'
        for name, schema in sorted(schemas.items())
    )
    title = f"{escape(info['title'])} {escape(info['version'])}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f"<body><h1>{title}</h1>{_prose(info.get('description', ''))}"
        f'<p>For programs: <a href="openapi.json">openapi.json</a></p><nav>{links}<a href="#forms">forms</a></nav>'
        f'<main>{sections}<h2 id="forms">forms</h2>{forms}</main></body></html>'
    )


def _by_tag(document: Mapping[str, Any]) -> dict[str, list[str]]:
    by_tag: dict[str, list[str]] = {}
    for path, item in document["paths"].items():
        for verb in VERBS:
            if verb in item:
                tag = (item[verb].get("tags") or ["more"])[0]
                by_tag.setdefault(tag, []).append(_operation(verb, path, item[verb]))
    return by_tag


def _operation(verb: str, path: str, operation: Mapping[str, Any]) -> str:
    head = f"<code>{verb.upper()} {escape(path)}</code> {escape(operation.get('summary', ''))}"
    parts = [_prose(operation.get("description", ""))]
    if parameters := operation.get("parameters"):
        rows = [
            (each["name"], each["in"], _kind(each["schema"]), each.get("description", "")) for each in parameters
        ]  # fmt: skip
        parts.append(_table(("parameter", "in", "type", "meaning"), rows))
    if body := operation.get("requestBody"):
        for media, content in body["content"].items():
            parts.append(f"<p>Body ({escape(media)}): {_kind(content['schema'])}</p>")
    answers = [
        (code, answer.get("description", ""), " ".join(_kind(c.get("schema", {})) for c in _contents(answer)))
        for code, answer in operation["responses"].items()
    ]
    parts.append(_table(("answer", "meaning", "form"), answers))
    return f'<details id="{_anchor(operation["operationId"])}"><summary>{head}</summary>{"".join(parts)}</details>'


def _contents(answer: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from answer.get("content", {}).values()


def _form(schema: Mapping[str, Any]) -> str:
    required = set(schema.get("required", ()))
    rows = [
        (name, _kind(part), "required" if name in required else "", part.get("description", ""))
        for name, part in schema.get("properties", {}).items()
    ]
    examples = "".join(f"<pre>{escape(json.dumps(each, indent=2))}</pre>" for each in schema.get("examples", ()))
    words = ", ".join(str(word) for word in schema.get("enum", ()))
    table = _table(("field", "type", "", "meaning"), rows) if rows else f"<p>{escape(words)}</p>"
    return f"{_prose(schema.get('description', ''))}{table}{examples}"


def _kind(schema: Mapping[str, Any]) -> str:
    """The type of a value in a few words, with a link to the form it names. As HTML."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f'<a href="#{_anchor(name)}">{escape(name)}</a>'
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return " or ".join(_kind(part) for part in schema[key])
    if "enum" in schema or "const" in schema:
        return escape(", ".join(str(word) for word in schema.get("enum", [schema.get("const")])))
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return escape(str(schema.get("type", "any")) + (f" ({schema['format']})" if "format" in schema else ""))


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """The column of types is HTML already; every other is text."""
    html = {"type", "form"}
    cells = "".join(
        "<tr>"
        + "".join(
            f"<td>{cell if name in html else _inline(cell)}</td>" for name, cell in zip(head, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )  # fmt: skip
    return f"<table><tr>{''.join(f'<th>{name}</th>' for name in head)}</tr>{cells}</table>"


def _prose(text: str) -> str:
    return "".join(f"<p>{_inline(paragraph)}</p>" for paragraph in text.split("\n\n") if paragraph.strip())


def _inline(text: str) -> str:
    """Code and bold type, as the descriptions have them."""
    return _BOLD.sub(r"<strong>\1</strong>", _CODE.sub(r"<code>\1</code>", escape(text)))


def _anchor(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", name)
