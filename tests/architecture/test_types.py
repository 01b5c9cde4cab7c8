"""Types are checked strictly, everywhere."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.repository import check_with


@pytest.mark.slow
def test_mypy_finds_nothing():
    check_with("mypy")


PROGRAM = """
import chordage
from chordage import Context, tool
from chordage.plugins import Plugin


@tool(effect="pure")
def add(one: int, other: int, ctx: Context) -> int:
    return one + other


reveal_type(add(1, 2, Context.__new__(Context)))
reveal_type(chordage.client)
client = chordage.client(room="here")
for message in client.runner("Hello"):
    reveal_type(message.text)
over_http = chordage.Client(key="k")
reveal_type(over_http.ask("Hello").answer)
reveal_type(over_http.runner("Hello").turn_id)
for question in over_http.inbox():
    reveal_type(over_http.decide(question, "approve").duplicate)


async def follow(client: chordage.AsyncClient) -> None:
    async for event in client.stream(await client.submit("Hello")):
        reveal_type(event.id)
    async for held in await client.runner("Hello"):
        reveal_type(held.asks)
"""


@pytest.mark.slow
def test_a_program_that_uses_us_is_typed_after_an_editable_install(tmp_path):
    """From another folder, without the settings of this repository: what a user's type checker sees."""
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "program.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    revealed = [line.partition("Revealed type is ")[2] for line in done.stdout.splitlines() if "Revealed" in line]

    assert done.returncode == 0, done.stdout
    assert [kind for kind in revealed if "Any" in kind and "Client" not in kind] == []
    assert revealed[0] == '"int"'
    assert revealed[1].endswith('-> chordage.workers.client.client.FleetClient"')
