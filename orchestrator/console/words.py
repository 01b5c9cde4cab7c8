"""How values are written on a page: times, spans, counts, and JSON with its numbers as they are."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from chordage.orchestrator.core.inert import inert_json

EXCERPT = 120  # characters of a value in one line
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"))


def span(seconds: float) -> str:
    """A length of time, as short as it can be read: 340 ms, 4.2 s, 12 min, 3 d."""
    if seconds < 1:
        return f"{max(0.0, seconds) * 1000:.0f} ms"
    for size, unit in _UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def ago(at: datetime, now: datetime) -> str:
    """How long ago, or in how long."""
    passed = (now - at).total_seconds()
    if abs(passed) < 1:
        return "now"
    return f"{span(passed)} ago" if passed > 0 else f"in {span(-passed)}"


def iso(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def full_time(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def clock(at: datetime) -> str:
    return f"{at.astimezone(UTC):%H:%M:%S}"


def count(number: int) -> str:
    """A number with thin spaces between thousands."""
    return f"{number:,}".replace(",", "\u2009")


def plain_word(value: Any) -> str:
    """The word of an enum, with spaces."""
    return str(getattr(value, "value", value)).replace("_", " ")


def excerpt(value: Any, length: int = EXCERPT) -> str:
    """A value in one line, cut if it is long."""
    text = scalar(value)
    line = " ".join(text[: length * 4].split())
    return line if len(line) <= length else f"{line[: length - 1]}…"


def pretty(value: Any) -> str:
    """JSON for people, which reads back as the same value. Keys keep their order."""
    return inert_json(json.dumps(value, ensure_ascii=False, indent=2))


def scalar(value: Any) -> str:
    return value if isinstance(value, str) else inert_json(json.dumps(value, ensure_ascii=False))


def short_id(some_id: str) -> str:
    """The end of an id: the ends of two ids made at the same moment differ, their beginnings do not."""
    name = some_id.rpartition(":")[2]
    return name if len(name) <= 12 else f"…{name[-8:]}"


# Markdown of models: no HTML, no pictures, and links to web pages alone.

_MARKDOWN = MarkdownIt("commonmark", {"html": False, "linkify": False}).enable("table").disable("image")


def _is_web_address(url: str) -> bool:
    return url.lower().startswith(("http://", "https://"))


_MARKDOWN.validateLink = _is_web_address  # type: ignore[method-assign]  # the library's own way to replace the rule


def _open_link(tokens: list[Token], number: int, options: Any, env: Any) -> str:
    tokens[number].attrSet("rel", "noopener noreferrer nofollow")
    return _MARKDOWN.renderer.renderToken(tokens, number, options, env)  # type: ignore[attr-defined,no-any-return]  # its protocol lacks it


_MARKDOWN.renderer.rules["link_open"] = _open_link  # type: ignore[attr-defined]  # as above


def markdown(text: str) -> Markup:
    """The text of a model as HTML. What is no Markdown is escaped by the renderer."""
    return Markup(_MARKDOWN.render(text))  # noqa: S704 - made of escaped text, with HTML off
