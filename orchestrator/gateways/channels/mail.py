"""A mail as a message: its writer, its text, its thread, and whether a program wrote it."""

from __future__ import annotations

import email
import re
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import EmailMessage, MIMEPart
from email.parser import BytesHeaderParser
from email.policy import EmailPolicy
from email.utils import parseaddr
from hashlib import sha256
from html import unescape
from typing import Any

from chordage.orchestrator.core import text
from chordage.orchestrator.core.channels import Incoming, Unreadable
from chordage.orchestrator.core.message import Sender
from chordage.orchestrator.gateways.channels.ids import ChannelWriters

LONGEST = 500  # characters of a header that is kept
REFERENCES = 20
_READ, _READ_OF_REFERENCES = 2000, 20_000  # characters of a header that are taken apart: it may cost their square
_BULK = frozenset({"bulk", "list", "junk", "auto_reply"})
HTML_MAX = 2_000_000  # characters
TAG_MAX = 500  # characters of a tag in which a ">" may be quoted; behind them the first ">" ends it
_MARK = re.compile(r"<!--|<[!?]|</?(?P<name>[a-zA-Z][a-zA-Z0-9]*)")
_REST = re.compile(r"""(?:[^>"']++|"[^"]*+"|'[^']*+')*+>""")
_CLOSING = {name: re.compile(f"</{name}", re.IGNORECASE) for name in ("script", "style")}
_HIDDEN = frozenset({"script", "style", "head", "title", "template"})
_BREAKS = frozenset({"br", "p", "div", "tr", "li", "ul", "ol", "table", "h1", "h2", "h3", "h4", "blockquote", "hr"})


@dataclass(frozen=True, kw_only=True, slots=True)
class MailRules:
    """The address in From can be forged: it is worth what the checks of the mail server are worth."""

    writers: ChannelWriters  # by address, and by domain behind an @
    own: str  # our own address: what we have sent is not answered
    by_references: bool
    automatic: bool  # whether mail that a program wrote is read

    def lets_in(self, mail: EmailMessage) -> bool:
        may_write = self.sender(mail) is not None and writer_of(mail) != self.own
        return may_write and (self.automatic or not is_automatic(mail))

    def sender(self, mail: EmailMessage) -> Sender | None:
        writer = writer_of(mail)
        return self.writers.sender(writer, f"@{writer.rpartition('@')[2]}")


class _Bounded(EmailPolicy):
    """Mail comes from strangers: a header is read as far as a mail needs, and one that cannot be read is empty."""

    def header_fetch_parse(self, name: str, value: str) -> str:
        longest = _READ_OF_REFERENCES if name.lower() in {"references", "in-reply-to"} else _READ
        try:
            header: str = super().header_fetch_parse(name, value[:longest])
        except Exception:  # of the parser: RecursionError and errors of its own among them
            header = super().header_fetch_parse(name, "")
        return header


_POLICY: Any = _Bounded()  # typeshed knows no policy of EmailMessage but its own


def headers_of(raw: bytes) -> EmailMessage:
    """Its headers alone: the parts are not parsed before the writer is known to be listed."""
    headers: EmailMessage = BytesHeaderParser(policy=_POLICY).parsebytes(raw)
    return headers


def read(raw: bytes, rules: MailRules, key: str, cursor: str | None) -> Incoming | Unreadable | None:
    """None: its writer may not write. A mail that cannot be parsed is recorded as unreadable, and holds up no other."""
    if not rules.lets_in(headers_of(raw)):
        return None
    try:
        return _message(email.message_from_bytes(raw, policy=_POLICY), rules, key, cursor)
    except Exception as error:
        why = f"the mail cannot be read ({type(error).__name__}: {error})"
        return Unreadable(key=key, why=why, excerpt=raw[:200].decode("utf-8", "replace"), cursor=cursor)


