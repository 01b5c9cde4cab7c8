"""Where a stepped turn stands, from its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from chordage.orchestrator.core import client_messages
from chordage.orchestrator.core.errors import StepRefused
from chordage.orchestrator.core.model import Reply, StopReason, ToolAsk
from chordage.orchestrator.core.moves import Finish, Infer, Move, Plan, RunPlan, RunTools
from chordage.orchestrator.core.reasons import NATURAL_END, TIMEOUT, Ending, Reason, failed, stopped
from chordage.orchestrator.core.records import Phase, Run, Turn
from chordage.orchestrator.core.status import RunStatus, TurnStatus
from chordage.orchestrator.core.stepping import ALLOWED, CapPolicy, Standing, Stepped, Verb


def standing_of(turn: Turn, run: Run | None, row: Stepped) -> Standing:
    if turn.status is TurnStatus.DONE:
        return Standing.DONE
    if run is None:
        return Standing.QUEUED
    match run.status:
        case RunStatus.DONE:
            return Standing.DONE
        case RunStatus.RUNNING if _is_starting(run, row):
            return Standing.QUEUED
        case RunStatus.RUNNING:
            is_out = run.phase is not Phase.INFERENCE and (run.in_flight or not row.going)
            return Standing.TOOLING if is_out and run.phase is not Phase.HELD else Standing.REQUESTING
        case RunStatus.WAITING:
            return _held(run, row) if run.reason is Reason.HELD else Standing.WAITING


def _is_starting(run: Run, row: Stepped) -> bool:
    """Opened a moment ago, and on its way to be held for the first time."""
    return run.phase is Phase.INFERENCE and not row.going and row.sent_hash is None and row.error is None


def holds_round(run: Run, row: Stepped) -> bool:
    """What came of a plan lies with the consumer. Nowhere else a run is held behind calls that are no reply's."""
    is_held = run.status is RunStatus.WAITING and run.reason is Reason.HELD and row.error is None
    return is_held and row.reply_step is None and run.phase in {Phase.TOOL_ROUND, Phase.REPLAY}


def _held(run: Run, row: Stepped) -> Standing:
    if row.parked:
        return Standing.PARKED
    if row.error is not None:
        return Standing.FAILED
    return Standing.HELD if row.reply_step is not None or holds_round(run, row) else Standing.READY


def check_allowed(verb: Verb, standing: Standing, rev: int) -> None:
    if standing in ALLOWED[verb]:
        return
    where = ", ".join(one.value for one in Standing if one in ALLOWED[verb])
    told = f"{verb.value} can be asked for while a turn is {where}; this one is {standing.value} (rev {rev})"
    raise StepRefused(told, code="not_allowed", rev=rev, standing=standing.value)


# The settle rule: what becomes of a reply that was held, and where the run goes from there.
#
# Not touched, the reply is appended and its own stop reason says what follows. Touched, nothing is appended but what
# the consumer gave, and what follows is said by the end of the consumer's list: the calls of an assistant message
# there are carried out; else the model is asked.

MAX_ITERATIONS = "max_iterations"
NOT_RUN_CODE = "not_run"
NOT_RUN_CAP = "not_run_cap"


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
    """What the rule looks at."""

    reply: Reply | None
    mutated: bool
    given: Sequence[Mapping[str, Any]]
    steered: bool
    kept: Ending | None  # a plugin has said that the run shall end so
    iteration: int
    max_iterations: int | None
    cap_policy: CapPolicy

    @property
    def is_capped(self) -> bool:
        return self.max_iterations is not None and self.iteration >= self.max_iterations


@dataclass(frozen=True, kw_only=True, slots=True)
class Settled:
    fate: Fate
    route: Route
    asks: tuple[ToolAsk, ...] = ()  # of the message whose calls are looked at, each in its place
    open_ids: frozenset[str] = frozenset()  # those of them that nobody has answered
    of_reply: bool = False  # that message is the reply
    closes: str | None = None  # the open ones are closed with this code, and not carried out
    ending: Ending | None = None  # of Route.END; of Route.TOOLS, with what the run ends behind them


def settled(held: Held, move_for: Callable[[Reply], Move]) -> Settled:
    """`move_for`: what the strategy does after such a reply."""
    found = _subject(held)
    return _within_the_cap(held, _steered(held, _routed(held, found, move_for)))


