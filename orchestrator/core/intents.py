"""What must happen next, as values. A stage returns them after its commit; the courier makes Celery messages of them.

An intent may be lost, doubled or late. The database decides what is due, so carrying one out twice changes nothing.
`of`, and the names of tools by call, are for monitors: they are no part of the work and are not compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.records import Call, History, Run, Subject


class Hint(NamedTuple):
    """The turn a wake-up came with, and its thread."""

    turn_id: str
    thread_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Dispatch:
    """Start a queued turn of this group, if its budget allows: this one, unless others have waited for longer."""

    group: Group
    hint: Hint | None = None
    of: Subject | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Advance:
    """Decide what this run does next. `seen` and `past`: as for `CallModel`; at its first step, the run has just
    started here.
    """

    run_id: str
    group: Group
    seen: Run | None = field(default=None, compare=False, repr=False)
    past: History | None = field(default=None, compare=False, repr=False)
    of: Subject | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class CallModel:
    """Make the model call of this step of the run.

    `seen` is the run as it was read last, for a call in the same process. It is not part of the message, and the commit
    checks whatever was derived from it again. With `past`, the history of its thread, this process has just brought the
    run to this step: no message for it was sent.
    """

    run_id: str
    step: int
    group: Group
    seen: Run | None = field(default=None, compare=False, repr=False)
    past: History | None = field(default=None, compare=False, repr=False)
    of: Subject | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class CallTools:
    """Fan a round out, and commit it when its calls are settled. The calls of a batch run one after the other.

    `claims`: those that are claimed before they start, each with its agent: it saves their workers a look.
    """

    run_id: str
    step: int
    batches: tuple[tuple[str, ...], ...]
    group: Group
    of: Subject | None = field(default=None, compare=False, repr=False)
    tools: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    claims: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class CallTool:
    """Carry out these calls one after the other, outside a chord: the resent wake-up of calls whose own was lost."""

    call_ids: tuple[str, ...]
    run_id: str
    group: Group
    of: Subject | None = field(default=None, compare=False, repr=False)
    tools: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class CallHere:
    """Carry these calls out in this process, one after the other. Where that cannot be, they are sent like `CallTool`.

    `under_way`: the first of them has begun, and this process waits for its end; no part of a message. `at_once`: how
    many calls of the round may run at the same time.
    """

    call_ids: tuple[str, ...]
    run_id: str
    step: int
    group: Group
    of: Subject | None = field(default=None, compare=False, repr=False)
    tools: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    at_once: int | None = field(default=None, compare=False, repr=False)
    under_way: object | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitRound:
    """Continue the run if the calls of this round are settled. The round is recorded with the run's next reply."""

    run_id: str
    step: int
    group: Group
    of: Subject | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class CancelTurn:
    """Cancel a child whose parent no longer waits for it."""

    turn_id: str
    reason: str
    of: Subject | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOn:
    """Move a held run, as its consumer asked before."""

    run_id: str
    group: Group
    of: Subject | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class ContinueBulk:
    """Do the next part of a bulk job."""

    job_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Project:
    """Copy more of the journal to the bus."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Deliver:
    """Send the deliveries that are due."""


Intent = (
    Dispatch | Advance | CallModel | CallTools | CallTool | CallHere | CommitRound | CancelTurn | StepOn | Project
    | Deliver | ContinueBulk
)  # fmt: skip


def advance(run: Run) -> Advance:
    return Advance(run_id=run.id, group=run.group, of=run.subject)


def commit_round(run: Run) -> CommitRound:
    return CommitRound(run_id=run.id, step=run.step, group=run.group, of=run.subject)


def step_on(run: Run) -> StepOn:
    return StepOn(run_id=run.id, group=run.group, of=run.subject)


def lone_call(run: Run, call: Call) -> CallTool:
    return CallTool(call_ids=(call.id,), run_id=run.id, group=run.group, of=run.subject, tools={call.id: call.tool})
