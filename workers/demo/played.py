"""A turn that was played, as the rows have it: each model call and tool call with its process and its time."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import datetime, timedelta

from chordage.orchestrator.views import TurnView
from chordage.orchestrator.views.calls import CallView
from chordage.orchestrator.views.runs import InferenceStep, RunView, ToolRound
from chordage.workers.fleet.fleet import Fleet
from chordage.workers.fleet.roles import TURNS


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One model call or tool call: what, where, from when to when."""

    what: str
    member: str  # the fleet's name of the worker
    worker: str  # host:pid
    status: str
    started: datetime
    ended: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Played:
    turn: TurnView
    run: RunView
    model_calls: tuple[Part, ...]
    calls: tuple[Part, ...]


class Homes:
    """Which member of the fleet a process belongs to: the one that leads its group. Asked while the process lives."""

    def __init__(self, fleet: Fleet) -> None:
        self._members = {member.pid: member.name for member in fleet.members}
        self._known: dict[str, str] = {}

    def of(self, worker: str | None) -> str:
        if worker is None:
            return "?"
        if worker not in self._known:
            self._known[worker] = self._look(int(worker.rpartition(":")[2]))
        return self._known[worker]

    @property
    def decider(self) -> tuple[str, str]:
        """Name and host:pid of the member that makes the model calls: in a fleet of one machine there is one."""
        name, pid = next((name, pid) for pid, name in self._members.items() if name == TURNS)
        return name, f"{socket.gethostname()}:{pid}"

    def _look(self, pid: int) -> str:
        try:
            return self._members.get(os.getpgid(pid), "?")
        except ProcessLookupError:  # a child that has been replaced since
            return "?"


def told(turn: TurnView, run: RunView, homes: Homes) -> Played:
    models: list[Part] = []
    calls: list[Part] = []
    for step in run.steps:
        match step:
            case InferenceStep():
                models += _model_call(step, homes)
            case ToolRound():
                calls += [part for call in step.calls if (part := _call(call, homes))]
    return Played(turn=turn, run=run, model_calls=tuple(models), calls=tuple(calls))


def _model_call(step: InferenceStep, homes: Homes) -> list[Part]:
    if step.at is None or step.seconds is None:
        return []
    member, worker = homes.decider
    began = step.at - timedelta(seconds=step.seconds)
    return [Part(what="model", member=member, worker=worker, status=step.status.value, started=began, ended=step.at)]


def _call(call: CallView, homes: Homes) -> Part | None:
    if call.started_at is None or call.ended_at is None or call.worker is None:
        return None
    return Part(
        what=call.tool, member=homes.of(call.worker), worker=call.worker, status=call.status.value,
        started=call.started_at, ended=call.ended_at,
    )  # fmt: skip
