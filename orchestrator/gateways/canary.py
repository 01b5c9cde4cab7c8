"""What a canary of a drill does: the replies of its model, and its three tools.

Workers know the agent `chordage-drill` without a file in the room (core/drill.py), so a fleet can be drilled as it is.
Each tool adds a row before it does anything else; then it works for as long as the message says.
"""

from __future__ import annotations

import json
import time

from chordage.orchestrator.core.agent import Effect
from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.core.model import Prompt
from chordage.orchestrator.gateways.models.script import PromptPosition, ScriptedReply
from chordage.orchestrator.gateways.tools.context import Context
from chordage.orchestrator.gateways.tools.declare import tool

LONGEST = 120.0
LOOK = 0.05  # seconds between two looks whether the result is still wanted


def reply(prompt: Prompt, _attempt: int) -> ScriptedReply:
    """First all three tools at once, then a text."""
    position = PromptPosition.of(prompt)
    if position.index:
        return ScriptedReply.of({"text": "The canary is back."})
    arguments = {"seconds": json.loads(position.user)["seconds"]}
    names = ("canary_pure", "canary_idempotent", "canary_unsafe")
    return ScriptedReply.of({"tool_calls": [{"name": name, "arguments": arguments} for name in names]})


@tool(effect=Effect.PURE, timeout=LONGEST)
def canary_pure(seconds: float, ctx: Context) -> str:
    """Work for a while; may run again."""
    return _work(ctx, seconds)


@tool(effect=Effect.IDEMPOTENT, timeout=LONGEST)
def canary_idempotent(seconds: float, ctx: Context) -> str:
    """Work for a while; may run again with the same key."""
    return _work(ctx, seconds)


@tool(effect=Effect.UNSAFE, timeout=LONGEST)
def canary_unsafe(seconds: float, ctx: Context) -> str:
    """Work for a while; must not run again by itself."""
    return _work(ctx, seconds)


def _work(ctx: Context, seconds: float) -> str:
    if ctx.executions is None:
        raise NotFound("this tool is for the canaries of `chordage drill` alone")
    ctx.executions.add()
    until = time.monotonic() + seconds
    while not ctx.cancelled and (left := until - time.monotonic()) > 0:
        time.sleep(min(LOOK, left))
    return f"worked for {seconds:g} s"
