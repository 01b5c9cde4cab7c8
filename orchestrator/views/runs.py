"""A run step by step: the replies as the journal has them, the rounds as the rows of their calls tell them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.kinship import Kin
from chordage.orchestrator.core.model import Usage
from chordage.orchestrator.core.reasons import Reason
from chordage.orchestrator.core.records import Checkpoint, Entry, Run
from chordage.orchestrator.core.status import RunStatus
from chordage.orchestrator.store import calls, journal, runs
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.views import family, questions
from chordage.orchestrator.views.calls import by_round
from chordage.orchestrator.views.steps import Step
from chordage.orchestrator.views.timeline import Timeline


@dataclass(frozen=True, kw_only=True, slots=True)
class RunView:
    run_id: str
    thread_id: str
    turn_id: str
    agent: str
    group: Group
    strategy: str
    status: RunStatus
    reason: Reason | None
    code: str | None
    detail: str | None
    rounds: int
    usage: Usage  # that of its sub-agents included
    parent_run: str | None  # that asked this sub-agent, with this call
    parent_call: str | None
    root_run: str | None
    path: str | None  # the agents from the root down to this one
    started_at: datetime
    ended_at: datetime | None
    extra: dict[str, Any]  # what its end says besides: of a run that planned, its records
    steps: tuple[Step, ...]


def run(store: Store, run_id: str) -> RunView:
    return with_checkpoints(store, run_id)[0]


def with_checkpoints(store: Store, run_id: str) -> tuple[RunView, list[Entry]]:
    """The run, and the rows of the journal that its steps are told from."""
    with store.read() as tx:
        found = runs.load(tx, run_id)
        entries = journal.of_run(tx, run_id)
        asked = calls.of_run(tx, run_id)
        questions_asked = questions.of_calls(tx, asked)
        children = family.of_calls(tx, asked, questions_asked)
    if found is None:
        raise NotFound(f"there is no run {run_id!r}; `chordage turns` lists turns with their runs")
    rounds = {step: views for (_, step), views in by_round(asked, questions_asked, children).items()}
    extra = next((entry.body.get("extra") or {} for entry in entries if entry.kind is Checkpoint.RUN_FINISHED), {})
    return _view(found, extra, Timeline(run=found, entries=entries, rounds=rounds).steps()), entries


def _view(found: Run, extra: dict[str, Any], steps: tuple[Step, ...]) -> RunView:
    return RunView(
        run_id=found.id, thread_id=found.thread_id, turn_id=found.turn_id, agent=found.agent, group=found.group,
        strategy=found.strategy, status=found.status, reason=found.reason, code=found.code, detail=found.detail,
        rounds=found.rounds, usage=found.usage, started_at=found.started_at, ended_at=found.ended_at, extra=extra,
        steps=steps, **_kin(found.kin),
    )  # fmt: skip


def _kin(kin: Kin | None) -> dict[str, Any]:
    return {name: getattr(kin, name, None) for name in ("parent_run", "parent_call", "root_run", "path")}
