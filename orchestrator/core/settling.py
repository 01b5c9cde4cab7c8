"""The rules of a stepped turn: its state, from its rows, and how a held run continues.

A reply that the consumer did not change is appended, and its own stop reason decides what follows. Otherwise only what
the consumer gave is appended, and the end of that list decides: the calls of an assistant message there are carried
out; else the model is asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from chordage.orchestrator.core import client_messages
from chordage.orchestrator.core.errors import StepRefused
from chordage.orchestrator.core.model import Reply, StopReason, ToolAsk
from chordage.orchestrator.core.moves import Finish, Infer, Move, Plan, RunPlan, RunTools
from chordage.orchestrator.core.reasons import TIMEOUT, Ending, Reason, failed, stopped
from chordage.orchestrator.core.records import Phase, Run, Turn
from chordage.orchestrator.core.status import RunStatus, TurnStatus
from chordage.orchestrator.core.stepping import ALLOWED, CapPolicy, Standing, Stepped, Verb

MAX_ITERATIONS = "max_iterations"
NOT_RUN_CODE = "not_run"
NOT_RUN_CAP = "not_run_cap"


def standing_of(turn: Turn, run: Run | None, row: Stepped) -> Standing:
    if turn.status is TurnStatus.DONE or (run is not None and run.status is RunStatus.DONE):
        return Standing.DONE
    if run is None:
        return Standing.QUEUED
    if run.status is RunStatus.WAITING:
        return _held(run, row) if run.reason is Reason.HELD else Standing.WAITING
    if run.phase is Phase.INFERENCE:
        # A run that has just been opened is held for the first time before it makes a request.
        has_begun = row.going or row.sent_hash is not None or row.error is not None
        return Standing.REQUESTING if has_begun else Standing.QUEUED
    is_tooling = run.phase is not Phase.HELD and (run.in_flight or not row.going)
    return Standing.TOOLING if is_tooling else Standing.REQUESTING


def _held(run: Run, row: Stepped) -> Standing:
    if row.parked:
        return Standing.PARKED
    if row.error is not None:
        return Standing.FAILED
    return Standing.HELD if row.reply_step is not None or holds_round(run, row) else Standing.READY


def holds_round(run: Run, row: Stepped) -> bool:
    """Whether the consumer has the results of a planned round: the only calls that a run is held behind without a
    reply.
    """
    is_held = run.status is RunStatus.WAITING and run.reason is Reason.HELD and row.error is None
    return is_held and row.reply_step is None and run.phase in {Phase.TOOL_ROUND, Phase.REPLAY}


def check_allowed(verb: Verb, standing: Standing, rev: int) -> None:
    """Raises StepRefused."""
    if standing in ALLOWED[verb]:
        return
    states = ", ".join(state.value for state in Standing if state in ALLOWED[verb])
    problem = f"{verb.value} can be asked for while a turn is {states}; this one is {standing.value} (rev {rev})"
    raise StepRefused(problem, code="not_allowed", rev=rev, standing=standing.value)


class Fate(StrEnum):
    """What becomes of the reply."""

    NONE = "none"  # none was held
    APPENDED = "appended"
    LINKED = "linked"  # the consumer put it into the history
    DISCARDED = "discarded"


class Route(StrEnum):
    TOOLS = "tools"
    ASK = "ask"
    END = "end"


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """The input of the rule."""

    reply: Reply | None
    mutated: bool
    given: Sequence[Mapping[str, Any]]
    steered: bool
    kept: Ending | None  # a plugin's: how the run shall end
    iteration: int
    max_iterations: int | None
    cap_policy: CapPolicy

    @property
    def is_capped(self) -> bool:
        return self.max_iterations is not None and self.iteration >= self.max_iterations


@dataclass(frozen=True, kw_only=True, slots=True)
class Settled:
    """The result of the rule."""

    fate: Fate
    route: Route
    asks: tuple[ToolAsk, ...] = ()  # all calls of the last message, in order
    open_ids: frozenset[str] = frozenset()  # those of them that have no result
    of_reply: bool = False  # that message is the reply
    closes: str | None = None  # the open ones get this code and are not carried out
    ending: Ending | None = None  # of Route.END; of Route.TOOLS, how the run ends behind them


def settled(held: Held, move_for: Callable[[Reply], Move]) -> Settled:
    """`move_for`: what the strategy does after such a reply."""
    rule = _routed(held, _last_message(held), move_for)
    # A steering message is answered by one more request, instead of an end that the model chose.
    by_model = rule.route is Route.END and rule.ending is not None and not _is_limit(rule.ending)
    if by_model and held.steered and held.kept is None and not held.is_capped:
        rule = replace(rule, route=Route.ASK, ending=None)
    return _within_the_cap(held, rule)


def planned(held: Held, move: Move, asks: Sequence[ToolAsk]) -> Settled:
    """The rule for a plan, which is not a message and never becomes history. `move`: what the strategy does with it."""
    rule = Settled(fate=Fate.NONE, route=Route.ASK, asks=tuple(asks), open_ids=_ids(asks))
    match move:
        case RunPlan():  # also where none of its commands may run: the round has their records
            rule = _with_kept_ending(held, replace(rule, route=Route.TOOLS))
        case Finish(ending=ending):
            rule = replace(rule, route=Route.END, ending=held.kept or ending)
        case _:
            rule = _with_kept_ending(held, rule)
    return _within_the_cap(held, rule)


def _last_message(held: Held) -> Settled:
    """The reply or the consumer's last message, with its calls, routed to the model for now."""
    if held.reply is not None and not held.mutated:
        asks = held.reply.asks
        return Settled(fate=Fate.APPENDED, route=Route.ASK, asks=asks, open_ids=_ids(asks), of_reply=True)
    is_linked = any(message.get("linked") for message in held.given)
    fate = Fate.NONE if held.reply is None else Fate.LINKED if is_linked else Fate.DISCARDED
    last = client_messages.tail(held.given)
    if last is None:
        return Settled(fate=fate, route=Route.ASK)
    unanswered = client_messages.open_asks(held.given)
    asks = client_messages.asks_of(last) if unanswered else ()
    return Settled(fate=fate, route=Route.ASK, asks=asks, open_ids=_ids(unanswered), of_reply=bool(last["linked"]))


