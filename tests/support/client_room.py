"""A small room with a scripted model, for tests of what clients see."""

from __future__ import annotations

import itertools
from pathlib import Path

MODULES = itertools.count()  # Python keeps a module of a name: two rooms of one process must not share one

AGENT = """\
name = "ada"
model = "scripted:script.yaml"
tools = ["{module}:add", "{module}:wait"]
"""
SECOND = 'name = "bob"\nmodel = "scripted:script.yaml"\n'
SCRIPT = """\
- when: add
  text: Let me add.
  tool_calls:
    - {name: add, arguments: {a: 1, b: 2}}
    - {name: add, arguments: {a: 30, b: 4}}
- when: add
  text: "Sums: {results}"
- when: wait
  tool_calls: [{name: wait, arguments: {}}]
- when: wait
  text: "It is over."
- when: linger
  latency: 30
  text: "Late."
- when: fail
  fail: {fault: auth}
- text: "You said: {user}"
"""
TOOLS = '''\
import pathlib
import time

from chordage import tool

HERE = pathlib.Path(__file__).parent


@tool(effect="pure")
def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


@tool(effect="unsafe")
def wait() -> str:
    """Wait until the gate is open."""
    (HERE / "waiting").touch()
    while not (HERE / "gate").exists():
        time.sleep(0.02)
    return "opened"
'''


def write(folder: Path) -> Path:
    """`ada` is the default agent, `bob` another one. `wait` waits for the file `gate`, and leaves `waiting` before."""
    module = f"client_room_tools_{next(MODULES)}"
    (folder / "agents").mkdir(parents=True)
    (folder / "agent.toml").write_text(AGENT.format(module=module))
    (folder / "agents" / "bob.toml").write_text(SECOND)
    (folder / "script.yaml").write_text(SCRIPT)
    (folder / f"{module}.py").write_text(TOOLS)
    return folder
