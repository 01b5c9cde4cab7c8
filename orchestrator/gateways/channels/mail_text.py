"""The words of a mail: its plain text, or else its HTML without the marks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from email.message import EmailMessage, MIMEPart
from html import unescape

MOST = 2_000_000  # characters
FAR = 500  # characters of a mark in which a ">" may stand between quotes; behind them the first one ends it
_MARK = re.compile(r"<!--|<[!?]|</?(?P<name>[a-zA-Z][a-zA-Z0-9]*)")
_REST = re.compile(r"""(?:[^>"']++|"[^"]*+"|'[^']*+')*+>""")
_CLOSING = {name: re.compile(f"</{name}", re.IGNORECASE) for name in ("script", "style")}
_HIDDEN = frozenset({"script", "style", "head", "title", "template"})
_BREAKS = frozenset({"br", "p", "div", "tr", "li", "ul", "ol", "table", "h1", "h2", "h3", "h4", "blockquote", "hr"})


def text_of(mail: EmailMessage) -> str:
    """Blank where there is none."""
    plain = mail.get_body(("plain",))
    if plain is not None and (text := _content(plain)).strip():
        return text.strip()
    html = mail.get_body(("html",))
    return stripped(_content(html)) if html is not None else ""


def stripped(html: str) -> str:
    """In one pass, whatever stands in it: anybody can write to us. Raises ValueError for more than anybody writes."""
    if len(html) > MOST:
        raise ValueError(f"its HTML has {len(html)} characters, the limit is {MOST}")
    lines = (" ".join(line.split()) for line in "".join(_words(html)).splitlines())
    return "\n".join(line for line in lines if line)


def _words(html: str) -> Iterator[str]:
    at, hidden = 0, 0
    last, last_comment = html.rfind(">"), html.rfind("-->")  # behind them nothing is looked for that is not there
    while (mark := _MARK.search(html, at)) is not None and mark.start() <= last:
        if not hidden:
            yield _plain(html[at : mark.start()])
        name = (mark["name"] or "").lower()
        if name in _BREAKS:
            yield "\n"
        hidden = _hidden(hidden, name, closes=mark[0].startswith("</"))
        at = _behind(html, mark, name, last_comment)
    if not hidden:
        yield _plain(html[at:])


def _hidden(hidden: int, name: str, *, closes: bool) -> int:
    """In how many that are not shown it stands. A head need not be closed, where a body begins."""
    if name == "body":
        return 0
    return max(0, hidden + (-1 if closes else 1)) if name in _HIDDEN else hidden


def _behind(html: str, mark: re.Match[str], name: str, last_comment: int) -> int:
    if mark[0] == "<!--" and mark.end() <= last_comment:
        return html.index("-->", mark.end()) + len("-->")
    if name in _CLOSING and not mark[0].startswith("</"):
        closing = _CLOSING[name].search(html, mark.end())
        return closing.start() if closing else len(html)
    quoted = _REST.match(html, mark.end(), mark.end() + FAR)
    return quoted.end() if quoted else html.index(">", mark.end() - 1) + 1


def _plain(text: str) -> str:
    return " ".join(unescape(text).split("\n"))


def _content(part: MIMEPart) -> str:
    try:
        return str(part.get_content())
    except LookupError:  # a character set that nobody knows
        raw = part.get_payload(decode=True)
        return raw.decode("utf-8", "replace") if isinstance(raw, bytes) else ""
