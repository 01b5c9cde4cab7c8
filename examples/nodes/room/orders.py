"""The tools of the room."""

import os
import time
from pathlib import Path

from chordage import tool

OPEN = Path(os.environ.get("SHOP_OPEN", "/"))  # the file that says that the shop has opened


@tool(effect="idempotent")
def ship(order: int) -> str:
    """Ship an order as soon as the shop is open."""
    print(f"order {order} waits", flush=True)
    while not OPEN.exists():
        time.sleep(0.02)
    return f"shipped {order}"
