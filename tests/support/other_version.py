"""A next version of the product, made of a copy of this one: for tests in which two versions share a database.

Everything that a release may change is changed: a column and an index are added by a migration of its own, journal rows
have a field more, a message has an argument more, and there is a task that only this version knows. In a file `sent` it
notes for which runs it has sent that task.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from support import processes
from support.rig_worker import Worker

REPOSITORY = Path(__file__).parents[2]
FOLDERS = ("orchestrator", "tasks", "workers", "config", ".import")
RELEASE = "0.2.0"
MIGRATION = """
from alembic import op
from sqlalchemy import Column, String

revision, down_revision, branch_labels, depends_on = "0002", "0001", None, None


def upgrade() -> None:
    op.add_column("turns", Column("mood", String(20)))


def contract() -> None:
    op.execute("UPDATE turns SET mood = 'none' WHERE mood IS NULL")
"""
TASK = """
    @app.task(name="runs.mood", base=base, bind=True, shared=False)
    def mood(self: StageTask, /, run: str) -> None:
        from chordage.orchestrator.store import schema
        with self.runtime.store.write() as tx:
            tx.execute(schema.turns.update().where(schema.turns.c.run_id == run).values(mood="good"))

"""
SENT = """
                if isinstance(intent, CallTools):
                    kwargs, needs = {"run": intent.run_id}, {names.NEEDS: 2}
                    shown = monitor_headers(kwargs)
                    queue = intent.group.queue
                    wake = WakeUp(task="runs.mood", queue=queue, kwargs=kwargs, headers=needs, shown=shown)
                    self._sender.send([wake])
                    with open("sent", "a") as sent:
                        sent.write(intent.run_id + " ")
"""
CHANGES: tuple[tuple[str, str, str], ...] = (
    ("orchestrator/store/schema.py", '    Column("max_rounds", Integer),  # its own',
     '    Column("mood", String(20)),\n    Index("by_mood", "mood"),\n    Column("max_rounds", Integer),  # its own'),
    ("orchestrator/store/journal.py", '"kind": kind.value, "body": body, "at"',
     '"kind": kind.value, "body": {**body, "mood": "good"}, "at"'),
)  # fmt: skip
OF_MESSAGES: tuple[tuple[str, str, str], ...] = (
    ("tasks/names.py", "WIRE = 1", "WIRE = 2"),
    ("tasks/tasks.py", "    # Ticks, and tasks of no thread", f"{TASK}    # Ticks, and tasks of no thread"),
    ("tasks/courier.py", "self._sender.send(self._messages(intent))\n",
     f"self._sender.send(self._messages(intent)){SENT}"),
    ("tasks/courier.py", 'kwargs = {"run": intent.run_id, "calls": list(batch)}',
     'kwargs = {"run": intent.run_id, "calls": list(batch), "mood": "good"}'),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Version:
    """The root of a tree of the product."""

    folder: Path

    @property
    def path(self) -> str:
        return str(self.folder / ".import")

    def env(self, env: dict[str, str]) -> dict[str, str]:
        """So that Python imports this version."""
        return {**env, "PYTHONPATH": os.pathsep.join([self.path, env.get("PYTHONPATH", "")])}


def next_version(folder: Path, *, messages: bool = True) -> Version:
    """`messages`: its messages differ too."""
    left_out = shutil.ignore_patterns("__pycache__", "*.egg-info")  # the latter says which release an install has
    for name in FOLDERS:
        shutil.copytree(REPOSITORY / name, folder / name, symlinks=True, ignore=left_out)
    for name, old, new in (*CHANGES, *(OF_MESSAGES if messages else ())):
        file = folder / name
        text = file.read_text()
        assert text.count(old) == 1, f"{name} has {text.count(old)} times {old!r}: adapt this file"
        file.write_text(text.replace(old, new))
    (folder / "orchestrator/store/migrations/versions/v0002_mood.py").write_text(MIGRATION)
    about = folder / ".import" / f"chordage-{RELEASE}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: chordage\nVersion: {RELEASE}\n")
    return Version(folder=folder)


@dataclass
class WorkerOfVersion(Worker):
    """Its interpreter has imported nothing: a warm one has this version of the product."""

    def start(self) -> None:
        self._ready = self.folder / f"{self.name}.{next(self.starts)}.ready"
        command = [
            sys.executable,
            *self.program,
            "worker",
            "--name",
            self.name,
            "--ready-file",
            str(self._ready),
            *self.arguments,
        ]
        self.process = processes.spawn(command, self.log, env=self.env, cwd=self.folder)
