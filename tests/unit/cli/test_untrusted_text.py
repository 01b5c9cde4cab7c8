"""What strangers wrote, in every column it may stand in, shown by every command: nothing of it acts on the terminal."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

import pytest
from sqlalchemy import String, Text, update

from chordage.config.settings import load
from chordage.orchestrator import stages
from chordage.orchestrator.core.channels import source_of
from chordage.orchestrator.store import polls, schema, schema_version
from chordage.orchestrator.store.contents import Contents
from chordage.tasks.schema import request_from
from chordage.workers import local
from chordage.workers.bootstrap import runtime_from
from support import asking_room
from support.on_terminal import on_a_terminal, one_after_another

NASTY = "\x1b]52;c;cm0gLXJm\x07\x1b[2J\x9b1A\rall is well\u202e\u2066\x00"[:-1]
STYLE = re.compile(r"\x1b\[[0-9;]*m")  # our own colours
ACTIVE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
WRITTEN_BY_OTHERS = {
    "turns": ("text", "detail", "tenant"),
    "runs": ("detail", "kept_detail"),
    "calls": ("content", "progress", "tool"),
    "suspensions": ("prompt", "tool"),
    "outbox": ("error",),
    "decisions": ("reason",),
}
COMMANDS = (
    ["turns"], ["threads"], ["inbox"], ["deliveries"], ["channels", "chat"], ["pulse"], ["hooks"], ["groups"],
    ["status"], ["show", "TURN"], ["trace", "TURN"], ["show", "THREAD"], ["show", "ANSWERED"], ["trace", "ANSWERED"],
    ["show", NASTY], ["cancel", "ANSWERED"], ["check"], ["why"], ["why", "TURN"], ["keys", "list"],
)  # fmt: skip


@pytest.fixture
def ids(tmp_path):
    """Of a turn that waits for a decision, its thread, and a turn that is answered, all of them spoilt."""
    room = asking_room.write(tmp_path / "room")
    (room / "channels.toml").write_text('[channels.chat]\nplugin = "telegram"\n[channels.chat.config]\nowner = 3\n')
    (room / "tasks").mkdir()
    (room / "tasks" / "a.md").write_text(f'---\nid: abcd2345\ntitle: "T\u202e"\nstatus: {NASTY[5:]}\n---\nDo it.\n')
    rt = runtime_from(load(room=room), with_redis=False)
    schema_version.upgrade(rt.store)
    waiting = asking_room.waiting_turn(rt, "deploy", thread_id="t", meta={NASTY: NASTY})
    request = request_from(
        {"text": "hello", "reply_target": {"url": "https://example.com/"}}, source="test", space=None
    )
    answered = stages.admit(rt, request)[0].turn_id
    local.complete(rt, answered, on_wait=lambda turn: None)
    with rt.store.write() as tx:
        for table, columns in WRITTEN_BY_OTHERS.items():
            chosen = schema.metadata.tables[table]
            for name in columns:
                assert isinstance(chosen.c[name].type, String | Text | Contents), f"{table}.{name}"
                tx.execute(update(chosen).values({name: NASTY}))
        polls.refuse(tx, source_of("chat"), NASTY, why=NASTY, excerpt=NASTY, now=datetime.now(UTC))
    yield {"room": room, "TURN": waiting.turn_id, "THREAD": "t", "ANSWERED": answered}
    rt.store.close()


def test_no_command_lets_foreign_text_act_on_a_terminal(ids):
    commands = [[str(ids.get(word, word)) for word in command] for command in COMMANDS]
    for command, (code, lines) in zip(COMMANDS, one_after_another(ids["room"], commands), strict=True):
        shown = STYLE.sub("", "\n".join(lines))
        assert code in {0, 1, 2, 3}, command
        assert shown.strip(), command
        assert not ACTIVE.search(shown), (command, ACTIVE.search(shown))


def test_json_quotes_foreign_text_exactly_and_harmlessly(ids, monkeypatch, capsysbinary):
    from click.testing import CliRunner

    from chordage.workers.cli import main

    monkeypatch.chdir(ids["room"])
    for command in (["turns"], ["show", "TURN"], ["trace", "TURN"], ["inbox"], ["deliveries"]):
        said = CliRunner().invoke(main, [*(str(ids.get(word, word)) for word in command), "--json"]).stdout
        assert not ACTIVE.search(said), command
        assert NASTY in json.dumps(json.loads(said), ensure_ascii=False) or NASTY in _strings(json.loads(said)), command


def _strings(value: object) -> set[str]:
    match value:
        case dict():
            return set().union(*map(_strings, [*value, *value.values()])) if value else set()
        case list():
            return set().union(*map(_strings, value)) if value else set()
        case str():
            return {value}
        case _:
            return set()


def test_turn_carried_out_here_shows_the_reply_as_text(tmp_path):
    room = asking_room.write(tmp_path / "room")
    (room / "script.yaml").write_text('- text: "one \\e]0;root\\a two \\u202e three"\n')
    lines = on_a_terminal(room, "invoke", "hello")
    assert any("one \\x1b]0;root\\x07 two \\u202e three" in line for line in lines)
