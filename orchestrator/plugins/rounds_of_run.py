"""The tool rounds of a run, read from what was said in it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chordage.orchestrator.core.model import AssistantSays, Said, ToolAsk, ToolSays
from chordage.orchestrator.core.transcript import AWAITING, NOT_STARTED


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """One message of the model with what came back; without asks it was text alone."""

    asks: tuple[ToolAsk, ...]
    answers: tuple[ToolSays, ...]

    @property
    def failed(self) -> bool:
        """All of its tools did. A call that awaits a decision, or stands behind one that does, has not failed."""
        return bool(self.answers) and all(_is_failure(says) for says in self.answers)


def _is_failure(says: ToolSays) -> bool:
    return says.is_error and says.content not in {AWAITING, NOT_STARTED}


def rounds_of(said: Sequence[Said]) -> list[Round]:
    return list(_rounds(said))


def same_asks(asks: Sequence[ToolAsk]) -> str:
    """Equal for rounds that ask the same tools for the same, in whatever order."""
    return json.dumps(sorted(json.dumps([ask.name, ask.arguments, _raw(ask)], sort_keys=True) for ask in asks))


def _raw(ask: ToolAsk) -> str:
    """Only where it tells more than the arguments that were read from it."""
    return ask.raw if ask.arguments is None else ""


def _rounds(said: Sequence[Said]) -> Iterator[Round]:
    for place, one in enumerate(said):
        if isinstance(one, AssistantSays):
            yield Round(asks=one.asks, answers=tuple(_answers(said[place + 1 :])))


def _answers(behind: Sequence[Said]) -> Iterator[ToolSays]:
    for one in behind:
        if not isinstance(one, ToolSays):
            return
        yield one
