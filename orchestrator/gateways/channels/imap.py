"""A mailbox: mail by IMAP, answers by SMTP. Only addresses that are listed may write.

The cursor is `<uid validity>:<next uid>:<day>`. When the server renumbers its mail, the folder is read again from that
day on; a mail keeps its key, which is made of its Message-ID, so it becomes no second turn. Mail is marked or moved
only where the binding says so, and only what was stored before this poll.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from chordage.orchestrator.core.channels import Incoming, Outgoing, Polled, Unreadable
from chordage.orchestrator.core.errors import Undeliverable
from chordage.orchestrator.gateways.channels import mail, smtp
from chordage.orchestrator.gateways.channels.ids import ChannelWriters, check_addresses
from chordage.orchestrator.gateways.channels.mail import MailRules
from chordage.orchestrator.gateways.channels.mailbox import ImapTable, Mailbox
from chordage.orchestrator.gateways.room.tables import Complain

AT_ONCE = 100  # mails of one poll
DAY = "%Y-%m-%d"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cursor:
    validity: int
    next_uid: int
    day: str  # of the poll that wrote it: nothing older is new

    def __str__(self) -> str:
        return f"{self.validity}:{self.next_uid}:{self.day}"


def parsed(cursor: str) -> Cursor:
    validity, next_uid, day = cursor.split(":")
    return Cursor(validity=int(validity), next_uid=int(next_uid), day=day)


TABLE = ImapTable


def make(name: str, table: ImapTable, complain: Complain) -> Imap:
    rules = MailRules(
        writers=ChannelWriters(
            owners=check_addresses("owner_addresses", table.owner_addresses, complain),
            peers=check_addresses("peer_addresses", table.peer_addresses, complain),
            guests=check_addresses("allowed_senders", table.allowed_senders, complain),
        ),
        own=table.user.lower(),
        by_references=table.thread_by_references,
        automatic=table.accept_automatic,
    )
    if not rules.writers:
        complain("allowed_senders", 'no sender is allowed: give addresses, or domains like "@example.org"')
    if table.smtp is not None and (table.smtp.user is None) != (table.smtp.password is None):
        complain("smtp.user", "user and password belong together: give both or neither")
    return Imap(name, table, rules)


class Imap:
    def __init__(self, name: str, table: ImapTable, rules: MailRules) -> None:
        self._name = name
        self._table = table
        self._rules = rules

    def poll(self, cursor: str | None) -> Polled:
        tidies = self._table.mark_seen or self._table.move_to is not None
        with Mailbox(self._table, writes=tidies) as box:
            if cursor is None:
                return self._begin(box)
            at = parsed(cursor)
            if at.validity != box.validity:
                return self._begin_again(box, at)
            if tidies:
                box.tidy(at.next_uid, mark_seen=self._table.mark_seen, move_to=self._table.move_to)
            return self._continue(box, at.next_uid, at)

    def deliver(self, address: Mapping[str, Any], reply: Outgoing) -> None:
        if self._table.smtp is None:
            raise Undeliverable(f"no mail can be sent: give [channels.{self._name}.config.smtp] with a host")
        smtp.send(self._table.smtp, self._table.user, address, reply)

    def close(self) -> None:
        """Each poll has a connection of its own, and a timeout ends it."""

    def _begin(self, box: Mailbox) -> Polled:
        if self._table.read_old:
            return self._continue(box, 1, None)
        return Polled(messages=(), cursor=_behind(box, box.next_uid))

    def _begin_again(self, box: Mailbox, at: Cursor) -> Polled:
        """All at once: halfway through, the next poll could not tell which mail is older."""
        uids = box.uids(1, _day_before(at.day))
        messages = self._messages(box, uids, halfway=False)
        return Polled(messages=messages, cursor=_behind(box, box.next_uid), passed_over=len(uids) - len(messages))

    def _continue(self, box: Mailbox, first: int, at: Cursor | None) -> Polled:
        uids = box.uids(first)[:AT_ONCE]
        messages = self._messages(box, uids, halfway=True)
        here = str(at) if at is not None else _behind(box, first)
        cursor = _behind(box, uids[-1] + 1) if uids else here
        return Polled(messages=messages, cursor=cursor, passed_over=len(uids) - len(messages))

    def _messages(self, box: Mailbox, uids: Sequence[int], *, halfway: bool) -> tuple[Incoming | Unreadable, ...]:
        sizes = box.sizes(uids)
        read = (self._read(box, uid, sizes.get(uid), _behind(box, uid + 1) if halfway else None) for uid in uids)
        return tuple(message for message in read if message is not None)

    def _read(self, box: Mailbox, uid: int, size: int | None, behind: str | None) -> Incoming | Unreadable | None:
        largest = self._table.max_bytes
        if size is None:
            return self._too_large(box, uid, "the server does not say how large the mail is", behind)
        if size > largest:
            return self._too_large(box, uid, f"the mail has {size} bytes", behind)
        raw = box.whole(uid, largest + 1)
        if raw is not None and len(raw) > largest:
            return self._too_large(box, uid, f"the mail has more bytes than the {size} that the server says", behind)
        return None if raw is None else mail.read(raw, self._rules, _key(box, uid), behind)

    def _too_large(self, box: Mailbox, uid: int, why: str, behind: str | None) -> Unreadable | None:
        headers = mail.headers_of(box.headers(uid))
        if not self._rules.lets_in(headers):
            return None
        key, why = mail.key_of(headers, _key(box, uid)), f"{why}, the limit is {self._table.max_bytes} (max_bytes)"
        return Unreadable(key=key, why=why, excerpt=mail.subject_of(headers), cursor=behind)


def _key(box: Mailbox, uid: int) -> str:
    return f"{box.validity}.{uid}"


def _behind(box: Mailbox, next_uid: int) -> str:
    return str(Cursor(validity=box.validity, next_uid=next_uid, day=_today()))


def _today() -> str:
    return datetime.now(UTC).strftime(DAY)


def _day_before(day: str) -> datetime:
    """Clocks and zones differ: one day more costs a read of mail that is known already."""
    return datetime.strptime(day, DAY).replace(tzinfo=UTC) - timedelta(days=1)
