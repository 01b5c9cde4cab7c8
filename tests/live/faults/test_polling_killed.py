"""Pollers are killed between any two of their commits, and every message becomes exactly one turn.

The full size by hand: POLL_DRILL=500 POLL_DEATHS=80 POLL_DATABASE=sqlite, and this file with -s.
"""

from __future__ import annotations

import os

import pytest

from support.imap_server import a_mail, imap_server
from support.polled_rig import bind, deaths_seen, dying_poll, orders, wait_for_turns
from support.telegram_server import TOKEN, telegram
from support.waiting import until

pytestmark = [pytest.mark.redis, pytest.mark.postgres, pytest.mark.slow]

COUNT = int(os.environ.get("POLL_DRILL", "60"))
DEATHS = int(os.environ.get("POLL_DEATHS", "4"))
DATABASE = os.environ.get("POLL_DATABASE")
QUICK = {"lease": 1, "beat": 0.3, "sweep": 1}
PATIENCE = 120 + COUNT / 5 + 8 * DEATHS


def drilled(rig, say):
    """Some are there before the first poll, and with each death some more come."""
    with dying_poll(rig, orders(DEATHS)):
        said = 0
        for death in range(DEATHS + 1):
            until(lambda: deaths_seen(rig).total() >= death, f"death {death}", patience=PATIENCE)  # noqa: B023
            upto = COUNT * (death + 1) // (DEATHS + 1)
            say(range(said + 1, upto + 1))
            said = upto
        wait_for_turns(rig, COUNT, PATIENCE)
    return sorted(int(row["text"].split()[-1]) for row in rig.rows("turns"))


def arrivals(rig, thread):
    turns = [row for row in rig.rows("turns") if row["thread_id"] == thread]
    return [int(row["text"].split()[-1]) for row in sorted(turns, key=lambda row: row["arrival"])]


def test_telegram_is_polled_through_deaths_with_doubled_and_reordered_updates(make_rig, migrated_database_url):
    rig = make_rig(migrated_database_url(DATABASE or "postgres"), **QUICK)
    with telegram(messy=True) as server:
        config = {"token_env": "BOT", "api_base": server.url, "poll_timeout_sec": 0, "allowed_chat_ids": [0, 1, 2]}
        rig.env["BOT"] = TOKEN
        bind(rig, "phone", "telegram", config)

        got = drilled(rig, lambda numbers: [server.say(f"message {n}", chat=n % 3) for n in numbers])

    print(f"\ntelegram: {len(got)} turns of {COUNT} messages, {dict(deaths_seen(rig))}, {rig.row('polls')}")
    assert got == list(range(1, COUNT + 1))
    for chat in range(3):
        assert arrivals(rig, f"phone:{chat}") == [n for n in range(1, COUNT + 1) if n % 3 == chat]
    assert TOKEN not in (rig.folder / "poll.log").read_text()
    assert rig.row("polls")["taken"] == COUNT


def test_a_mailbox_is_polled_through_deaths_with_mail_that_is_there_twice(make_rig, migrated_database_url):
    rig = make_rig(migrated_database_url(DATABASE or "sqlite"), **QUICK)
    with imap_server(rig.folder) as server:
        bind(rig, "post", "imap", server.config(read_old=True))

        def say(numbers):
            server.drop([mail for n in numbers for mail in [a_mail(n)] * (2 if n % 5 == 0 else 1)])

        got = drilled(rig, say)

    print(f"\nimap: {len(got)} turns of {COUNT} mails, {dict(deaths_seen(rig))}, {rig.row('polls')}")
    assert got == list(range(1, COUNT + 1))
    for friend in range(3):
        wanted = [n for n in range(1, COUNT + 1) if n % 3 == friend]
        assert arrivals(rig, f"post:friend{friend}@example.org") == wanted
    assert rig.row("polls")["taken"] == COUNT
