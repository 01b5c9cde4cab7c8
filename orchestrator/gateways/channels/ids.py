"""Who may speak, as bindings write it: a list of texts or numbers, or one text with commas."""

from __future__ import annotations

from typing import Any

from chordage.orchestrator.gateways.room_table import Kind, Table


def _is_id(value: Any) -> bool:
    return (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, str) and bool(value.strip()))


def _are_ids(value: Any) -> bool:
    return _is_id(value) or (isinstance(value, list) and all(map(_is_id, value)))


ID = Kind(words="a number or a text", fits=_is_id)
IDS = Kind(words='a list like ["1", "2"], or a text with commas', fits=_are_ids)


def take_ids(table: Table, key: str) -> frozenset[str]:
    given: Any = table.take(key, IDS, [])
    listed = given if isinstance(given, list) else str(given).split(",")
    return frozenset(str(one).strip() for one in listed if str(one).strip())
