"""Why a turn does not move, in the same words as `chordage why` and the HTTP API."""

from __future__ import annotations

from chordage.orchestrator import views
from chordage.orchestrator.api.services import Services
from chordage.orchestrator.console.pages import PageContext
from chordage.orchestrator.core.why.reasons import RowKey, RowKind, WaitReason
from chordage.orchestrator.views import WaitSources


def whys_of_turns(services: Services, context: PageContext, turn_ids: list[str]) -> dict[str, WaitReason]:
    """Of those that wait, by turn. A list costs as many statements as one of them."""
    if not turn_ids:
        return {}
    rt = services.rt
    sources = WaitSources(
        store=rt.store, now=rt.now(), budgets=rt.budgets, leases=rt.leases, locks=rt.locks, space=context.caller.reach
    )
    reasons = views.whys(sources, [RowKey(RowKind.TURN, turn_id) for turn_id in turn_ids])
    return {key.id: reason for key, reason in reasons.items()}


def why_of_turn(services: Services, context: PageContext, turn_id: str) -> WaitReason | None:
    """None: it does not wait."""
    return whys_of_turns(services, context, [turn_id]).get(turn_id)
