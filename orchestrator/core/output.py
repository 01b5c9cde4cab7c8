"""Structured output: what may come of a reply that was to fit a schema, and what the model is told of the demand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chordage.orchestrator.core.reasons import Ending, failed

INVALID = "output_invalid"  # the model answered with something else, twice
UNCHECKED = "output_check"  # the room's own code could not say whether it fits

COMPLAINTS = 20  # a list of a thousand wrong items is understood from twenty of them
COMPLAINT_LENGTH = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class Accepted:
    value: Any

    def told(self) -> dict[str, Any]:
        """As it stands with the end of the run. Only where there is one: null is a value too."""
        return {"output": self.value}


@dataclass(frozen=True, kw_only=True, slots=True)
class Refused:
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """There will be no output."""

    ending: Ending


Verdict = Accepted | Refused | Ended


def demand(schema: dict[str, Any]) -> str:
    """For the system text."""
    return (
        "Your final answer must be exactly one JSON value that fits the JSON Schema below, and nothing else: no words "
        "around it, no code fence. You may use tools first, as far as you have any; this is about the answer you "
        f"finish with.\n\n{json.dumps(schema, ensure_ascii=False)}"
    )


def listed(complaints: Sequence[str]) -> str:
    """Each with the place it is about, as far as they help."""
    lines = [_shortened(complaint) for complaint in complaints[:COMPLAINTS]]
    if len(complaints) > COMPLAINTS:
        lines.append("and more")
    return "\n".join(f"- {line}" for line in lines) if len(lines) > 1 else "".join(lines)


def _shortened(complaint: str) -> str:
    """The ends say what matters: where it is, and what is wrong. In between stands what was sent."""
    half = COMPLAINT_LENGTH // 2
    return complaint if len(complaint) <= COMPLAINT_LENGTH else f"{complaint[:half]} ... {complaint[-half:]}"


def given_up(why: str) -> Ended:
    in_one_line = "; ".join(line.removeprefix("- ") for line in why.splitlines())
    return Ended(ending=failed(INVALID, f"the answer is not the demanded output, also after one repair: {in_one_line}"))


def place(parts: Sequence[str | int]) -> str:
    """A JSON path: $.items[0].price"""
    return "$" + "".join(_part(part) for part in parts)


def _part(part: str | int) -> str:
    if isinstance(part, int):
        return f"[{part}]"
    return f".{part}" if part.isidentifier() else f"[{json.dumps(part, ensure_ascii=False)}]"
