"""A tour of the console in a real browser: from an empty database to an approved call and a finished run.

Not part of the tests that `pytest` runs: Chromium and the packages of npm do not come from pip. Run it with
`just browser`, after `npm install playwright-core axe-core` in this folder; `CHROMIUM` names the browser, and
`NODE_MODULES` another folder with the packages. Screenshots of every page, in two widths and two themes, are written
into the folder that is given, or into `.screenshots` here.

It starts a fleet in a temporary folder, sends the first turn from the empty page, approves its call, sees the run end
without a reload, forks it from a step and compares both, selects lines that change meanwhile, starts a bulk job, all
by the keyboard. It answers a question by its link, kills a worker in the middle of a call and sees the bar break. axe
looks at every page.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
START = [sys.executable, "-c", "from chordage_command import main; main()", "dev", "--port", "0"]
PATIENCE = 180.0  # seconds

AGENT = """\
name = "clerk"
model = "scripted:script.yaml"
instructions = "You handle orders. Look everything up before you answer."
tools = ["tour_tools"]
agents = ["scout"]
[permission]
allow = ["find_order", "stock", "survey", "ask_scout"]
ask = ["book"]
expires_in = 86400
[prices]
"scripted:script.yaml" = { input = 300, output = 1500 }
"""
SCOUT = 'name = "scout"\nmodel = "scripted:script.yaml"\ntools = ["tour_tools:find_order", "tour_tools:stock"]\n'
SCRIPT = """\
- when: {regex: "Lisbon|the tool book"}
  text: "Let me look at the order, and at the stock."
  latency: 0.4
  tool_calls:
    - {name: find_order, arguments: {order: "17"}}
    - {name: stock, arguments: {sku: "A-17"}}
    - {name: ask_scout, arguments: {message: "look around"}}
- when: {regex: "Lisbon|the tool book"}
  text: "I book the table."
  latency: 0.3
  tool_calls: [{name: book, arguments: {city: Lisbon, people: 2, note: "by the <b>river</b>"}}]
- when: {regex: "Lisbon|the tool book"}
  text: "Done. **A table for two** is booked in Lisbon."
  latency: 0.3
- when: look
  text: "Looking."
  tool_calls: [{name: stock, arguments: {sku: "Z"}}]
- when: look
  text: "There are four left."
- when: survey
  text: "This takes a while."
  tool_calls: [{name: survey, arguments: {}}, {name: find_order, arguments: {order: "3"}}]
- when: survey
  text: "All surveyed."
- when: fail
  fail: {fault: auth}
- text: "You said: {user}"
"""
TOOLS = '''\
import time

from chordage import Context, tool


@tool(effect="pure")
def find_order(order: str) -> dict:
    """Find an order."""
    time.sleep(0.8)
    return {"order": order, "amount": 41.5, "items": [{"sku": "A-17", "n": 2}]}


@tool(effect="pure")
def stock(sku: str) -> str:
    """How many are left."""
    time.sleep(1.2)
    return f"{sku}: 4 left"


@tool(effect="idempotent")
def book(city: str, people: int, note: str = "") -> str:
    """Book a table."""
    return f"a table for {people} in {city} is booked"


@tool(effect="pure")
def survey(ctx: Context) -> str:
    """Takes long, so that its worker can be killed meanwhile."""
    for step in range(60):
        ctx.progress(step / 60)
        time.sleep(0.25)
    return "surveyed"
'''


def main() -> int:
    shots = Path(sys.argv[1] if len(sys.argv) > 1 else HERE / ".screenshots").resolve()
    shots.mkdir(parents=True, exist_ok=True)
    node, chromium = shutil.which("node"), os.environ.get("CHROMIUM") or shutil.which("chromium")
    modules = Path(os.environ.get("NODE_MODULES", HERE / "node_modules")).resolve()
    if node is None or chromium is None or not (modules / "playwright-core").is_dir():
        print(__doc__)
        print(f"missing: node {node}, chromium {chromium}, packages in {modules}")
        return 2
    with tempfile.TemporaryDirectory(prefix="chordage-tour-") as folder:
        room = Path(folder)
        (room / "agents").mkdir()
        for name, text in (("agent.toml", AGENT), ("agents/scout.toml", SCOUT), ("script.yaml", SCRIPT)):
            (room / name).write_text(text)
        (room / "tour_tools.py").write_text(TOOLS)
        with subprocess.Popen(START, cwd=room, stdout=subprocess.PIPE, text=True, start_new_session=True) as fleet:
            try:
                command = [node, str(HERE / "tour.mjs"), _link(fleet), str(shots), chromium, str(modules)]
                return subprocess.run(command, check=False, timeout=900).returncode
            finally:
                fleet.terminate()  # as a background job of a shell it may ignore Ctrl-C
                fleet.wait(PATIENCE)


def _link(fleet: subprocess.Popen[str]) -> str:
    give_up = time.monotonic() + PATIENCE
    assert fleet.stdout is not None
    for line in fleet.stdout:
        if match := re.search(r"console\s+(http://\S+)", line):
            return match[1]
        if time.monotonic() > give_up:
            break
    raise SystemExit("the fleet did not start")


if __name__ == "__main__":
    raise SystemExit(main())
