"""What it means to listen beyond this machine, in words for the terminal and for the log."""

from __future__ import annotations

from chordage.orchestrator.core.deliveries import is_loopback


def warning_of(host: str) -> str | None:
    """None where only this machine can reach the server."""
    if is_loopback(host):
        return None
    return (
        f"WARNING: the HTTP server listens on {host}, beyond this machine, and knows no credentials: whoever reaches "
        "it can hand in messages, which cost money and use tools, and read and decide about all turns of callers. Put "
        "it behind something that checks who comes, or listen on 127.0.0.1"
    )
