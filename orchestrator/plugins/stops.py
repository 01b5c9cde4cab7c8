"""When a run has to stop although the model would go on. Each condition is off unless its option is given.

They are looked at after each reply, in the order below, and the first that holds ends the run: the tools that the reply
asks for run first, and the model is not asked again. A reply that failed ends the run without us.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from chordage.orchestrator.core.model import Reply, StopReason, Usage
from chordage.orchestrator.core.phases import AfterInference
from chordage.orchestrator.core.reasons import stopped
from chordage.orchestrator.core.verdicts import Terminate, Verdict
from chordage.orchestrator.plugins import options
from chordage.orchestrator.plugins.base import OptionRefused, Plugin
from chordage.orchestrator.plugins.rounds_of_run import rounds_of, same_asks

Condition = Callable[[AfterInference, Reply], str | None]  # the detail, when it holds


class Stops(Plugin):
    """max_rounds: this many rounds are run, a pause of the model counts as one.
    timeout, max_tool_calls: as in the agent's [limits], where the lower one counts; the engine sees to them.
    token_budget: tokens in and out, of the whole run.
    cost_budget: money, by price_per_million = {input, output, cached, cache_write}; input that is read from a cache, or
        written to one, costs as other input if not given.
    consecutive_errors: rounds one after the other in which every tool failed; a reply without tools ends the row.
    stop_on_tool, content_match: names of tools, and texts as they stand in a reply.
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
        options.amount("timeout", timeout)
        options.count("max_tool_calls", max_tool_calls)
        prices = options.prices("price_per_million", price_per_million)
        if cost_budget is not None and not prices:
            raise OptionRefused("cost_budget", "needs price_per_million = { input = ..., output = ... }")
        self._conditions = tuple(
            _conditions(
                max_rounds=options.count("max_rounds", max_rounds),
                token_budget=options.count("token_budget", token_budget),
                cost_budget=_cost(options.amount("cost_budget", cost_budget), prices),
                consecutive_errors=options.count("consecutive_errors", consecutive_errors),
                stop_on_tool=options.texts("stop_on_tool", stop_on_tool),
                content_match=options.texts("content_match", content_match),
                loop_detection=options.count("loop_detection", loop_detection, least=2),
            )
        )

    def after_inference(self, context: AfterInference, /) -> Iterable[Verdict]:
        if context.reply is None:
            return ()
        for code, condition in self._conditions:
            detail = condition(context, context.reply)
            if detail is not None:
                return (Terminate(stopped(code, detail)),)
        return ()


def _conditions(**given: Any) -> Iterator[tuple[str, Condition]]:
    """Those that are on, with their codes."""
    for code, value in given.items():
        if value:
            yield code, _bound(_HOLDS[code], value)


def _bound(holds: Callable[[AfterInference, Reply, Any], str | None], value: Any) -> Condition:
    return lambda context, reply: holds(context, reply, value)


def _max_rounds(context: AfterInference, reply: Reply, limit: int) -> str | None:
    """A reply that opens no round ends the run by itself."""
    if _goes_on(reply) and context.rounds + 1 >= limit:
        return f"the limit of {limit} rounds was reached"
    return None


def _token_budget(context: AfterInference, _reply: Reply, limit: int) -> str | None:
    used = context.usage.input_tokens + context.usage.output_tokens
    return f"{used} tokens were used; the budget is {limit}" if used >= limit else None


def _cost_budget(context: AfterInference, _reply: Reply, budget: tuple[float, dict[str, float]]) -> str | None:
    limit, prices = budget
    spent = _spent(context.usage, prices)
    return f"{spent:.6g} was spent; the budget is {limit:g}" if spent >= limit else None


def _consecutive_errors(context: AfterInference, reply: Reply, limit: int) -> str | None:
    last = rounds_of(context.said_in_run)[-limit:]
    if reply.asks and len(last) == limit and all(one.failed for one in last):
        return f"every tool failed in {limit} rounds one after the other"
    return None


def _stop_on_tool(_context: AfterInference, reply: Reply, tools: Sequence[str]) -> str | None:
    asked = next((ask.name for ask in reply.asks if ask.name in tools), None)
    return None if asked is None else f"the tool {asked} was asked for"


def _content_match(_context: AfterInference, reply: Reply, patterns: Sequence[str]) -> str | None:
    found = next((pattern for pattern in patterns if pattern in reply.text), None)
    return None if found is None else f"the reply contains {found!r}"


def _loop_detection(context: AfterInference, reply: Reply, window: int) -> str | None:
    asked = [same_asks(one.asks) for one in rounds_of(context.said_in_run)][-(window - 1) :]
    if reply.asks and len(asked) == window - 1 and set(asked) == {same_asks(reply.asks)}:
        names = ", ".join(sorted({ask.name for ask in reply.asks}))
        return f"{names}: asked for the same in {window} rounds one after the other"
    return None


_HOLDS: Mapping[str, Callable[[AfterInference, Reply, Any], str | None]] = {
    "max_rounds": _max_rounds,
    "token_budget": _token_budget,
    "cost_budget": _cost_budget,
    "consecutive_errors": _consecutive_errors,
    "stop_on_tool": _stop_on_tool,
    "content_match": _content_match,
    "loop_detection": _loop_detection,
}


def _goes_on(reply: Reply) -> bool:
    return bool(reply.asks) or reply.stop is StopReason.PAUSE_TURN


def _cost(limit: float | None, prices: dict[str, float]) -> tuple[float, dict[str, float]] | None:
    return None if limit is None else (limit, prices)


def _spent(usage: Usage, prices: dict[str, float]) -> float:
    """What is read from a cache and what is written to it is a part of what went in."""
    fresh = usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens
    cached = usage.cached_tokens * prices.get("cached", prices["input"])
    written = usage.cache_write_tokens * prices.get("cache_write", prices["input"])
    return (fresh * prices["input"] + cached + written + usage.output_tokens * prices["output"]) / 1_000_000
