"""A fork that is carried on: what is edited in it, and which of its calls are answered from the record.

A forked run repeats the replies of its source up to a step and asks the model from there on. Nothing of the source
happens again: a call that the source has made is answered with the result it had there. Only what is harmless, or
allowed by name, runs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from chordage.orchestrator.core.agent import AgentSpec, Effect
from chordage.orchestrator.core.approvals import digest
from chordage.orchestrator.core.errors import InvalidMessage
from chordage.orchestrator.core.model import Reply, ToolAsk, Usage
from chordage.orchestrator.core.records import NewCall
from chordage.orchestrator.core.status import CallStatus
from chordage.orchestrator.core.text import clean_json
from chordage.orchestrator.core.transcript import reply_from

ALL = "*"  # in place of the names of tools
NOT_RUN_IN_FORK = "not_run_in_fork"
HELD_BACK = (
    "This call was not run: the work is a fork, and the run that it was forked from made no such call. Nothing has "
    "happened. Continue without its result."
)
EFFECTS_MAX = 200  # names of tools


@dataclass(frozen=True, kw_only=True, slots=True)
class ForkTerms:
    """From where a run is forked, and what is different in it. The text of its message is that of its turn."""

    run_id: str  # the source
    step: int  # what it has of the source: up to the end of this step
    kept: int  # how many replies that is
    arguments: Mapping[str, dict[str, Any]] = field(default_factory=dict)  # of calls of the last of them, by ask id
    model: str | None = None
    instructions: str | None = None  # in place of the agent's
    effects: frozenset[str] = frozenset()  # tools that run, or ALL

    def allows(self, tool: str) -> bool:
        return ALL in self.effects or tool in self.effects

    def tune(self, agent: AgentSpec) -> AgentSpec:
        """The agent as it works behind the kept replies."""
        model = agent.model if self.model is None else self.model
        instructions = agent.instructions if self.instructions is None else self.instructions
        return replace(agent, model=model, instructions=instructions)


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedCall:
    """A call of the source that has a result, and what the model had asked for."""

    id: str
    tool: str
    digest: str  # of the arguments as the model gave them: a person or a plugin may have changed them since


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedResult:
    effect: Effect
    status: CallStatus
    code: str | None
    content: str | None
    full: str | None


def check(terms: ForkTerms, agent: AgentSpec, last: Reply | None) -> None:
    """`last`: the last of the kept replies. Raises InvalidMessage."""
    if terms.model is not None and terms.model not in agent.named_models:
        known = ", ".join(agent.named_models)
        problem = f"agent {agent.name!r} names no model {terms.model!r}; choose from {known}"
        raise InvalidMessage(f"{problem}, or add it to selectable_models", field="model")
    asks = {ask.id for ask in last.asks} if last else set()
    for ask_id, arguments in terms.arguments.items():
        if ask_id not in asks:
            known = ", ".join(sorted(asks)) or "none"
            problem = f"the reply at step {terms.step} asked for no call {ask_id!r}; its calls: {known}"
            raise InvalidMessage(problem, field="arguments")
        if clean_json(arguments) != arguments:
            problem = f"arguments of call {ask_id!r} hold a NUL character, or half of a surrogate pair: remove it"
            raise InvalidMessage(problem, field="arguments")


def kept_reply(body: Mapping[str, Any], terms: ForkTerms, *, is_last: bool) -> Reply:
    """A reply of the source, as the fork repeats it: no model is asked for it, so it costs nothing."""
    reply = replace(reply_from(dict(body)), usage=Usage(), attempts=())
    return replace(reply, asks=tuple(_edited(ask, terms) for ask in reply.asks)) if is_last else reply


def _edited(ask: ToolAsk, terms: ForkTerms) -> ToolAsk:
    arguments = terms.arguments.get(ask.id)
    return ask if arguments is None else replace(ask, arguments=arguments, raw="")


def sources_of(
    calls: Sequence[NewCall], record: Sequence[RecordedCall], used: Collection[str], terms: ForkTerms, *, kept: int
) -> dict[str, str]:
    """The recorded call that answers each of these calls, by its id. Calls of one tool with equal arguments are
    answered in the order in which the source made them, each once. `kept`: which of the replies asked for them, from
    1; behind the kept ones a tool that may run does.
    """
    free: dict[tuple[str, str], list[str]] = {}
    for recorded in record:
        if recorded.id not in used:
            free.setdefault((recorded.tool, recorded.digest), []).append(recorded.id)
    answered: dict[str, str] = {}
    for call in calls:
        is_repeated = kept < terms.kept or (kept == terms.kept and call.ask_id not in terms.arguments)
        if terms.allows(call.tool) and not is_repeated:
            continue
        if matching := free.get((call.tool, digest(call.arguments))):
            answered[call.id] = matching.pop(0)
    return answered


def answered(call: NewCall, source: str, result: RecordedResult) -> NewCall:
    """A result that is cut names the call by which the rest of it is read: here that is this one."""
    content = None if result.content is None else result.content.replace(source, call.id)
    return replace(
        call, effect=result.effect, status=result.status, code=result.code, content=content, full=result.full,
        answered_from=source,
    )  # fmt: skip


def held_back(call: NewCall, terms: ForkTerms, *, is_agent: bool) -> NewCall:
    """A call that is not in the record. A sub-agent may do anything, so it counts as unsafe."""
    if terms.allows(call.tool) or (call.effect is Effect.PURE and not is_agent):
        return call
    return replace(call, status=CallStatus.CANCELLED, code=NOT_RUN_IN_FORK, content=HELD_BACK)
