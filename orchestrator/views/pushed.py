"""What the consumer of a stepped run has put into its history, as steps of the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from chordage.orchestrator.core.records import Checkpoint, Entry
from chordage.orchestrator.views.steps import PushedStep, SaidStep


def steps(entries: Sequence[Entry]) -> Iterator[PushedStep | SaidStep]:
    for entry in entries:
        match entry.kind:
            case Checkpoint.CLIENT_MESSAGES:
                given, replaces = tuple(entry.body["messages"]), bool(entry.body["replaces"])
                yield PushedStep(number=entry.step, messages=given, replaces=replaces, at=entry.at)
            case Checkpoint.CLIENT_STEERS:
                yield SaidStep(number=entry.step, texts=tuple(entry.body["texts"]), at=entry.at)