def planned(held: Held, move: Move, asks: Sequence[ToolAsk]) -> Settled:
    """Of a plan: it is no message, so nothing becomes history. `move`: what the strategy does with it."""
    found = Settled(fate=Fate.NONE, route=Route.ASK, asks=tuple(asks), open_ids=_ids(asks))
    match move:
        case RunPlan():  # also where none of its commands may run: the round has their records
            found = _kept(held, replace(found, route=Route.TOOLS))
        case Finish(ending=how):
            found = replace(found, route=Route.END, ending=held.kept or how)
        case _:
            found = _kept(held, found)
    return _within_the_cap(held, found)


def _subject(held: Held) -> Settled:
    fate = _fate(held)
    if fate is Fate.APPENDED:
        assert held.reply is not None
        asks = held.reply.asks
        return Settled(fate=fate, route=Route.ASK, asks=asks, open_ids=_ids(asks), of_reply=True)
    last = client_messages.tail(held.given)
    if last is None:
        return Settled(fate=fate, route=Route.ASK)
    left = client_messages.open_asks(held.given)
    asks = client_messages.asks_of(last) if left else ()
    return Settled(fate=fate, route=Route.ASK, asks=asks, open_ids=_ids(left), of_reply=bool(last["linked"]))


def _ids(asks: Sequence[ToolAsk]) -> frozenset[str]:
    return frozenset(ask.id for ask in asks)


def _fate(held: Held) -> Fate:
    if held.reply is None:
        return Fate.NONE
    if not held.mutated:
        return Fate.APPENDED
    return Fate.LINKED if any(one.get("linked") for one in held.given) else Fate.DISCARDED


def _routed(held: Held, found: Settled, move_for: Callable[[Reply], Move]) -> Settled:
    subject = _as_reply(held, found)
    if subject is None:
        return _kept(held, found)
    match move_for(subject):
        case RunTools() if found.open_ids:
            return _kept(held, replace(found, route=Route.TOOLS))
        case Finish(ending=how) if found.fate is Fate.APPENDED or _is_limit(how):
            return replace(found, route=Route.END, ending=held.kept or how, closes=_closing(found))
        case Finish():  # its stop reason says stop, and the consumer wants to go on: nothing of it is carried out
            return _kept(held, replace(found, closes=_closing(found)))
        case Infer() | RunTools():
            return _kept(held, found)
        case Plan() | RunPlan() as other:  # of a strategy of one's own
            told = f"the strategy answers a reply with {type(other).__name__}: planning is for where no reply is"
            return replace(found, route=Route.END, ending=failed("strategy", told), closes=_closing(found))


def _as_reply(held: Held, found: Settled) -> Reply | None:
    """What the strategy is asked about: the reply itself, or the consumer's own message as if it were one."""
    if found.fate is Fate.APPENDED or (found.of_reply and found.open_ids):
        return held.reply
    if not found.open_ids:
        return None
    return Reply(text="", asks=found.asks, stop=StopReason.TOOL_USE, model="")


def _is_limit(how: Ending) -> bool:
    return (how.reason, how.code) in {(Reason.STOPPED, "max_rounds"), (Reason.ERROR, TIMEOUT)}


def _closing(found: Settled) -> str | None:
    return NOT_RUN_CODE if found.open_ids else None


def _kept(held: Held, found: Settled) -> Settled:
    """Where a plugin has stopped the run, its tools finish first; any other end comes at once."""
    if held.kept is None:
        return found
    if found.route is Route.TOOLS and held.kept.reason is Reason.STOPPED:
        return replace(found, ending=held.kept)
    return replace(found, route=Route.END, ending=held.kept, closes=_closing(found))


def _steered(held: Held, found: Settled) -> Settled:
    """Somebody has something more to say: the model is asked once more instead of an end of its own."""
    is_models_own = found.ending is not None and (found.ending == NATURAL_END or not _is_limit(found.ending))
    if held.steered and found.route is Route.END and is_models_own and held.kept is None and not held.is_capped:
        return replace(found, route=Route.ASK, ending=None)
    return found


def _within_the_cap(held: Held, found: Settled) -> Settled:
    if not held.is_capped or found.route is Route.END:
        return found
    how = stopped(MAX_ITERATIONS, f"the limit of {held.max_iterations} requests was reached")
    if found.route is Route.TOOLS and held.cap_policy is CapPolicy.RUN_TOOLS:
        return replace(found, ending=found.ending or how)
    closes = NOT_RUN_CAP if found.route is Route.TOOLS else found.closes
    return replace(found, route=Route.END, ending=how, closes=closes)
