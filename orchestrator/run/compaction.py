"""A step in which the model writes a summary that replaces the older part of the conversation.

The rule is in core/compaction.py. The model call and its result are a step of the run like any other: one guarded
commit, and a process that dies before it leaves the history as it was. Where no summary comes of it the history stays
whole and the run continues; the end of a run is never decided here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import structlog

from chordage.orchestrator.core import compaction
from chordage.orchestrator.core.agent import AgentSpec
from chordage.orchestrator.core.compaction import Cause, Cut
from chordage.orchestrator.core.errors import ModelFailed
from chordage.orchestrator.core.intents import Intent, advance
from chordage.orchestrator.core.model import Reply
from chordage.orchestrator.core.records import Checkpoint, History, Phase
from chordage.orchestrator.core.stepping import RequestTerms
from chordage.orchestrator.core.text import clean_reply, clean_text
from chordage.orchestrator.gateways.ports import Abort
from chordage.orchestrator.run import checkpoints, plugins, transitions
from chordage.orchestrator.run.plugins import PluginSession
from chordage.orchestrator.run.unit import LiveEvent, Unit, record
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import journal, runs
from chordage.orchestrator.store.runs import RunClaim

log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True, slots=True)
class Compaction:
    """What is to be summarised, and why."""

    claim: RunClaim
    agent: AgentSpec
    session: PluginSession | None  # its plugins know of the run's start, and of nothing else in this step
    past: History
    cut: Cut
    cause: Cause


def due(
    claim: RunClaim,
    agent: AgentSpec,
    session: PluginSession | None,
    past: History,
    *,
    plans: bool,
    terms: RequestTerms | None,
) -> Compaction | None:
    """`plans`: what was said to the run, and its plans, are read from the history in full. `terms`: of a stepped run;
    its consumer decides what its model sees, so that neither a threshold nor the request of another counts.
    """
    spec = agent.compaction
    asked = past.asked if terms is None else terms.compacts
    limits = spec if terms is None else replace(spec, threshold=None)
    cause = compaction.cause(limits, past.entries, claim.run.id, asked)
    if cause is None:
        return None
    cut = compaction.cut(past.entries, past.calls, claim.run.id, keep=spec.keep, whole_run=plans)
    if cut is None:
        return None
    return Compaction(claim=claim, agent=agent, session=session, past=past, cut=cut, cause=cause)


def carry_out(rt: Runtime, work: Compaction, abort: Abort) -> list[Intent]:
    run = work.claim.run
    rt.locks.extend(run.thread_id, run.owner)
    spec = work.agent.compaction
    writer = replace(work.agent, model=spec.model or work.agent.model)
    try:
        prompt = compaction.prompt(spec.instructions, work.cut, work.past.calls)
        reply = clean_reply(rt.models.complete(writer, prompt, abort=abort))
        fault = compaction.fault_of(reply)
    except ModelFailed as error:
        reply, fault = compaction.no_reply(writer.model, error), clean_text(str(error))
    reply = transitions.with_cost(rt, reply)
    intents = record(rt, lambda unit: _record(unit, work, reply, fault))
    if intents is None:
        log.warning("late summary refused", run=run.id, step=work.claim.step, epoch=run.epoch)
    elif fault is not None:
        log.warning("no summary; the history stays whole", run=run.id, step=work.claim.step, why=fault)
    return intents or []


def _record(unit: Unit, work: Compaction, reply: Reply, fault: str | None) -> None:
    claim, run = work.claim, work.claim.run
    to, usage = (claim.step + 1, Phase.INFERENCE), reply.usage
    runs.open_step(unit.tx, claim, to=to, rounds=0, usage=usage, lease_until=unit.lease(), by=unit.rt.worker)
    settled = checkpoints.settled_calls(unit.tx, run, work.past.calls)
    journal.append(unit.tx, checkpoints.of_round(unit, run, settled))
    if fault is None:
        kind, body = Checkpoint.COMPACTED, compaction.body(work.cut, reply, work.cause, work.past.asked)
        event = LiveEvent(run_id=run.id, kind="history.compacted", data={"entries": work.cut.replaced})
    else:
        kind, body = Checkpoint.COMPACTION_FAILED, compaction.failed_body(fault, reply, work.cause, work.past.asked)
        event = LiveEvent(run_id=run.id, kind="compaction.failed", data={"why": fault})
    body |= {"worker": unit.rt.worker}
    if claim.digest:
        body["agent_digest"] = claim.digest
    row = journal.entry(run.thread_id, run.id, claim.step, kind, body, unit.now)
    if fault is None:
        journal.append_summary(unit.tx, row)
    else:
        journal.append(unit.tx, [row])
    if work.session is not None:
        plugins.store_notes_or_log(unit.tx, work.session)
    unit.follow(advance(run))
    unit.announce(replace(event, data={"step": claim.step, **event.data}))
