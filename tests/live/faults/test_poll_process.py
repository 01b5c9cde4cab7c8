"""`chordage poll` as a process: what it says when there is nothing to do, how it ends, and what `channels` shows."""

from __future__ import annotations

import json
import signal
import subprocess
import time

import pytest

from support.polled_rig import CHORDAGE, bind, log_text, poll, wait_for_turns
from support.rig import Rig
from support.telegram_server import TOKEN, telegram
from support.waiting import until

pytestmark = [pytest.mark.redis, pytest.mark.slow]


def command(rig: Rig, *words: str) -> subprocess.CompletedProcess[str]:
    options = {"env": rig.env, "cwd": rig.folder, "capture_output": True, "text": True, "timeout": 150}
    return subprocess.run([*CHORDAGE, *words], check=False, **options)


def test_it_polls_mirrors_shows_and_ends_in_the_middle_of_a_long_poll(make_rig, migrated_database_url):
    rig = make_rig(migrated_database_url("sqlite"))
    nothing = command(rig, "poll")
    assert nothing.returncode == 1
    assert "there is nothing to poll: write" in nothing.stderr

    with telegram() as server:
        rig.env["BOT"] = TOKEN
        config = {"token_env": "BOT", "api_base": server.url, "poll_timeout_sec": 30, "allowed_chat_ids": [5]}
        bind(rig, "broken", "telegram", {"token_env": "NOT_THERE"})
        with poll(rig) as process:
            until(
                lambda: "a channel is not polled" in log_text(rig),
                "what is broken is said, and it waits for its mending",
            )
            bind(rig, "phone", "telegram", config)
            server.say("hello")
            server.say("y" * 300_000)
            wait_for_turns(rig, 1, 90)
            until(lambda: rig.row("polls")["refused"], "the other is refused")
            mirror = until(lambda: (shown := read(rig.room / "poll" / "phone.json")) and shown["taken"] and shown, "it")
            shown = json.loads(command(rig, "channels", "--json").stdout)
            until(lambda: len(server.asked) > 1, "the next long poll is on")
            process.send_signal(signal.SIGTERM)
            began = time.monotonic()
            assert process.wait(60) == 0
            assert time.monotonic() - began < 20, "before the end of the poll, which takes 30 s"

    assert (mirror["binding"], mirror["taken"], mirror["error"]) == ("phone", 1, None)
    broken, phone = shown["channels"]
    assert (phone["state"], phone["taken"], phone["refusals"][0]["key"]) == ("looking", 1, "42")
    assert broken["state"] == "broken"
    assert "NOT_THERE is not set" in shown["faults"][0]
    assert "a channel is not polled" in log_text(rig)
    assert TOKEN not in log_text(rig)
    assert rig.row("polls")["holder"] is None, "another may look at once"


def read(path):
    return json.loads(path.read_text()) if path.exists() else None
