"""What an agent's final answer has to be: a JSON Schema, or a pydantic model of the room's own code.

Values are checked as JSON. `problems` names the place of each problem. Whatever else the room's code raises is left to
the caller, who also limits the time it may take.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from chordage.orchestrator.core.output import COMPLAINTS, place
from chordage.orchestrator.gateways.schemas import validator

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic_core import ErrorDetails


class SchemaForm:
    def __init__(self, schema: dict[str, Any]) -> None:
        self.schema = schema
        self.name = "the output schema"

    def problems(self, value: Any) -> list[str]:
        from jsonschema.exceptions import best_match  # heavy: only its users pay for it

        errors = islice(validator(self.schema).iter_errors(value), COMPLAINTS + 1)
        worst = [best_match([error]) for error in errors]  # of several alternatives, the one that was nearly met
        return [f"{place(list(error.absolute_path))}: {error.message}" for error in worst if error is not None]


class ModelForm:
    """Raises what pydantic raises when the model cannot be described."""

    def __init__(self, model: type[BaseModel]) -> None:
        from chordage.orchestrator.gateways.tools.arguments import TerseSchema  # pydantic is heavy

        self._model = model
        self.schema = model.model_json_schema(schema_generator=TerseSchema)
        self.name = f"model {model.__module__}:{model.__qualname__}"

    def problems(self, value: Any) -> list[str]:
        from pydantic import ValidationError

        try:
            # As JSON, not as Python: a strict date is then a string and not a date.
            self._model.model_validate_json(json.dumps(value))
        except ValidationError as error:
            details = error.errors(include_url=False, include_context=False, include_input=False)
            return [_problem(detail, value) for detail in details]
        return []


def _problem(detail: ErrorDetails, value: Any) -> str:
    missing = detail["type"] == "missing"
    return f"{place(_in_the_value(detail['loc'], value, missing=missing))}: {detail['msg']}"


def _in_the_value(loc: Sequence[str | int], value: Any, *, missing: bool) -> list[str | int]:
    """The path without the alternatives of unions that pydantic names between the keys."""
    path: list[str | int] = []
    for number, part in enumerate(loc, 1):
        if isinstance(value, dict) and part in value:
            value = value[str(part)]
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        elif not (missing and number == len(loc)):
            continue
        path.append(part)
    return path
