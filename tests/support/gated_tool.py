"""A tool of a room that runs until its gate is open, a file beside it."""

from __future__ import annotations

TOOL = '''
import time
from pathlib import Path
from chordage import tool

HERE = Path(__file__).parent

@tool(effect="pure", timeout=120)
def wait_for_gate() -> str:
    """Wait until the gate is open."""
    (HERE / "begun").touch()
    while not (HERE / "gate").exists():
        time.sleep(0.05)
    return "open"
'''
