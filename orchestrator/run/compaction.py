"""A step in which no reply is made but a summary: it takes the place of the older part of the conversation.

The rule is in core/compaction.py. The model call and what came of it are a step of the run like any other: one guarded
commit, and whoever dies before it leaves the history as it was. Where no summary comes of it the history stays whole
and the run goes on; the end of a run is never decided here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from chordage.orchestrator.core import compaction, text
from chordage.orchestrator.core.agent import AgentSpec
from chordage.orchestrator.core.compaction import Cause, Cut
from chordage.orchestrator.core.errors import ModelFailed
from chordage.orchestrator.core.intents import Advance, Intent
from chordage.orchestrator.core.model import Reply
from chordage.orchestrator.core.records import Checkpoint, Entry, Phase, Run
from chordage.orchestrator.core.stepping import RequestTerms
from chordage.orchestrator.core.transcript import standing
from chordage.orchestrator.gateways.ports import Abort
from chordage.orchestrator.run import plugins, waiting
from chordage.orchestrator.run.plugins import PluginSession
from chordage.orchestrator.run.waiting import NOT_OURS, Transition
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import journal, runs
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.journal import History
from chordage.orchestrator.store.runs import RunClaim

log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True, slots=True)
class Summing:
    """What is to be summed up, and why."""

    at: RunClaim
    agent: AgentSpec
    hearing: PluginSession  # plugins have heard of the run's start, and nothing else of this step
    past: History
    cut: Cut
    cause: Cause


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    reply: Reply
    why_not: str | None  # it is no summary


def due(
    at: RunClaim, heard: PluginSession, past: History, *, plans: bool, terms: RequestTerms | None
) -> Summing | None:
    """`plans`: what was said to the run, and its plans, are read from the history in full. `terms`: of a stepped run;
    what its model sees is for its consumer to say, so no threshold counts and nobody else's request.
    """
    spec = heard.agent.compaction
    asked = past.asked if terms is None else terms.compacts
    limits = spec if terms is None else replace(spec, threshold=None)
    cause = compaction.cause(limits, past.entries, at.run.id, asked)
    if cause is None:
        return None
    cut = compaction.cut(past.entries, past.calls, at.run.id, keep=spec.keep, whole_run=plans)
    if cut is None:
        return None
    return Summing(at=at, agent=heard.agent, hearing=heard, past=past, cut=cut, cause=cause)


def has_shortened(run: Run, entries: Sequence[Entry]) -> bool:
    """Whether a summary stands for something of this run."""
    summary, _ = standing(entries)
    return summary is not None and summary.run_id == run.id


def carry_out(rt: Runtime, work: Summing, hand: Abort) -> list[Intent]:
    rt.locks.extend(work.at.run.thread_id, work.at.run.owner)
    outcome = _asked(rt, work, hand)
    crossing = rt.store.insist(lambda tx: _record(tx, rt, work, outcome))
    _tell(rt, work, outcome, ours=crossing.ours)
    return crossing.intents


def _asked(rt: Runtime, work: Summing, hand: Abort) -> Outcome:
    spec = work.agent.compaction
    writer = replace(work.agent, model=spec.model or work.agent.model)
    try:
        prompt = compaction.prompt(spec.instructions, work.cut, work.past.calls)
        reply = text.clean_reply(rt.models.complete(writer, prompt, abort=hand))
    except ModelFailed as error:
        return Outcome(reply=compaction.no_reply(writer.model, error), why_not=text.clean_text(str(error)))
    return Outcome(reply=reply, why_not=compaction.fault_of(reply))


def _record(tx: Tx, rt: Runtime, work: Summing, outcome: Outcome) -> Transition:
    at, run = work.at, work.at.run
    to, until = (at.step + 1, Phase.INFERENCE), rt.leases.until(rt.now())
    if not runs.open_step(tx, at, to=to, rounds=0, usage=outcome.reply.usage, lease_until=until):
        return NOT_OURS
    journal.append(tx, waiting.rows_before(tx, rt, run, work.past.calls))
    if outcome.why_not is None:
        body = compaction.body(work.cut, outcome.reply, work.cause, work.past.asked)
        journal.append_summary(tx, _row(rt, at, Checkpoint.COMPACTED, body))
    else:
        body = compaction.failed_body(outcome.why_not, outcome.reply, work.cause, work.past.asked)
        journal.append(tx, [_row(rt, at, Checkpoint.COMPACTION_FAILED, body)])
    plugins.note_beside(tx, work.hearing)
    return Transition(intents=[Advance(run_id=run.id, group=run.group, of=run.subject)])


def _row(rt: Runtime, at: RunClaim, kind: Checkpoint, body: dict[str, Any]) -> journal.Row:
    return journal.entry(at.run.thread_id, at.run.id, at.step, kind, {**body, "worker": rt.worker}, rt.now())


def _tell(rt: Runtime, work: Summing, outcome: Outcome, *, ours: bool) -> None:
    run, step = work.at.run, work.at.step
    if not ours:
        log.warning("late summary refused", run=run.id, step=step, epoch=run.epoch)
    elif outcome.why_not is not None:
        log.warning("no summary; the history stays whole", run=run.id, step=step, why=outcome.why_not)
        rt.events.emit(run.id, "compaction.failed", step=step, why=outcome.why_not)
    else:
        rt.events.emit(run.id, "history.compacted", step=step, entries=work.cut.replaced)
