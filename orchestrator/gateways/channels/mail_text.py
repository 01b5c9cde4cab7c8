"""The words of a mail: its plain text, or else its HTML without the marks."""

from __future__ import annotations

from email.message import EmailMessage, MIMEPart
from html.parser import HTMLParser

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
    reader = _Words()
    reader.feed(html)
    reader.close()
    lines = (" ".join(line.split()) for line in "".join(reader.found).splitlines())
    return "\n".join(line for line in lines if line)


def _content(part: MIMEPart) -> str:
    try:
        return str(part.get_content())
    except LookupError:  # a character set that nobody knows
        raw = part.get_payload(decode=True)
        return raw.decode("utf-8", "replace") if isinstance(raw, bytes) else ""


class _Words(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002 - its signature
        self._hidden += tag in _HIDDEN
        if tag in _BREAKS:
            self.found.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in _HIDDEN:
            self._hidden = max(0, self._hidden - 1)
        if tag in _BREAKS:
            self.found.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.found.append(" ".join(data.split("\n")))
