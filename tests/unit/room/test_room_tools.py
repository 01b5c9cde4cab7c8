"""From import paths in agent.toml to tools, and every way in which that can fail."""

from __future__ import annotations

import sys
import zipfile

import pytest

from chordage import RoomError
from chordage.orchestrator.core.agent import AgentSpec
from support.plain_room import agent_faults


def agent_with(folder, *paths):
    listed = "".join(f'  "{path}",\n' for path in paths)
    folder.agent(f'model = "m"\ntools = [\n{listed}]\n')
    room = folder.open()
    return room, room.get(None)


def names(folder, *paths):
    room, agent = agent_with(folder, *paths)
    return list(room.toolbox.specs(agent))


def fault(folder, *paths):
    room, agent = agent_with(folder, *paths)
    with pytest.raises(RoomError) as refusal:
        room.toolbox.specs(agent)
    return str(refusal.value)


def test_one_tool_or_all_of_a_module(folder, tools_file):
    assert names(folder, "my_tools:search") == ["search"]
    assert names(folder, "my_tools") == ["search", "count"]
    assert names(folder, "my_tools:count", "my_tools") == ["count", "search"]


def test_the_builtin_tools_have_a_short_name(folder):
    long = "chordage.orchestrator.gateways.tools.builtin:calculate"
    assert names(folder, "builtin:calculate") == names(folder, long) == ["calculate"]
    assert {"calculate", "clock_now", "sleep"} <= set(names(folder, "builtin"))


def test_a_package_may_collect_tools_of_its_modules(folder, tools_file):
    tools_file.rename((folder.path / "kit").mkdir() or folder.path / "kit" / "inner.py")
    folder.write("kit/__init__.py", "from kit.inner import search\nfrom kit.inner import search as again\n")
    assert names(folder, "kit") == ["search"]
    assert names(folder, "kit.inner:count") == ["count"]


def test_missing_module_is_reported_with_its_neighbour(folder, tools_file):
    said = fault(folder, "builtin:sleep", "my_toolz:search")
    assert said.startswith(
        "agent.toml:4: tools: 'my_toolz:search': there is no module my_toolz; did you mean my_tools?"
    )
    assert f"put my_toolz.py into {folder.path}, or install it" in said


def test_missing_submodule_is_reported(folder, tools_file):
    assert "there is no module my_tools.deep" in fault(folder, "my_tools.deep:search")


def test_missing_attribute_is_reported_with_its_neighbour(folder, tools_file):
    assert fault(folder, "my_tools:serch") == (
        "agent.toml:3: tools: 'my_tools:serch': module my_tools has no 'serch'; did you mean search?"
    )


def test_function_without_tool_is_reported(folder, tools_file):
    assert fault(folder, "my_tools:plain") == (
        "agent.toml:3: tools: 'my_tools:plain': plain is a function and not a tool; put @tool above it. "
        "Of tools, there are: count, search"
    )


def test_decorator_above_tool_is_reported(folder):
    folder.write(
        "wrapped.py",
        "import functools\nfrom chordage import tool\n"
        "def loud(f):\n    @functools.wraps(f)\n    def inner(x: int):\n        return f(x)\n    return inner\n"
        "@loud\n@tool\ndef add(x: int) -> int:\n    return x\n",
    )
    assert "another decorator above @tool, which would be left out; make @tool the topmost" in fault(
        folder, "wrapped:add"
    )


def test_module_without_tools_is_reported(folder):
    folder.write("bare.py", "def plain(): ...\n")
    assert "module bare has no tools; put @tool above the functions" in fault(folder, "bare")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import nothing_like_this\n", "raised ModuleNotFoundError: No module named 'nothing_like_this' ("),
        ("\n\n1 / 0\n", "raised ZeroDivisionError: division by zero ("),
        ("def broken(:\n", "raised SyntaxError: invalid syntax"),
        ("raise SystemExit(3)\n", "raised SystemExit: 3 ("),
        ("from chordage import tool\n@tool\ndef f(x): ...\n", "raised RoomError: tool f ("),
    ],
)
def test_failing_module_is_reported_with_the_line_in_it(folder, source, said):
    file = folder.write("failing.py", source)
    message = fault(folder, "failing:f")
    assert f"importing module failing {said}" in message
    assert file.name in message


@pytest.mark.parametrize("path", ["my_tools:", ":search", "my tools:x", "./my_tools.py", "a:b:c", ".my_tools"])
def test_invalid_import_path_is_reported(folder, tools_file, path):
    assert "this is no import path; write module:function, or module for all its tools" in fault(folder, path)


