"""Who may see the fleet as a whole: its groups, workers, channels and standing work are not of one tenant."""

from __future__ import annotations

from fastapi import Request

from chordage.orchestrator.console.pages import PageContext, context_of
from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.errors import Forbidden


def fleet_context(request: Request, *scopes: KeyScope) -> PageContext:
    """Raises Forbidden for a caller that sees one tenant."""
    context = context_of(request, KeyScope.READ, *scopes)
    if not context.caller.sees_all:
        raise Forbidden("this page is about the whole fleet, and your key sees one tenant")
    return context
