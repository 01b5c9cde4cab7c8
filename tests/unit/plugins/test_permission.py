"""Which calls may run, which are asked about, and which are never shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordage.orchestrator.core.approvals import OnExpiry, ResumeMode
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.phases import BeforeToolExecute, Hook, Resumed, Scope, ShownCall
from chordage.orchestrator.core.plugin_state import Merge, SetState
from chordage.orchestrator.core.verdicts import Block, Exclude, SuspendCall, gate
from chordage.orchestrator.plugins.base import OptionRefused
from chordage.orchestrator.plugins.permission import REMEMBERED, Permission, PermissionRule, parsed_rule

GATE = Hook.BEFORE_TOOL_EXECUTE
LISTS = st.sets(st.sampled_from(["allow", "ask", "deny"]))
WORDS = {Block: "deny", SuspendCall: "ask"}


def a_call(**given):
    call = ShownCall(id="c", ask_id="a", tool="search", **given)
    return BeforeToolExecute(run_id="r", thread_id="t", agent="ada", group=Group.CHAT, call=call)


@pytest.fixture
def verdicts(moment):
    def ask(options, **given):
        return list(Permission(**options).before_tool_execute(moment(GATE, **given)))

    return ask


@pytest.fixture
def answer(verdicts):
    """In a word, what becomes of a call."""

    def ask(options, **given):
        return [WORDS[type(verdict)] for verdict in verdicts(options, **given)] or ["allow"]

    return ask


def test_call_without_a_rule_needs_approval(answer):
    assert answer({}) == ["ask"]


@pytest.mark.parametrize("default", ["allow", "ask", "deny"])
def test_the_default_holds_where_no_rule_does(default, answer):
    assert answer({"default": default, "allow": ["x"], "ask": ["y"], "deny": ["z"]}) == [default]


@given(LISTS, st.sampled_from(["allow", "ask", "deny"]), st.sampled_from(["search", "s*", "search(q=*)"]))
def test_deny_beats_allow_and_allow_beats_ask(lists, default, rule):
    options = {name: [rule] for name in lists} | {"default": default}
    expected = next((name for name in ("deny", "allow", "ask") if name in lists), default)
    verdicts = Permission(**options).before_tool_execute(a_call(arguments={"q": "x"}))

    found = [WORDS[type(one)] for one in verdicts] or ["allow"]

    assert found == [expected]


def test_arguments_decide_where_a_rule_names_them(answer):
    options = {"allow": ["shell(cmd=git *)"], "deny": ["shell(cmd=*push*)"], "default": "ask"}

    assert answer(options, tool="shell", arguments={"cmd": "git log"}) == ["allow"]
    assert answer(options, tool="shell", arguments={"cmd": "git push"}) == ["deny"]
    assert answer(options, tool="shell", arguments={"cmd": "ls"}) == ["ask"]


def test_a_denial_names_the_rule_for_the_model(verdicts):
    (block,) = verdicts({"deny": ["sea*"]})
    assert block.reason == "Permission denied: the rule 'sea*' does not allow this call. Do not try it again."

    (block,) = verdicts({"default": "deny"})
    assert block.reason == "Permission denied: no rule allows this call of search."


def test_the_question_shows_the_call(verdicts):
    (question,) = verdicts({"expires_in": 60, "on_expiry": "escalate"}, arguments={"q": "größe"})

    assert question.prompt == 'May search run with these arguments?\n{\n  "q": "größe"\n}'
    assert (question.resume_mode, question.expires_in) == (ResumeMode.REPLAY, 60)
    assert question.on_expiry is OnExpiry.ESCALATE


def test_question_about_a_long_text_shows_its_beginning(verdicts):
    (question,) = verdicts({}, arguments={"text": "x" * 10_000})

    assert question.prompt.endswith("more characters)")
    assert len(question.prompt) < 2_200


@pytest.mark.parametrize("payload", [None, {}, {"remember": False}, {"remember": "yes"}, "remember", 1])
def test_decision_lets_the_call_pass_once(payload, verdicts):
    assert verdicts({"default": "deny"}, resumed=Resumed(payload)) == []


def test_a_decision_cannot_overrule_a_denial(answer):
    options = {"deny": ["shell(cmd=rm *)"]}
    edited = {"cmd": "rm -rf x"}

    assert answer(options, tool="shell", arguments=edited, resumed=Resumed({"remember": True})) == ["deny"]


def test_an_answer_to_be_remembered_allows_the_tool_in_this_thread(verdicts):
    assert verdicts({}, resumed=Resumed({"remember": True})) == [
        SetState(scope=Scope.THREAD, key=REMEMBERED, value=["search"], merge=Merge.UNION)
    ]


def test_remembered_approval_reaches_no_further_than_its_rule(verdicts):
    options = {"ask": ["sh*(cmd=git *)"]}
    (note,) = verdicts(options, tool="shell", arguments={"cmd": "git push"}, resumed=Resumed({"remember": True}))

    assert note.value == ['shell(cmd="git *")']
    state = {Scope.THREAD: {REMEMBERED: note.value}}
    assert verdicts(options, tool="shell", arguments={"cmd": "git pull"}, state=state) == []
    assert len(verdicts(options, tool="shell", arguments={"cmd": "rm x"}, state=state)) == 1
    assert len(verdicts(options, tool="shoot", arguments={"cmd": "git x"}, state=state)) == 1


def test_a_denial_beats_what_is_remembered(answer):
    assert answer({"deny": ["search"]}, state={Scope.THREAD: {REMEMBERED: ["search"]}}) == ["deny"]


@pytest.mark.parametrize(
    ("options", "hidden"),
    [
        ({}, []),
        ({"deny": ["fs_*", "shell(cmd=*)"]}, ["fs_read", "fs_write"]),
        ({"default": "deny", "allow": ["fs_read(path=/tmp/*)"], "ask": ["search"]}, ["fs_write", "shell"]),
    ],
)
def test_a_tool_that_can_never_run_is_not_shown(options, hidden, moment):
    context = moment(Hook.BEFORE_INFERENCE, tools=("fs_read", "fs_write", "search", "shell"))

    assert list(Permission(**options).before_inference(context)) == ([Exclude(hidden)] if hidden else [])


def test_a_remembered_tool_is_shown_under_a_default_that_denies(moment):
    state = {Scope.THREAD: {REMEMBERED: ["shell"]}}
    context = moment(Hook.BEFORE_INFERENCE, tools=("search", "shell"), state=state)

    assert list(Permission(default="deny").before_inference(context)) == [Exclude(["search"])]


def test_its_question_yields_to_a_block_of_another_plugin(verdicts):
    given = [("permission", one) for one in verdicts({})]

    assert isinstance(gate([*given, ("zz", Block("no"))]).verdict, Block)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"allow": "search"}, "allow: must be a list of rules, each a text; got 'search'"),
        ({"deny": [5]}, "deny: must be a list of rules"),
        ({"ask": ["a b"]}, "ask: 'a b' is no rule; write `tool`"),
        ({"default": "maybe"}, "default: must be one of allow, ask, deny; got 'maybe'"),
        (
            {"expires_in": 0},
            "expires_in: must be a number of seconds, more than 0 and at most 31622400, or left out; got 0",
        ),
        ({"expires_in": True}, "expires_in: must be a number of seconds"),
        ({"expires_in": "1h"}, "expires_in: must be a number of seconds"),
        ({"on_expiry": "default"}, "on_expiry: must be one of deny, cancel_run, escalate; got 'default'"),
    ],
)
def test_a_wrong_option_is_refused_by_name(options, said):
    with pytest.raises(OptionRefused) as refusal:
        Permission(**options)
    assert str(refusal.value).startswith(said)


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
