"""Text of strangers on its way to a terminal, and into a log."""

from __future__ import annotations

import io
import json
import logging
import re
import sys

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from chordage.config import log
from chordage.orchestrator.core.inert import inert, inert_json, inert_line

ACTIVE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
NASTY = {
    "clipboard": "\x1b]52;c;cm0gLXJm\x07",
    "title": "\x1b]0;root#\x1b\\",
    "clear": "\x1b[2J\x1b[H",
    "c1": "\x9b31m\x9d0;x\x9c",
    "overwrite": "denied\rapproved",
    "bidi": "user\u202etxt.exe\u202c\u2066x\u2069",
    "separator": "a\u2028b\u2029c\x85d\x0be\x0cf",
    "half a character": "\ud83d",
    "hidden": "\u200b\ufeff\U000e0041",
    "backspace": "yes\b\b\bno\x7f",
}


@pytest.mark.parametrize("text", NASTY.values(), ids=list(NASTY))
def test_nothing_that_acts_on_a_terminal_is_left_and_all_of_it_is_shown(text):
    for shown in (inert(text), inert_line(text)):
        assert not ACTIVE.search(shown)
        assert re.sub(r"\\(x..|u....|U........|r)", "", shown) == ACTIVE.sub("", text).replace("\U000e0041", "")


@given(st.text())
def test_any_text_is_inert_and_json_is_equivalent(text):
    assert not ACTIVE.search(inert(text))
    assert "\n" not in inert_line(text)
    document = inert_json(json.dumps({"text": text}, ensure_ascii=False))
    assert not ACTIVE.search(document)
    assert json.loads(document) == {"text": text}
    inert(text).encode()


def test_plain_text_is_unchanged():
    for text in ("a\n\tb", "Ä ł 日本 👩\u200d💻", "नमस्\u200dते", "C:\\new"):
        assert inert(text) == text
    assert (inert("a\r\nb"), inert_line("a\nb")) == ("a\nb", "a\\nb")


@pytest.fixture
def logged(monkeypatch):
    """What a log in words looks like on a terminal."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    out = io.StringIO()
    out.isatty = lambda: False
    monkeypatch.setattr(sys, "stderr", out)
    log.configure("INFO", "text")
    yield out
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def test_log_line_is_one_line_whatever_its_content(logged):
    structlog.get_logger("a").warning("refused\x1b[2J", why="no\n2026-01-01 [error] forged", key={"k": "\u202e\x1b"})
    logging.getLogger("b").warning("of %s", "another\r\n[error] library\x1b]52;c;x\x07")

    lines = logged.getvalue().splitlines()
    assert len(lines) == 2
    assert not ACTIVE.search(logged.getvalue().replace("\n", ""))


def test_a_traceback_in_a_log_is_inert_and_no_line_of_it_begins_like_one_of_the_log(logged):
    fault = ValueError("no\n2026-01-01T00:00:00Z [error] forged\x1b[2J")
    structlog.get_logger("a").error("failed", exc_info=fault)

    first, *rest = logged.getvalue().splitlines()
    assert "failed" in first
    assert "forged\\x1b[2J" in "".join(rest)
    assert all(line.startswith("  ") for line in rest)