def test_B40_two_tools_of_one_name_are_reported(folder, tools_file):
    folder.write("more.py", "from chordage import tool\n@tool\ndef search(q: str) -> str:\n    return q\n")
    said = fault(folder, "my_tools", "more:search")
    assert said.startswith("agent.toml:4: tools: 'more:search' is called search like 'my_tools'; ")
    assert "@tool(name=...)" in said


def test_a_failed_import_is_tried_again_once_it_is_mended(folder):
    folder.write("late.py", "1 / 0\n")
    room, agent = agent_with(folder, "late:f")
    with pytest.raises(RoomError):
        room.toolbox.specs(agent)
    folder.write("late.py", "from chordage import tool\n@tool\ndef f() -> None: ...\n")
    assert list(room.toolbox.specs(agent)) == ["f"]


def test_a_definition_from_elsewhere_is_named_by_its_agent(folder):
    folder.agent()
    stranger = AgentSpec(name="stranger", model="m", tools=("missing_module",))
    with pytest.raises(RoomError, match=r"^agent stranger: tools: 'missing_module': there is no module"):
        folder.open().toolbox.specs(stranger)


def test_check_reports_files_and_python(folder, tools_file):
    folder.agent('model = "m"\ntools = ["my_tools:nothing"]')
    folder.agent("oops", "agents/broken.toml")
    folder.agent('model = "m"\ntools = ["my_tools"]', "agents/good.toml")
    said = [fault.partition(": ")[0] for fault in agent_faults(folder.path)]
    assert said == ["agents/broken.toml:1", "agent.toml:2"]


def test_definitions_alone_import_nothing(folder, tools_file):
    _room, agent = agent_with(folder, "my_tools")
    assert agent.tools == ("my_tools",)
    assert "my_tools" not in sys.modules


def test_file_with_a_taken_name_is_reported_and_not_confused(folder):
    folder.write("random.py", "from chordage import tool\n@tool\ndef roll() -> int:\n    return 4\n")
    said = fault(folder, "random:roll")
    assert f"{folder.path / 'random.py'} cannot be imported, because there is another module random (" in said
    assert "rename yours" in said


def test_file_with_the_name_of_a_builtin_module_is_reported(folder):
    folder.write("time.py", "")
    assert "there is another module time (built into Python); rename yours" in fault(folder, "time:sleep")


def test_file_with_the_name_of_a_zipped_package_is_reported(folder, tmp_path):
    with zipfile.ZipFile(tmp_path / "site.zip", "w") as archive:
        archive.writestr("zipped.py", "")
    sys.path.insert(0, str(tmp_path / "site.zip"))
    folder.write("zipped.py", "")
    said = fault(folder, "zipped")
    del sys.modules["zipped"]
    assert "site.zip" in said
    assert "rename yours" in said


def test_a_linked_file_is_the_rooms_own(folder, tools_file, tmp_path):
    real = tools_file.rename(tmp_path / "elsewhere.py")
    (folder.path / "linked.py").symlink_to(real)
    assert names(folder, "linked:search") == ["search"]


def test_the_room_comes_last_on_the_path_and_once(folder):
    folder.agent()
    folder.open()
    folder.open()
    assert sys.path[-1] == str(folder.path)
    assert sys.path.count(str(folder.path)) == 1


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("import json\n\njson.loads('x')\n", 3),
        ("from chordage import tool\n\n\n@tool(timeout=-1)\ndef f(n: int) -> int:\n    return n\n", 4),
        ("def f(:\n", 1),
    ],
)
def test_the_line_of_the_user_is_named_and_none_of_ours(folder, text, line):
    file = folder.write(f"raising_tools_{line}.py", text)
    folder.agent(f'model = "m"\ntools = ["raising_tools_{line}"]')
    (fault,) = agent_faults(folder.path)
    assert f"({file}:{line})" in fault
    assert "orchestrator" not in fault


def test_the_line_of_a_plugin_that_raises_when_it_is_imported_is_named(folder):
    file = folder.write("raising_plugins.py", "x = 1\nraise RuntimeError('no')\n")
    folder.agent('model = "m"\n[[plugins]]\nuse = "raising_plugins:Mine"')
    (fault,) = agent_faults(folder.path)
    assert f"importing module raising_plugins raised RuntimeError: no ({file}:2)" in fault
