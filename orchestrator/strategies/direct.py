"""Exactly one model call, no tools offered."""

from __future__ import annotations

from chordage.orchestrator.core.moves import Finish, Infer, Move, View
from chordage.orchestrator.core.reasons import NATURAL_END


def direct(view: View) -> Move:
    return Infer(offer_tools=False) if view.reply is None else Finish(ending=NATURAL_END)
