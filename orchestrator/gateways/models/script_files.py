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
from chordage.orchestrator.core.model import Prompt
from chordage.orchestrator.gateways import text_files
from chordage.orchestrator.gateways.models.script import BadScript, Chooser, PromptPosition, Script, ScriptedReply
from chordage.orchestrator.system import user_code


@dataclass(frozen=True, kw_only=True, slots=True)
class _ReadScript:
    path: Path
    version: tuple[int, int]  # time and size of the file
    chooser: Chooser


class ScriptFolder:
    """The scripts under one folder. A changed file is read again; two threads may both do it, and get the same."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, _ReadScript] = {}

    def script(self, name: str, *, as_code: bool = False) -> Chooser:
        """`as_code`: whether it may be Python, which is run."""
        known = self._read.get(name)
        if known is None or self._is_linked(known.path):
            self._check_inside(name)
        path = self._folder / name if known is None else known.path
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
        version = (stat.st_mtime_ns, stat.st_size)
        if known is None or known.version != version:
            known = self._read[name] = _ReadScript(path=path, version=version, chooser=load(path))
        return known.chooser

    def _is_linked(self, path: Path) -> bool:
        """Whether a link below the folder is on the way to it. Without one it is inside, and need not be resolved."""
        while path != self._folder:
            if path.is_symlink():
                return True
            path = path.parent
        return False

    def _check_inside(self, name: str) -> None:
        """A model's name must not open any file of this machine: neither by its path nor through a link."""
        path = self._folder / name
        is_plain = not Path(name).is_absolute() and ".." not in Path(name).parts
        real = Path(os.path.realpath(path))  # resolve() fails on links that lead in a circle
        if not is_plain or not real.is_relative_to(self._folder.resolve()):
            raise RoomError(
                f"model 'scripted:{name}': a script must be inside the room, {self._folder.resolve()}: give its path "
                "from there, without '..', and no link that leads out"
            )


def load(path: Path) -> Chooser:
    """The script in a file. Raises RoomError with file and line."""
    if path.suffix == ".py":
        return _load_python(path)
    if path.suffix in {".yaml", ".yml"}:
        return _load_yaml(path)
    raise RoomError(f"{path}: a script is a .yaml or a .py file")


def _load_yaml(path: Path) -> Chooser:
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

    def choose(prompt: Prompt, _attempt: int) -> ScriptedReply:
        position = PromptPosition.of(prompt)
        reply = script.choose(position)
        if reply is None:
            raise RoomError(
                f"{path}: the script has no reply number {position.index + 1} to {position.user[:80]!r}:"
                " add it, or 'repeat: true', or a 'default' reply"
            )
        return reply

    return choose


def _script(node: yaml.Node | None, path: Path) -> Script:
    parts: dict[str, Any] = {"replies": node}  # nodes, which know their lines
    if isinstance(node, yaml.MappingNode):
        parts = {key.value: value for key, value in node.value}
        for key, value in parts.items():
            if key not in {"replies", "repeat", "default"}:
                line = value.start_mark.line + 1
                raise RoomError(f"{path}:{line}: {key!r} is unknown: choose from replies, repeat, default")
    replies = parts.get("replies")
    if not isinstance(replies, yaml.SequenceNode) or not replies.value:
        line = node.start_mark.line + 1 if node else 1
        raise RoomError(f"{path}:{line}: a script is a list of replies, or a mapping with a list under 'replies'")
    return Script(
        replies=tuple(_reply(item, path) for item in replies.value),
        repeat=_plain(parts["repeat"], path) is True if "repeat" in parts else False,
        default=_reply(parts["default"], path) if "default" in parts else None,
    )


def _reply(node: yaml.Node, path: Path) -> ScriptedReply:
    try:
        return ScriptedReply.of(_plain(node, path))
    except BadScript as error:
        raise RoomError(f"{path}:{node.start_mark.line + 1}: {error}") from error


def _plain(node: yaml.Node, path: Path) -> Any:
    builder = yaml.SafeLoader("")
    try:
        return builder.construct_document(node)
    except yaml.MarkedYAMLError as error:
        raise RoomError(f"{path}:{node.start_mark.line + 1}: {error.problem}") from error
    finally:
        builder.dispose()


def _load_python(path: Path) -> Chooser:
    try:
        function: Callable[..., Any] | None = user_code.call(lambda: runpy.run_path(str(path)).get("reply"))
    except SyntaxError as error:
        raise RoomError(f"{path}:{error.lineno}: {error.msg}") from error
    except Exception as error:
        raise RoomError(f"{path}: {type(error).__name__} while it was loaded: {user_code.words_of(error)}") from error
    if not callable(function):
        raise RoomError(f"{path}: the script defines no function reply(prompt, attempt)")

    def choose(prompt: Prompt, attempt: int) -> ScriptedReply:
        try:
            return ScriptedReply.of(user_code.call(lambda: function(prompt, attempt)))
        except BadScript as error:
            raise RoomError(f"{path}: what reply() returned: {error}") from error
        except ChordageError:
            raise
        except Exception as error:
            raise RoomError(f"{path}: reply() raised {type(error).__name__}: {user_code.words_of(error)}") from error

    return choose
