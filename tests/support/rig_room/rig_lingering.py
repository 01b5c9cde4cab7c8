"""A tool of the rig's room whose worker is there to be killed inside it."""

from __future__ import annotations

import json

from rig_tools import LEDGER, carry_out

from chordage import Context, tool

IN_VAIN = 50.0  # seconds; no test waits that long


def is_begun(key: str) -> bool:
    lines = LEDGER.read_text().splitlines() if LEDGER.exists() else []
    return any(json.loads(line).get("key") == key for line in lines)


@tool(effect="idempotent")
def lingers(ctx: Context, who: str, seconds: float = 0.0) -> str:
    """Does not come back when it is begun for the first time."""
    return carry_out(ctx, "lingers", who, seconds if is_begun(ctx.idempotency_key) else IN_VAIN)
