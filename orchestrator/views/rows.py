"""Words from the database as the closed sets they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.message import Origin, Sender
from chordage.orchestrator.core.reasons import Reason
from chordage.orchestrator.core.status import Disposition, TurnStatus

_SETS = {"group": Group, "origin": Origin, "sender": Sender, "reason": Reason, "disposition": Disposition}


def typed(row: Mapping[Any, Any]) -> dict[str, Any]:
    """A row of turns."""
    values = dict(row)
    for name, closed in _SETS.items():
        if values.get(name) is not None:
            values[name] = closed(values[name])
    values["status"] = TurnStatus(values["status"])
    return values
