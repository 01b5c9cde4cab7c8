"""How much of its agent's limits a run has used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from chordage.orchestrator.core.agent import AgentSpec
from chordage.orchestrator.core.model import Usage
from chordage.orchestrator.core.prices import NANOS, dollars_text, exact
from chordage.orchestrator.plugins.stops import Stops


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetUse:
    """`share`: 1 and more where it is used up. `is_more`: a part of the cost is unknown."""

    name: str
    used: str
    limit: str
    share: float
    is_more: bool = False


def budget_uses(agent: AgentSpec, usage: Usage) -> list[BudgetUse]:
    """The budgets of the plugin `stops`, as it counts them: of the run with its sub-agents that have ended."""
    stops = [Stops(**use.options) for use in agent.plugins if use.use == "stops"]
    return [one for each in stops for one in _of_stops(each, usage)]


def _of_stops(stops: Stops, usage: Usage) -> Iterator[BudgetUse]:
    if (tokens := stops.token_budget) is not None:
        used = usage.input_tokens + usage.output_tokens
        yield BudgetUse(name="tokens", used=f"{used:,}", limit=f"{tokens:,}", share=used / tokens)
    if (budget := stops.cost_budget) is not None:
        nanos = stops.spent(usage)
        limit = exact(budget) * NANOS
        is_more = not stops.has_own_price and usage.unpriced > 0
        yield BudgetUse(
            name="cost", used=dollars_text(nanos), limit=dollars_text(int(limit)), share=float(Fraction(nanos) / limit),
            is_more=is_more,
        )  # fmt: skip
