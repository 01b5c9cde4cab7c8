"""Waiting for what another process does: asked again and again, never slept for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 90.0  # seconds: what a busy machine does late is told from what is never done


def until(ask: Callable[[], T], what: str, patience: float = PATIENCE, pause: float = 0.05) -> T:
    """The first true answer. Fails with `what` when none comes in time."""
    deadline = time.monotonic() + patience
    while not (answer := ask()):
        assert time.monotonic() < deadline, f"waited {patience:g} s in vain: {what}"
        time.sleep(pause)
    return answer
