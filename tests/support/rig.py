"""A fleet for live tests: real workers in processes of their own, a broker and a database, all of them to be killed.

Tools and models write what they do into a ledger, a file apart from broker and database. What the rows say is compared
with what the ledger says.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import func, select

from chordage.config.celery_settings import celery_settings
from chordage.config.settings import load
from chordage.orchestrator import stages
from chordage.orchestrator.core.errors import Unavailable
from chordage.orchestrator.core.groups import ALL_QUEUES
from chordage.orchestrator.core.intents import Intent
from chordage.orchestrator.store import schema
from chordage.tasks.accepting import accept
from chordage.tasks.courier import Courier
from chordage.tasks.schema import request_from
from chordage.workers.bootstrap import redis_from, runtime_from
from chordage.workers.presence import worker_name
from support import scripted_server
from support.rig_worker import Worker
from support.valkey import WatchedValkey
from support.waiting import PATIENCE, until

HERE = Path(__file__).parent
AGENT = """
on_unknown = "fail"
model = "fake:model"
tools = ["rig_tools"]
placement = "{placement}"
model_retries = 2

[models.fake]
wire = "openai"
base_url = "{url}/v1"
"""
QUICK = {"lease": 3, "beat": 1, "sweep": 1, "soft_shutdown": 4}
UNHURRIED = {"lease": 60, "beat": 2}  # for tests that lose no process: one that is slow is not taken for lost


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a turn of the rig shall do; the text of its message."""

    id: str
    rounds: int = 1
    tools: tuple[str, ...] = ("pure", "unsafe", "idempotent")
    seconds: float = 0.0  # each tool call takes
    latency: float = 0.0  # each model call takes
    tail: float = 0.0  # a planner's stream takes
    gated: bool = False  # model calls come back when the gate is open
    hangs: bool = False  # the first model call does not come back: its worker is there to be killed

    @property
    def text(self) -> str:
        return json.dumps(asdict(self))


