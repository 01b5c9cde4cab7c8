"""Rules of a permission list: how they are written, and of which calls they speak."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordage.orchestrator.plugins.permission import PermissionRule, parsed_rule


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("search", PermissionRule("search")),
        ("  fs_*  ", PermissionRule("fs_*")),
        ("shell(cmd=git *)", PermissionRule("shell", (("cmd", "git *"),))),
        ("copy(source=/tmp/*, target=/srv/*)", PermissionRule("copy", (("source", "/tmp/*"), ("target", "/srv/*")))),
        ('shell(cmd="a, (b)")', PermissionRule("shell", (("cmd", "a, (b)"),))),
        (r'shell(cmd="say \"hi\" \\ there")', PermissionRule("shell", (("cmd", r'say "hi" \ there'),))),
        ('shell(cmd="")', PermissionRule("shell", (("cmd", ""),))),
    ],
)
def test_a_rule_is_read(text, rule):
    assert parsed_rule(text) == rule


@pytest.mark.parametrize(
    "text", ["", " ", "two words", "shell(", "shell()", "shell(cmd)", "shell(cmd=)", "shell(=x)", "shell(a=b c=d)x",
             'shell(cmd="x)', "shell(cmd=a(b)", "shell(1a=b)"],
)  # fmt: skip
def test_what_is_no_rule_is_refused_with_the_form_of_one(text):
    with pytest.raises(ValueError, match=r"is no rule; write `tool` or `tool\(argument=glob, ...\)`"):
        parsed_rule(text)


@given(st.lists(st.tuples(st.from_regex(r"[a-z_]\w{0,5}", fullmatch=True), st.text())))
def test_a_rule_that_is_written_down_is_read_as_the_same_rule(conditions):
    rule = PermissionRule("tool", tuple(conditions))

    assert parsed_rule(str(rule)) == rule


@pytest.mark.parametrize(
    ("rule", "arguments", "fits"),
    [
        ("shell", {}, True),
        ("sh*", {"cmd": "ls"}, True),
        ("Shell", {}, False),
        ("shell(cmd=git *)", {"cmd": "git push"}, True),
        ("shell(cmd=git *)", {"cmd": "GIT push"}, False),
        ("shell(cmd=git *)", {"cmd": "rm; git push"}, False),
        ("shell(cmd=*)", {}, False),
        ("shell(cmd=*)", {"cmd": "a\nb"}, True),
        ("shell(count=5)", {"count": 5}, True),
        ("shell(count=5)", {"count": 50}, False),
        ("shell(force=true)", {"force": True}, True),
        ("shell(to=null)", {"to": None}, True),
        ('shell(to="*\\"root\\"*")', {"to": ["me", "root"]}, True),
        ("shell(a=1, b=2)", {"a": 1, "b": 3}, False),
    ],
)
def test_a_rule_speaks_of_the_calls_that_fit_all_of_it(rule, arguments, fits):
    assert parsed_rule(rule).fits("shell", arguments) == fits


def test_a_rule_can_be_narrowed_to_one_tool():
    narrowed = parsed_rule("fs_*(path=/tmp/*)").for_tool("fs_[x]")

    assert str(narrowed) == 'fs_[[]x](path="/tmp/*")'
    assert narrowed.fits("fs_[x]", {"path": "/tmp/a"})
    assert not narrowed.fits("fs_x", {"path": "/tmp/a"})
