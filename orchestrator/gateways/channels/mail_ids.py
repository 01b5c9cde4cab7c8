"""Mail addresses as bindings list them: whole ones, or a domain behind an @."""

from __future__ import annotations

from chordage.orchestrator.gateways.channels.ids import take_ids
from chordage.orchestrator.gateways.room_table import Table


def take_addresses(table: Table, key: str) -> frozenset[str]:
    found = frozenset(one.lower() for one in take_ids(table, key))
    for one in sorted(found):
        if "@" not in one:
            table.complain(
                key, f'an address is written like "ada@example.org", a domain like "@example.org"; got {one!r}'
            )
    return found


def is_among(address: str, listed: frozenset[str]) -> bool:
    return address in listed or f"@{address.rpartition('@')[2]}" in listed
