"""Words from the database as the closed sets they belong to. A word of a newer version is shown as it is."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.message import Origin, Sender
from chordage.orchestrator.core.reasons import Reason
from chordage.orchestrator.core.status import Disposition, TurnStatus

_SETS: Mapping[str, type[StrEnum]] = {
    "group": Group, "origin": Origin, "sender": Sender, "reason": Reason, "disposition": Disposition,
    "status": TurnStatus,
}  # fmt: skip


def typed(row: Mapping[Any, Any]) -> dict[str, Any]:
    """A row of turns."""
    values = dict(row)
    return values | {name: word(closed, values[name]) for name, closed in _SETS.items() if name in values}


def word(closed: type[StrEnum], value: Any) -> Any:
    return closed(value) if value in set(closed) else value
