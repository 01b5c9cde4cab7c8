"""Reading scripts from files, YAML and Python, once until they change."""

from __future__ import annotations

import os
import runpy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from chordage.orchestrator.core import bounds
from chordage.orchestrator.core.errors import ChordageError, RoomError
from chordage.orchestrator.core.model import AssistantSays, Prompt, UserSays
from chordage.orchestrator.core.planning.prompts import plan_round
from chordage.orchestrator.core.transcript import is_note
from chordage.orchestrator.gateways import text_files
from chordage.orchestrator.gateways.models import script_shape
from chordage.orchestrator.gateways.models.script import Asked, Script, ScriptedReply
from chordage.orchestrator.system import user_code

Chooser = Callable[[Prompt, int], ScriptedReply]
"""The reply a script gives to a prompt at an attempt. Only these two may decide: turns move between processes."""


@dataclass(frozen=True, slots=True)
class _Version:
    changed: int
    size: int


class ScriptShelf:
    """The scripts under one folder. A changed file is read again; two threads may both do it, and get the same."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, tuple[_Version, Chooser]] = {}

    def script(self, name: str, *, as_code: bool = False) -> Chooser:
        """`as_code`: whether it may be Python, which is run."""
        path = self._inside(name)
        if path.suffix == ".py" and not as_code:
            raise RoomError(
                f"model 'scripted:{name}' is code to be run: only the agent's own file may name it, as its model or "
                "among its selectable_models"
            )
        try:
            stat = path.stat()
        except OSError as error:
            raise RoomError(
                f"{path}: the script of model 'scripted:{name}' cannot be read: {error.strerror}"
            ) from error
        version = _Version(stat.st_mtime_ns, stat.st_size)
        known = self._read.get(path)
        if known is None or known[0] != version:
            known = self._read[path] = (version, load(path))
        return known[1]

    def _inside(self, name: str) -> Path:
        """Whoever names a model names no file of this machine at will: neither by its path nor through a link."""
        path = self._folder / name
        is_plain = not Path(name).is_absolute() and ".." not in Path(name).parts
        real = Path(os.path.realpath(path))  # resolve() fails on links that lead in a circle
        if not is_plain or not real.is_relative_to(self._folder.resolve()):
            raise RoomError(
                f"model 'scripted:{name}': a script lies in the room, {self._folder.resolve()}: give its path from "
                "there, without '..', and no link that leads out"
            )
        return path


def load(path: Path) -> Chooser:
    """The script in a file. Raises RoomError with file and line."""
    if path.suffix == ".py":
        return _python(path)
    if path.suffix in {".yaml", ".yml"}:
        return _yaml(path)
    raise RoomError(f"{path}: a script is a .yaml or a .py file")


def _yaml(path: Path) -> Chooser:
    try:
        text = text_files.read(path)
        bounds.check_yaml(text, yaml.SafeLoader)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise RoomError(f"{path}:{line}: not valid YAML: {error.problem}") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RoomError(f"{path}: cannot be read as YAML: {error}") from error
    script = _script(node, path)
    return lambda prompt, _attempt: _chosen(script, prompt, path)


def _script(node: yaml.Node | None, path: Path) -> Script:
    parts = _parts(node, path)
    listed = parts.get("replies")
    if not isinstance(listed, yaml.SequenceNode) or not listed.value:
        line = node.start_mark.line + 1 if node else 1
        raise RoomError(f"{path}:{line}: a script is a list of replies, or a mapping with a list under 'replies'")
    return Script(
        replies=tuple(_reply(item, path) for item in listed.value),
        repeat=_plain(parts["repeat"], path) is True if "repeat" in parts else False,
        default=_reply(parts["default"], path) if "default" in parts else None,
    )


def _parts(node: yaml.Node | None, path: Path) -> dict[str, yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        return {"replies": node} if node else {}
    parts = {key.value: value for key, value in node.value}
    for key, value in parts.items():
        if key not in {"replies", "repeat", "default"}:
            line = value.start_mark.line + 1
            raise RoomError(f"{path}:{line}: {key!r} is unknown: choose from replies, repeat, default")
    return parts


def _reply(node: yaml.Node, path: Path) -> ScriptedReply:
    try:
        return script_shape.reply(_plain(node, path))
    except script_shape.BadScript as error:
        raise RoomError(f"{path}:{node.start_mark.line + 1}: {error}") from error


def _plain(node: yaml.Node, path: Path) -> Any:
    builder = yaml.SafeLoader("")
    try:
        return builder.construct_document(node)
    except yaml.MarkedYAMLError as error:
        raise RoomError(f"{path}:{node.start_mark.line + 1}: {error.problem}") from error
    finally:
        builder.dispose()


def _chosen(script: Script, prompt: Prompt, path: Path) -> ScriptedReply:
    user, turn, index = place(prompt)
    asked = Asked(user=user, system=prompt.system, turn=turn, index=index, plan=plan_round(prompt))
    reply = script.choose(asked)
    if reply is None:
        raise RoomError(
            f"{path}: the script has no reply number {index + 1} to {user[:80]!r}:"
            " add it, or 'repeat: true', or a 'default' reply"
        )
    return reply


def place(prompt: Prompt) -> tuple[str, int, int]:
    """The last user text, how many there were, and how often the assistant has spoken since."""
    user, turn, index = "", 0, 0
    for said in prompt.said:
        match said:
            case UserSays(text=text) if not is_note(said):
                user, turn, index = text, turn + 1, 0
            case AssistantSays():
                index += 1
            case _:
                pass
    return user, turn, index


def _python(path: Path) -> Chooser:
    try:
        function = user_code.call(lambda: runpy.run_path(str(path)).get("reply"))
    except SyntaxError as error:
        raise RoomError(f"{path}:{error.lineno}: {error.msg}") from error
    except Exception as error:
        raise RoomError(f"{path}: {type(error).__name__} while it was loaded: {error}") from error
    if not callable(function):
        raise RoomError(f"{path}: the script defines no function reply(prompt, attempt)")
    return lambda prompt, attempt: _called(function, prompt, attempt, path)


def _called(function: Callable[..., Any], prompt: Prompt, attempt: int, path: Path) -> ScriptedReply:
    try:
        return script_shape.reply(user_code.call(lambda: function(prompt, attempt)))
    except script_shape.BadScript as error:
        raise RoomError(f"{path}: what reply() returned: {error}") from error
    except ChordageError:
        raise
    except Exception as error:
        raise RoomError(f"{path}: reply() raised {type(error).__name__}: {error}") from error
