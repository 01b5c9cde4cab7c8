"""A TCP port on this machine that nobody listens on at the moment."""

from __future__ import annotations

import socket


def free_port(host: str = "127.0.0.1") -> int:
    """A port the system says is free. Somebody else may take it before its user does: be ready to ask again."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.bind((host, 0))
        port: int = listener.getsockname()[1]
        return port
