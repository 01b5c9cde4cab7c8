"""OpenAI's API against its own part of the schema, by machine."""

from __future__ import annotations

import subprocess
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chordage.orchestrator import views
from chordage.orchestrator.core.status import TurnStatus
from chordage.orchestrator.runtime import Runtime
from chordage.workers import local
from support.draws import examples

pytestmark = [pytest.mark.redis, pytest.mark.slow]


@contextmanager
def worked_on(rt: Runtime) -> Iterator[None]:
    """Turns are carried out as they come."""
    is_over = threading.Event()

    def work() -> None:
        while not is_over.wait(0.05):
            for line in views.turns(rt.store, status=TurnStatus.QUEUED):
                local.carry_out(rt, local.begin(rt, views.turn(rt.store, line.turn_id)))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def test_no_request_makes_the_server_fail_or_answer_what_it_does_not_document(client, rt, tmp_path):
    """Left out: that everything the schema allows is accepted, and the header Allow, in which Starlette names the
    methods of one route alone. Ten examples of each operation (of four, none was accepted), and 30 with TEST_DRAW=all.
    """
    first = client.post("/v1/responses", json={"model": "ada", "input": "hello", "background": True}).json()["id"]
    config = tmp_path / "schemathesis.toml"
    config.write_text(f'[parameters]\n"body.model" = "ada"\nresponse_id = "{first}"\nname = "ada"\n')
    program = Path(sysconfig.get_path("scripts"), "schemathesis")
    bounds = ["--seed", "1", "--max-examples", str(examples(30)), "--phases", "examples,coverage,fuzzing"]
    bounds += ["--suppress-health-check", "too_slow"]  # which says something of the machine alone
    options = [
        *bounds,
        "--exclude-checks",
        "positive_data_acceptance,allow_header_conformance",
        "--no-color",
        "--include-path-regex",
        "^/v1/",
    ]
    command = [program, "--config-file", config, "run", f"{client.base_url}/openapi.json", *options]
    with worked_on(rt):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)  # noqa: S603

    assert done.returncode == 0, done.stdout + done.stderr
    assert len(views.turns(rt.store, limit=1000)) > 1, "it has come past the door"
