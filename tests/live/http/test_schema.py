"""The API against its own OpenAPI schema, by machine."""

from __future__ import annotations

import json
import subprocess
import sysconfig
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from chordage.config.settings import Settings
from chordage.orchestrator import views
from chordage.orchestrator.core.errors import Unavailable
from chordage.orchestrator.core.message import CALLERS
from chordage.orchestrator.core.status import TurnStatus
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store.database import Store
from chordage.tasks.accepting import accept, decide, step
from chordage.workers import local
from chordage.workers.bootstrap import runtime_from
from chordage.workers.doctor.examining import doctor_of
from support import asking_room
from support.draws import ALL, draw, examples, is_drawn
from support.following import SilentStreams
from support.web_server import finish, served, server_with, with_database

pytestmark = pytest.mark.redis

LONGEST = 600  # seconds after which a run hangs


class Nobody:
    """A courier that sends nothing."""

    def send(self, intents: object) -> None: ...


REFUSALS = """
[checks]
negative_data_rejection.expected-statuses = [400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 428, 429]
"""


MADE_UP, THERE = "made up", "of what is there"
ON_EITHER = [
    [("sqlite", MADE_UP), pytest.param("postgres", THERE, marks=pytest.mark.postgres)],
    [("sqlite", THERE), pytest.param("postgres", MADE_UP, marks=pytest.mark.postgres)],
]


def drawn_pairs() -> list[Any]:
    """A run tries each kind of ids on one of the databases."""
    return sum(ON_EITHER, []) if draw() == ALL else ON_EITHER[is_drawn("each kind of ids on the other database", 2)]


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "ids"), drawn_pairs(), indirect=["backend"])
def test_the_api_keeps_what_its_schema_promises(settings, database_url, tmp_path, ids):
    """Schemathesis with a fixed seed: no 5xx, no status that is not documented, no answer of another form. A turn that
    is waited for is carried out on the spot, so that 200 is seen too. Beside the cases that cover the schema, each
    operation gets four examples, and twelve with TEST_DRAW=all.

    Left out: that everything the schema allows is accepted. Rules between fields are no part of the schema.
    """
    settings = with_database(settings, database_url)
    (settings.room_path / "agent.toml").unlink()
    asking_room.write(settings.room_path)
    (settings.room_path / "chores").mkdir()
    (settings.room_path / "chores" / "water.md").write_text("Water the plants.")
    rt = runtime_from(settings, with_redis=False)

    def wait(turn_id: str, _seconds: float, _gave_up: object) -> views.TurnView:
        local.carry_out(rt, local.begin(rt, views.turn(rt.store, turn_id)))
        turn = views.turn(rt.store, turn_id)
        if turn.status is not TurnStatus.DONE:
            raise Unavailable("it is not due yet")
        return turn

    app = server_with(
        rt=rt,
        accept=partial(accept, rt, Nobody()),
        turn=partial(views.turn, rt.store),
        wait=wait,
        inbox=partial(views.inbox, rt.store),
        decide=partial(decide, rt, Nobody()),
        result=partial(views.result, rt.store),
        step=partial(step, rt, Nobody()),
        send=Nobody().send,
        streams=SilentStreams(),
        events=SilentStreams(),
        bounds=rt.bounds,
        doctor=doctor_of(settings, rt.store, room=list, now=rt.now),
    )
    with served(app) as client:
        known = _overrides(_seeded(client, rt)) if ids == THERE else ""
        (tmp_path / "schemathesis.toml").write_text(known + REFUSALS)
        program = Path(sysconfig.get_path("scripts"), "schemathesis")
        bounds = ["--seed", "1", "--max-examples", str(examples(12)), "--phases", "coverage,fuzzing"]
        bounds += ["--request-timeout", "60", "--suppress-health-check", "too_slow"]  # of a busy machine
        options = [*bounds, "--exclude-checks", "positive_data_acceptance", "--no-color", "--warnings", "off"]
        command = [program, "run", f"{client.base_url}/openapi.json", *options]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=LONGEST)
    rt.store.close()

    assert done.returncode == 0, done.stdout + done.stderr
    assert views_seen(settings) > 3, "it has come past the door"


def _seeded(client: httpx.Client, rt: Runtime) -> dict[str, Any]:
    """Ids of a stepped turn that is held, a run that is done, a call, a question and a thread."""
    done = client.post("/turns", json={"text": "hello", "thread_id": "t"}).json()["turn_id"]
    finish(rt, done)
    waiting = asking_room.waiting_turn(rt, "send", space=CALLERS)
    (question, _) = views.inbox(rt.store)
    stepped = client.post("/turns", json={"text": "deploy", "control": "step"}).json()["turn_id"]
    client.post(f"/turns/{stepped}/steps", json={"verb": "next"})
    local.carry_out(rt, local.begin(rt, views.turn(rt.store, stepped)))
    return {
        "turn_id": stepped, "run_id": waiting.run_id, "call_id": question.call_id, "question_id": question.id,
        "thread_id": "api:t",
    }  # fmt: skip


def _overrides(ids: dict[str, Any]) -> str:
    """Names of groups, agents and work are not set: one name serves for all three."""
    lines = [f'"path.{name}" = {json.dumps(value)}' for name, value in ids.items()]
    return "\n".join(["[parameters]", *lines, ""])


def views_seen(settings: Settings) -> int:
    store = Store(settings.database)
    seen = len(views.turns(store, limit=1000))
    store.close()
    return seen
