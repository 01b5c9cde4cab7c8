"""What a person is told of a turn, where a channel carries words alone."""

from __future__ import annotations

from chordage.orchestrator.core.channels import Outgoing


def text_of(reply: Outgoing) -> str:
    """Its answer. A turn without one is not passed over in silence: somebody waits."""
    if reply.text is not None and reply.text.strip():
        return reply.text
    why = reply.body.get("code") or reply.body.get("reason") or "no answer was given"
    return f"(There is no answer: {why}. Turn {reply.turn_id})"