def _message(mail: EmailMessage, rules: MailRules, key: str, cursor: str | None) -> Incoming:
    writer, message_id = writer_of(mail), _header(mail, "Message-ID")
    references = _ids(mail, "References") or _ids(mail, "In-Reply-To")
    root = references[0] if references else message_id
    return Incoming(
        key=key_of(mail, key),
        text=text.clean_text(_text_of(mail)),
        sender=rules.sender(mail) or Sender.GUEST,
        address={
            "to": writer,
            "subject": subject_of(mail),
            "in_reply_to": message_id,
            "references": [*references, *([message_id] if message_id and message_id not in references else [])][
                -REFERENCES:
            ],
        },
        thread=f"{writer}:{_short(root)}" if rules.by_references and root else writer,
        meta=_meta(mail, message_id),
        cursor=cursor,
    )


def _meta(mail: EmailMessage, message_id: str) -> dict[str, Any]:
    files = [text.clean_text(part.get_filename() or part.get_content_type())[:200] for part in mail.iter_attachments()]
    meta: dict[str, Any] = {"subject": subject_of(mail), "message_id": message_id, "date": _header(mail, "Date")}
    return {**meta, "attachments": files[:50]} if files else meta


def key_of(mail: EmailMessage, otherwise: str) -> str:
    """From its own headers: the key stays when the server renumbers its mail, or has a mail twice."""
    message_id = _header(mail, "Message-ID")
    if not message_id:
        return otherwise
    return "mail:" + sha256("\n".join((message_id, writer_of(mail), _header(mail, "Date"))).encode()).hexdigest()[:40]


def writer_of(mail: EmailMessage) -> str:
    return text.clean_text(parseaddr(_header(mail, "From"))[1].strip().lower())


def subject_of(mail: EmailMessage) -> str:
    return _header(mail, "Subject")


def is_automatic(mail: EmailMessage) -> bool:
    """Two programs that answer each other would never stop."""
    submitted = _header(mail, "Auto-Submitted").partition(";")[0].strip().lower()
    return (
        submitted not in {"", "no"}
        or _header(mail, "Precedence").strip().lower() in _BULK
        or "X-Autoreply" in mail
        or _header(mail, "Return-Path").strip() == "<>"
    )


def _ids(mail: EmailMessage, name: str) -> list[str]:
    return [id_ for id_ in _header(mail, name, 20_000).split() if id_.startswith("<") and len(id_) <= LONGEST]


def _header(mail: EmailMessage, name: str, longest: int = LONGEST) -> str:
    value = mail[name]
    return "" if value is None else " ".join(text.clean_text(str(value)).split())[:longest]


def _short(root: str) -> str:
    return sha256(root.encode()).hexdigest()[:16]


def _text_of(mail: EmailMessage) -> str:
    """Its plain text, or else its HTML without the tags. Blank where there is neither."""
    plain = mail.get_body(("plain",))
    if plain is not None and (text := _content(plain)).strip():
        return text.strip()
    html = mail.get_body(("html",))
    return stripped(_content(html)) if html is not None else ""


def stripped(html: str) -> str:
    """HTML without its tags, in one pass: it comes from strangers. Raises ValueError if it is too long."""
    if len(html) > HTML_MAX:
        raise ValueError(f"its HTML has {len(html)} characters, the limit is {HTML_MAX}")
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
    """How many hidden elements are open. A body closes a head that was left open."""
    if name == "body":
        return 0
    return max(0, hidden + (-1 if closes else 1)) if name in _HIDDEN else hidden


def _behind(html: str, mark: re.Match[str], name: str, last_comment: int) -> int:
    if mark[0] == "<!--" and mark.end() <= last_comment:
        return html.index("-->", mark.end()) + len("-->")
    if name in _CLOSING and not mark[0].startswith("</"):
        closing = _CLOSING[name].search(html, mark.end())
        return closing.start() if closing else len(html)
    quoted = _REST.match(html, mark.end(), mark.end() + TAG_MAX)
    return quoted.end() if quoted else html.index(">", mark.end() - 1) + 1


def _plain(text: str) -> str:
    return " ".join(unescape(text).split("\n"))


def _content(part: MIMEPart) -> str:
    try:
        return str(part.get_content())
    except LookupError:  # an unknown character set
        raw = part.get_payload(decode=True)
        return raw.decode("utf-8", "replace") if isinstance(raw, bytes) else ""