def _ids(asks: Sequence[ToolAsk]) -> frozenset[str]:
    return frozenset(ask.id for ask in asks)


def _routed(held: Held, rule: Settled, move_for: Callable[[Reply], Move]) -> Settled:
    if rule.fate is Fate.APPENDED or (rule.of_reply and rule.open_ids):
        reply = held.reply
    elif rule.open_ids:  # the consumer's own message, as if the model had sent it
        reply = Reply(text="", asks=rule.asks, stop=StopReason.TOOL_USE, model="")
    else:
        reply = None
    if reply is None:
        return _with_kept_ending(held, rule)
    match move_for(reply):
        case RunTools() if rule.open_ids:
            return _with_kept_ending(held, replace(rule, route=Route.TOOLS))
        case Finish(ending=ending) if rule.fate is Fate.APPENDED or _is_limit(ending):
            return replace(rule, route=Route.END, ending=held.kept or ending, closes=_closing_code(rule))
        case Finish():  # the model stopped, but the consumer continues: none of its calls is carried out
            return _with_kept_ending(held, replace(rule, closes=_closing_code(rule)))
        case Infer() | RunTools():
            return _with_kept_ending(held, rule)
        case Plan() | RunPlan() as other:  # of a strategy from outside
            problem = f"the strategy answers a reply with {type(other).__name__}: planning is for where no reply is"
            return replace(rule, route=Route.END, ending=failed("strategy", problem), closes=_closing_code(rule))


def _is_limit(ending: Ending) -> bool:
    return (ending.reason, ending.code) in {(Reason.STOPPED, "max_rounds"), (Reason.ERROR, TIMEOUT)}


def _closing_code(rule: Settled) -> str | None:
    return NOT_RUN_CODE if rule.open_ids else None


def _with_kept_ending(held: Held, rule: Settled) -> Settled:
    """Where a plugin stopped the run, its tools finish first; any other end comes at once."""
    if held.kept is None:
        return rule
    if rule.route is Route.TOOLS and held.kept.reason is Reason.STOPPED:
        return replace(rule, ending=held.kept)
    return replace(rule, route=Route.END, ending=held.kept, closes=_closing_code(rule))


def _within_the_cap(held: Held, rule: Settled) -> Settled:
    if not held.is_capped or rule.route is Route.END:
        return rule
    ending = stopped(MAX_ITERATIONS, f"the limit of {held.max_iterations} requests was reached")
    if rule.route is Route.TOOLS and held.cap_policy is CapPolicy.RUN_TOOLS:
        return replace(rule, ending=rule.ending or ending)
    closes = NOT_RUN_CAP if rule.route is Route.TOOLS else rule.closes
    return replace(rule, route=Route.END, ending=ending, closes=closes)
