"""When a run has to stop although the model would continue. Each condition is off unless its option is value.

Conditions are checked after each reply, in the order below, and the first that holds ends the run: the tools that the
reply asks for run first, and the model is not called again. A reply that failed ends the run without this plugin.

Zero is refused in every option: it might be meant as "none" or as "never", and the two are opposites.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any, cast

from chordage.orchestrator.core.model import AssistantSays, Reply, Said, StopReason, ToolAsk, ToolSays, Usage
from chordage.orchestrator.core.phases import AfterInference
from chordage.orchestrator.core.prices import NANOS, Price, exact
from chordage.orchestrator.core.reasons import stopped
from chordage.orchestrator.core.transcript import AWAITING, NOT_STARTED
from chordage.orchestrator.core.verdicts import Terminate, Verdict
from chordage.orchestrator.plugins.base import OptionRefused, Plugin


class Stops(Plugin):
    """max_rounds: this many rounds are run, a pause of the model counts as one.
    timeout, max_tool_calls: as in the agent's [limits], where the lower one counts; the engine sees to them.
    token_budget: tokens in and out, of the whole run.
    cost_budget: dollars, by the prices of the room; or by price_per_million = {input, output, cached, cache_write},
        where input that is read from a cache, or written to one, costs as other input if they have no price.
    consecutive_errors: rounds one after the other in which every tool failed; a reply without tools ends the row.
    stop_on_tool, content_match: names of tools, and texts that a reply contains.
    loop_detection: rounds one after the other that ask the same tools for the same; 2 or more.
    """

    id = "stops"

    def __init__(
        self,
        *,
        max_rounds: int | None = None,
        timeout: float | None = None,
        max_tool_calls: int | None = None,
        token_budget: int | None = None,
        cost_budget: float | None = None,
        price_per_million: Mapping[str, float] | None = None,
        consecutive_errors: int | None = None,
        stop_on_tool: str | Sequence[str] | None = None,
        content_match: str | Sequence[str] | None = None,
        loop_detection: int | None = None,
    ) -> None:
        _amount("timeout", timeout)
        _count("max_tool_calls", max_tool_calls)
        price = _price("price_per_million", price_per_million)
        settings = {
            "max_rounds": _count("max_rounds", max_rounds),
            "token_budget": _count("token_budget", token_budget),
            "cost_budget": None if _amount("cost_budget", cost_budget) is None else (cost_budget, price),
            "consecutive_errors": _count("consecutive_errors", consecutive_errors),
            "stop_on_tool": _texts("stop_on_tool", stop_on_tool),
            "content_match": _texts("content_match", content_match),
            "loop_detection": _count("loop_detection", loop_detection, least=2),
        }
        self.token_budget, self.cost_budget, self._price = token_budget, cost_budget, price
        self._settings = {code: setting for code, setting in settings.items() if setting}

    @property
    def has_own_price(self) -> bool:
        return self._price is not None

    def spent(self, usage: Usage) -> int:
        """What `cost_budget` is compared with, in nano-dollars."""
        return _spent(usage, self._price)

    def after_inference(self, context: AfterInference, /) -> Iterable[Verdict]:
        if context.reply is None:
            return ()
        for code, setting in self._settings.items():
            detail = _CONDITIONS[code](context, context.reply, setting)
            if detail is not None:
                return (Terminate(stopped(code, detail)),)
        return ()


# conditions: each returns the detail of the stop where it holds


def _max_rounds(context: AfterInference, reply: Reply, limit: int) -> str | None:
    """A reply that opens no round ends the run by itself."""
    opens_round = bool(reply.asks) or reply.stop is StopReason.PAUSE_TURN
    return f"the limit of {limit} rounds was reached" if opens_round and context.rounds + 1 >= limit else None


def _token_budget(context: AfterInference, _reply: Reply, limit: int) -> str | None:
    used = context.usage.input_tokens + context.usage.output_tokens
    return f"{used} tokens were used; the budget is {limit}" if used >= limit else None


def _cost_budget(context: AfterInference, _reply: Reply, budget: tuple[float, Price | None]) -> str | None:
    limit, price = budget
    nanos = _spent(context.usage, price)
    return f"{nanos / NANOS:.6g} was spent; the budget is {limit:g}" if nanos >= exact(limit) * NANOS else None


def _spent(usage: Usage, price: Price | None) -> int:
    """By the prices of the room each reply has its cost already."""
    return (usage.cost_nanos or 0) if price is None else price.cost(usage)


def _consecutive_errors(context: AfterInference, reply: Reply, limit: int) -> str | None:
    last = _rounds(context.said_in_run)[-limit:]
    if reply.asks and len(last) == limit and all(_has_failed(answers) for _asks, answers in last):
        return f"every tool failed in {limit} rounds one after the other"
    return None


def _stop_on_tool(_context: AfterInference, reply: Reply, tools: Sequence[str]) -> str | None:
    name = next((ask.name for ask in reply.asks if ask.name in tools), None)
    return None if name is None else f"the tool {name} was asked for"


def _content_match(_context: AfterInference, reply: Reply, patterns: Sequence[str]) -> str | None:
    match = next((pattern for pattern in patterns if pattern in reply.text), None)
    return None if match is None else f"the reply contains {match!r}"


def _loop_detection(context: AfterInference, reply: Reply, window: int) -> str | None:
    before = [_asks_key(asks) for asks, _answers in _rounds(context.said_in_run)][-(window - 1) :]
    if reply.asks and len(before) == window - 1 and set(before) == {_asks_key(reply.asks)}:
        names = ", ".join(sorted({ask.name for ask in reply.asks}))
        return f"{names}: asked for the same in {window} rounds one after the other"
    return None


_CONDITIONS: Mapping[str, Callable[[AfterInference, Reply, Any], str | None]] = {
    "max_rounds": _max_rounds,
    "token_budget": _token_budget,
    "cost_budget": _cost_budget,
    "consecutive_errors": _consecutive_errors,
    "stop_on_tool": _stop_on_tool,
    "content_match": _content_match,
    "loop_detection": _loop_detection,
}

Round = tuple[Sequence[ToolAsk], list[ToolSays]]


def _rounds(said: Sequence[Said]) -> list[Round]:
    """Each message of the model with what its tools answered; without asks it was text alone."""
    rounds: list[Round] = []
    for place, message in enumerate(said):
        if isinstance(message, AssistantSays):
            answers = takewhile(lambda later: isinstance(later, ToolSays), said[place + 1 :])
            rounds.append((message.asks, cast("list[ToolSays]", list(answers))))
    return rounds


def _has_failed(answers: Sequence[ToolSays]) -> bool:
    """Whether all tools have. A call that waits for a decision, or is behind one that does, has not failed."""
    return bool(answers) and all(
        answer.is_error and answer.content not in {AWAITING, NOT_STARTED} for answer in answers
    )


def _asks_key(asks: Sequence[ToolAsk]) -> str:
    """Equal for rounds that ask the same tools for the same, in any order. Raw text counts where it is no JSON."""
    return json.dumps(
        sorted(
            json.dumps([ask.name, ask.arguments, ask.raw if ask.arguments is None else ""], sort_keys=True)
            for ask in asks
        )
    )


# options


def _amount(option: str, value: Any) -> float | None:
    """A number of more than 0, or None."""
    if value is None or (_is_number(value) and value > 0):
        number: float | None = value
        return number
    raise OptionRefused(option, f"must be a number of more than 0; for no limit leave it out; got {value!r}")


def _count(option: str, value: Any, *, least: int = 1) -> int | None:
    if value is None or (_is_number(value) and isinstance(value, int) and value >= least):
        number: int | None = value
        return number
    raise OptionRefused(option, f"must be a whole number, {least} or more; for no limit leave it out; got {value!r}")


def _texts(option: str, value: Any) -> tuple[str, ...]:
    """One or several; none for None."""
    many = [value] if isinstance(value, str) else value
    if many is None:
        return ()
    if isinstance(many, Sequence) and many and all(isinstance(text, str) and text.strip() for text in many):
        return tuple(many)
    raise OptionRefused(option, f"must be a text or a list of texts, none of them blank; got {value!r}")


def _price(option: str, value: Any) -> Price | None:
    known = ("input", "output", "cached", "cache_write")
    if value is None:
        return None
    if not isinstance(value, dict) or not {"input", "output"} <= value.keys() <= set(known):
        why = f"must be a table with input and output, and cached and cache_write if you like; got {value!r}"
        raise OptionRefused(option, why)
    for kind, price in value.items():
        if not _is_number(price) or price < 0:
            raise OptionRefused(option, f"{kind} must be a price, 0 or more; got {price!r}")
    costs: dict[str, Any] = {kind: exact(price) for kind, price in value.items()}
    return Price(**costs)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
