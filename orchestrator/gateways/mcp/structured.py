"""Structured content, checked against the schema that its server declares for it, within bounds: both are foreign."""

from __future__ import annotations

from typing import Any

import structlog

from chordage.orchestrator.core import bounds
from chordage.orchestrator.gateways.schemas import BadPattern, TooCostly, check_schema, validator

log = structlog.get_logger()


def fault_of(content: Any, schema: dict[str, Any], tool: str) -> str | None:
    """None also where it cannot be said: the content is then what the server says it is."""
    from jsonschema.exceptions import SchemaError, best_match
    from referencing.exceptions import Unresolvable

    if bounds.fault_of_value(schema, most_bytes=bounds.SCHEMA_BYTES) is not None:
        log.warning("structured content is not checked: its schema is too large", tool=tool)
        return None
    checks = validator(schema, foreign=True)
    try:
        check_schema(schema, checks)
        worst = best_match(checks.iter_errors(content))
    except SchemaError as error:
        return f"its schema is none: {error.message}"
    except BadPattern as error:
        return f"its schema is none: {error}"
    except Unresolvable as error:
        return f"its schema has a reference that leads nowhere: {error.ref}"
    except (TooCostly, RecursionError):
        log.warning("structured content is not checked: it would take too long", tool=tool)
        return None
    return None if worst is None else str(worst)
