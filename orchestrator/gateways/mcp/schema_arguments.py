"""Arguments checked against the JSON Schema that a server gives for a tool, and handed on as they came.

References to other documents are not followed: the schema comes from outside, and a look-up would go where it says.
What cannot be checked for that reason is left to the server, which checks for itself.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from chordage.orchestrator.gateways.schemas import validator
from chordage.orchestrator.gateways.tools.arguments import COMPLAINTS, Arguments, Unfit

TEXT_LIMIT = 300


class SchemaArguments(Arguments):
    """`schema` None: the server's list is not at hand, and the server will say what is wrong."""

    def __init__(self, schema: dict[str, Any] | None) -> None:
        self.schema = schema or {"type": "object", "properties": {}}
        self._is_known = schema is not None

    def fit(self, given: dict[str, Any]) -> dict[str, Any]:
        if self._is_known and (complaints := self._complaints_about(given)):
            raise Unfit("\n".join(complaints))
        return {"arguments": given}

    def _complaints_about(self, given: dict[str, Any]) -> list[str]:
        from referencing.exceptions import Unresolvable

        try:
            found = [_line(error) for error in self._validator.iter_errors(given)]
        except Unresolvable:
            return []
        more = [f"- and {len(found) - COMPLAINTS} more"] if len(found) > COMPLAINTS else []
        return found[:COMPLAINTS] + more

    @cached_property
    def _validator(self) -> Any:
        return validator(self.schema, of_its_own=True)


def _line(error: Any) -> str:
    where = ".".join(str(part) for part in error.absolute_path)
    text = error.message if len(error.message) <= TEXT_LIMIT else f"{error.message[:TEXT_LIMIT]}..."
    return f"- {where}: {text}" if where else f"- {text}"
