"""Create a room with tools in a temporary folder and run a turn. Needs no key and no service.

python examples/room_with_tools.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from chordage import Context, tool

AGENT = """\
model = "scripted:script.yaml"      # or "openai:gpt-4o-mini", with OPENAI_API_KEY set
instructions = "You help with orders. Look an order up before you refund it."
tools = ["room_with_tools"]         # this file: all functions with @tool
"""
SCRIPT = """\
replies:
  - tool_calls: [{name: find_order, arguments: {number: 17}}]
  - tool_calls: [{name: refund, arguments: {number: 17, cents: 4200}}]
  - text: "Done. {results}"
"""


@tool(effect="pure")  # runs again when a worker dies inside it
def find_order(number: int) -> dict[str, object]:
    """Look an order up."""
    return {"number": number, "cents": 4200, "status": "returned"}


@tool(effect="idempotent", retries=2, retry_on=ConnectionError)  # runs again, with the same key
def refund(number: int, cents: int, ctx: Context) -> str:
    """Pay money back.

    Args:
        number: of the order
        cents: how much
        ctx: has the idempotency key for a payment provider

    """
    ctx.progress("asking the bank")
    return f"Refunded {cents / 100:.2f} for order {number} under key {ctx.idempotency_key[-8:]}."


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        room = Path(folder)
        (room / "agent.toml").write_text(AGENT)
        (room / "script.yaml").write_text(SCRIPT)
        (room / Path(__file__).name).write_text(Path(__file__).read_text())
        chordage = [sys.executable, "-m", "chordage.workers.cli"]
        for command in (["invoke", "Please refund order 17."], ["turns"]):
            subprocess.run([*chordage, *command], cwd=room, check=True)