class Rig:
    broker: WatchedValkey  # set where a test may kill it

    def __init__(
        self, folder: Path, database_url: str, redis_url: str, *, placement: str = "spread", **settings: Any
    ) -> None:
        """`placement`: tests kill the workers of tools, so each call has a message of its own unless they say else."""
        self.folder = folder
        self.room = folder / "room"
        shutil.copytree(HERE / "rig_room", self.room, ignore=shutil.ignore_patterns("__pycache__"))
        self.model = scripted_server.serve(self.room / "model.py")
        (self.room / "agent.toml").write_text(AGENT.format(url=self.model.url, placement=placement))
        given = {**QUICK, **settings, "room": str(self.room), "database_url": database_url, "redis_url": redis_url}
        self.settings = load(**given)
        path = os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")]))
        self.env = {**_environment(given), "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
        self.workers: dict[str, Worker] = {}
        self.runtime = runtime_from(self.settings, with_redis=False)
        self.app = Celery("rig", set_as_current=False)
        self.app.conf.update(celery_settings(self.settings, ALL_QUEUES))
        self.redis = redis_from(self.settings, decode_responses=True)

    def agent(self, name: str, model: str, script: str = "") -> None:
        """A further agent; `script` is what a model "scripted:<file>" reads from its file."""
        (self.room / "agents").mkdir(exist_ok=True)
        (self.room / "agents" / f"{name}.toml").write_text(
            f'model = "{model}"\nplacement = "spread"\ntools = ["rig_tools"]\n'
        )
        if script:
            (self.room / model.partition(":")[2]).write_text(script)

    # workers

    def worker(self, name: str, *arguments: str, **more: Any) -> Worker:
        """`rig.worker("a", "--role", "turns", "--concurrency", "8")`; call `ready` before it is needed."""
        env = {**self.env, **more.pop("env", {})}
        worker = Worker(name=name, arguments=arguments, env=env, folder=self.folder, **more)
        self.workers[name] = worker
        worker.start()
        return worker

    def ready(self) -> None:
        for worker in self.workers.values():
            worker.wait_until_ready()

    def restart_the_dead(self) -> list[str]:
        """What a supervisor does."""
        dead = [worker for worker in self.workers.values() if not worker.alive]
        for worker in dead:
            worker.start()
        return [worker.name for worker in dead]

    # turns

    def submit(self, plan: Plan, thread: str | None = None, **fields: Any) -> str:
        """As the HTTP server takes turns in. The same plan is the same turn, so it may be submitted again."""
        given = {"text": plan.text, "thread_id": thread, "dedupe_key": plan.id, **fields}
        request = request_from(given, source="rig", space=None)
        return accept(self.runtime, Courier(self.app), request).turn_id

    def admit(self, plan: Plan, thread: str | None = None, **fields: Any) -> list[Intent]:
        """Stored, and no wake-up sent: for `send`, when many shall come at once."""
        request = request_from({"text": plan.text, "thread_id": thread, **fields}, source="rig", space=None)
        return stages.admit(self.runtime, request)[1]

    def send(self, intents: Iterable[list[Intent]]) -> None:
        Courier(self.app).send(itertools.chain.from_iterable(intents))

    def submit_surely(self, plan: Plan, thread: str | None = None, **fields: Any) -> str:
        """As a caller who tries again while the database is away."""
        found: list[str] = []

        def taken_in() -> bool:
            with contextlib.suppress(Unavailable):
                found.append(self.submit(plan, thread, **fields))
            return bool(found)

        until(taken_in, f"turn {plan.id} is taken in", pause=0.2)
        return found[0]

    def unfinished(self) -> int:
        with self.runtime.store.read() as tx:
            return int(tx.execute(select(func.count()).where(schema.turns.c.status != "done")).scalar_one())

    def running(self) -> int:
        with self.runtime.store.read() as tx:
            return int(tx.execute(select(func.count()).where(schema.runs.c.status == "running")).scalar_one())

    def wait_until_done(self, patience: float = PATIENCE, *, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Every turn is done. `meanwhile` is called again and again: `rig.restart_the_dead`, say."""

        def done() -> bool:
            meanwhile()
            with contextlib.suppress(Unavailable):
                return self.unfinished() == 0
            return False

        try:
            until(done, "every turn is done", patience=patience, pause=0.1)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.what_is_open()}") from None

    # what can be asked

    def rows(self, table: str, **where: object) -> list[dict[str, Any]]:
        chosen = schema.metadata.tables[table]
        found = select(chosen).where(*(chosen.c[name] == value for name, value in where.items()))
        with self.runtime.store.read() as tx:
            return [dict(row._mapping) for row in tx.execute(found.order_by(*chosen.primary_key.columns))]

    def row(self, table: str, **where: object) -> dict[str, Any]:
        (row,) = self.rows(table, **where)
        return row

    def answer(self, turn_id: str) -> str:
        """What the model said last."""
        run = self.row("turns", id=turn_id)["run_id"]
        return str(self.rows("journal", run_id=run, kind="AssistantTurnCommitted")[-1]["body"]["text"])

    def runs_held_by(self, worker: Worker) -> list[str]:
        """Work that lasts is put on record by the heartbeat."""
        name = worker_name(worker.pid)
        return [row["id"] for row in self.rows("runs", status="running", claim_worker=name)]

    def facts(self, **where: object) -> list[dict[str, Any]]:
        facts = [json.loads(line) for line in whole_lines(self.room / "ledger.jsonl")]
        return [fact for fact in facts if all(fact.get(name) == value for name, value in where.items())]

    def what_is_open(self) -> str:
        lines = [f"queues {self.queue_lengths()}"]
        for table in ("turns", "runs", "calls"):
            still = [
                row for row in self.rows(table) if row["status"] not in {"done", "succeeded", "failed", "cancelled"}
            ]
            lines += [f"{len(still)} open {table}", *(f"  {row}" for row in still[:5])]
        dead = [worker.name for worker in self.workers.values() if not worker.alive]
        return "\n".join([*lines, f"dead workers: {dead}", *self._last_words()])

    def queue_lengths(self) -> dict[str, int]:
        with contextlib.suppress(Exception):
            keys = {name: self.settings.broker_prefix + name for name in ALL_QUEUES}
            return {name: length for name, key in keys.items() if (length := self.redis.llen(key))}
        return {}

    def _last_words(self) -> list[str]:
        return [f"--- {worker.name}\n{worker.said()[-1500:]}" for worker in self.workers.values()]

    def close(self) -> None:
        for worker in self.workers.values():
            if worker.process is not None:
                worker.kill()
        self.model.close()
        self.app.close()
        self.redis.close()
        self.runtime.store.close()


def whole_lines(path: Path) -> list[str]:
    """Without one that is just being written."""
    return path.read_text(errors="replace").rpartition("\n")[0].splitlines() if path.exists() else []


def _environment(settings: dict[str, Any]) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("CHORDAGE_")}
    ours = {
        f"CHORDAGE_{name.upper()}": value if isinstance(value, str) else json.dumps(value)
        for name, value in settings.items()
    }
    return {**inherited, **ours}


@pytest.fixture
def make_rig(tmp_path: Path, start_valkey: Callable[..., WatchedValkey]) -> Iterator[Callable[..., Rig]]:
    """`make_rig(database_url, lease=3)`: a rig without workers yet, on a broker of its own at `rig.broker`."""
    made: list[Rig] = []

    def make(database_url: str, *, appendonly: bool = False, **settings: Any) -> Rig:
        broker = start_valkey(f"broker{len(made)}", appendonly=appendonly)
        folder = tmp_path / f"rig{len(made)}"
        folder.mkdir()
        rig = Rig(folder, database_url, broker.url, **settings)
        rig.broker = broker
        made.append(rig)
        return rig

    yield make
    for rig in made:
        rig.close()
