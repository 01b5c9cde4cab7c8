"""Who may write, as bindings list it: a list of texts or numbers, or one text with commas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from chordage.orchestrator.core.message import Sender
from chordage.orchestrator.gateways.room.tables import Complain


def _is_id(value: Any) -> bool:
    return (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, str) and bool(value.strip()))


def _id(value: Any) -> str:
    if not _is_id(value):
        raise ValueError(f"must be a number or a text, or leave it out; got {value!r}")
    return str(value).strip()


def _ids(value: Any) -> frozenset[str]:
    ids = value if isinstance(value, list) else [value]
    if not all(map(_is_id, ids)):
        raise ValueError(f'must be a list like ["1", "2"], or a text with commas, or leave it out; got {value!r}')
    texts = map(str, ids) if isinstance(value, list) else str(value).split(",")
    return frozenset(text.strip() for text in texts if text.strip())


_ONE = {"type": ["string", "integer"]}
Id = Annotated[str, BeforeValidator(_id), WithJsonSchema(_ONE)]
Ids = Annotated[
    frozenset[str], BeforeValidator(_ids), WithJsonSchema({"anyOf": [_ONE, {"type": "array", "items": _ONE}]})
]


def check_addresses(key: str, addresses: frozenset[str], complain: Complain) -> frozenset[str]:
    """Mail addresses: whole ones, or a domain behind an @. In small letters."""
    for address in sorted(addresses):
        if "@" not in address:
            why = f'an address is written like "ada@example.org", a domain like "@example.org"; got {address!r}'
            complain(key, why)
    return frozenset(address.lower() for address in addresses)


@dataclass(frozen=True, kw_only=True, slots=True)
class ChannelWriters:
    """A writer that is in none of these may not write."""

    owners: frozenset[str] = frozenset()
    peers: frozenset[str] = frozenset()
    guests: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.owners or self.peers or self.guests)

    def sender(self, *names: str) -> Sender | None:
        """What a writer of these names speaks as."""
        for listed, sender in ((self.owners, Sender.OWNER), (self.peers, Sender.PEER), (self.guests, Sender.GUEST)):
            if not listed.isdisjoint(names):
                return sender
        return None
