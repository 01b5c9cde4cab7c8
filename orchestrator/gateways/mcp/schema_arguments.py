"""Arguments checked against the JSON Schema that a server gives for a tool, and handed on as they came.

The schema comes from outside. References to other documents are not followed, for a look-up would go where it says; and
a check takes so many steps and no more, or one argument could hold up the worker. What cannot be checked for either
reason is left to the server, which checks for itself.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import structlog

from chordage.orchestrator.gateways.schemas import TooCostly, validator
from chordage.orchestrator.gateways.tools.arguments import COMPLAINTS, Arguments, Unfit

log = structlog.get_logger()

TEXT_LIMIT = 300
MOST_COUNTED = 1000  # complaints


class SchemaArguments(Arguments):
    """`schema` None: the server's list is not at hand, and the server will say what is wrong."""

    def __init__(self, schema: dict[str, Any] | None, tool: str = "") -> None:
        self._tool = tool
        self.schema = schema or {"type": "object", "properties": {}}
        self._is_known = schema is not None

    def fit(self, given: dict[str, Any]) -> dict[str, Any]:
        if self._is_known and (complaints := self._complaints_about(given)):
            raise Unfit("\n".join(complaints))
        return {"arguments": given}

    def _complaints_about(self, given: dict[str, Any]) -> list[str]:
        from referencing.exceptions import Unresolvable

        try:
            errors = validator(self.schema, foreign=True).iter_errors(given)
            found = [_line(error) for error in islice(errors, MOST_COUNTED)]
        except Unresolvable:
            return []
        except (TooCostly, RecursionError):
            log.warning("arguments are not checked: it would take too long; the server does it", tool=self._tool)
            return []
        more = [f"- and {len(found) - COMPLAINTS} more"] if len(found) > COMPLAINTS else []
        return found[:COMPLAINTS] + more


def _line(error: Any) -> str:
    where = ".".join(str(part) for part in error.absolute_path)
    text = error.message if len(error.message) <= TEXT_LIMIT else f"{error.message[:TEXT_LIMIT]}..."
    return f"- {where}: {text}" if where else f"- {text}"
