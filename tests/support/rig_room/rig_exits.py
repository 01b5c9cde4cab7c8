"""Tools of the rig's room that end the process, as argparse does with arguments it does not know."""

from __future__ import annotations

import argparse

from rig_tools import note

from chordage import Context, tool


@tool(effect="idempotent")
def parses(ctx: Context, who: str, seconds: float = 0.0) -> str:
    """Leaves through sys.exit."""
    note(ctx, "parses", "begin")
    return str(argparse.ArgumentParser().parse_args([f"--no-such-option={who}"]))


@tool(effect="unsafe")
async def interrupts(ctx: Context, who: str, seconds: float = 0.0) -> str:
    """Raises what Ctrl-C raises."""
    note(ctx, "interrupts", "begin")
    raise KeyboardInterrupt
