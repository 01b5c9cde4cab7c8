"""Files in a room may have any name: ours and Python's modules are never replaced by them."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from pathlib import Path
from chordage.orchestrator.gateways.room.agents import Room
from chordage.orchestrator.gateways.ports import CallOrder

room = Room(Path(sys.argv[1]))
agent = room.get(None)
assert set(room.toolbox.specs(agent)) == {"hello", "calculate"}, room.toolbox.specs(agent)

import chordage, chordage.tasks, chordage.config, chordage.workers, chordage.orchestrator.store
import json, random, logging.handlers, email.mime.text, sqlite3
for module in list(sys.modules.values()):
    file = getattr(module, "__file__", None) or ""
    assert not file.startswith(str(room.path)) or module.__name__ == "mine", file

class Calm:
    def check(self): ...
    def wait(self, seconds): ...

order = CallOrder(call_id="c", run_id="r", thread_id="t", tool="hello", arguments={"name": "you"}, idempotency_key="k")
print(room.toolbox.run(agent, order, abort=Calm(), on_progress=print).content)
"""

TRAPS = [
    "tasks",
    "config",
    "workers",
    "orchestrator",
    "chordage",
    "json",
    "random",
    "logging",
    "email",
    "sqlite3",
    "pydantic",
    "celery",
    "http",
]


def test_modules_named_like_ours_do_no_harm(folder):
    for name in TRAPS:
        folder.write(f"{name}.py", f"raise AssertionError('the room replaced {name}')\n")
    folder.write(
        "mine.py", "from chordage import tool\n@tool\ndef hello(name: str) -> str:\n    return f'hello {name}'\n"
    )
    folder.agent('model = "m"\ntools = ["mine:hello", "builtin:calculate"]')
    command = [sys.executable, "-W", "error", "-c", PROGRAM, str(folder.path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, cwd=folder.path.parent)
    assert (done.returncode, done.stdout) == (0, "hello you\n"), done.stderr
