"""Keys that end in `_env` name a variable; its value stands under the key without that ending, at any depth."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chordage.orchestrator.gateways.room.files import Source

ENDING = "_env"
_SECRET = re.compile(r"token|secret|password|passwd|api_?key|authorization", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Environ:
    """`secrets` fills with every value that was looked up, or stands under a name of a secret: none may be shown."""

    source: Source
    variables: Mapping[str, str]
    secrets: set[str] = field(default_factory=set)

    def resolved(self, values: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in values.items():
            if key.endswith(ENDING) and key != ENDING:
                self._look_up(found, values, (*path, key), value)
            else:
                found[key] = self._inner(value, (*path, key))
                if isinstance(value, str) and value and _SECRET.search(key):
                    self.secrets.add(value)
        return found

    def _inner(self, value: Any, path: tuple[str, ...]) -> Any:
        match value:
            case dict():
                return self.resolved(value, path)
            case list():
                return [self._inner(member, path) for member in value]
            case _:
                return value

    def _look_up(self, found: dict[str, Any], beside: Mapping[str, Any], path: tuple[str, ...], variable: Any) -> None:
        key = path[-1].removesuffix(ENDING)
        if not isinstance(variable, str) or not variable.strip():
            self.source.complain(path, f"must be the name of an environment variable; got {variable!r}")
        elif key in beside:
            self.source.complain(path, f"there is {key} too; keep one of the two")
        elif not (value := self.variables.get(variable)):
            self.source.complain(path, f"the environment variable {variable} is not set; set it, and start again")
        else:
            self.secrets.add(value)
            found[key] = value
