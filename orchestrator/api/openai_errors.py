"""Errors as OpenAI writes them, made of the problem documents that the rest of the API answers with."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from chordage.orchestrator.api import problems
from chordage.orchestrator.api.guards import JsonRoute, with_rates
from chordage.orchestrator.core.errors import UserError

TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
CODES = {"urn:chordage:problem:unknown_agent": "model_not_found"}
PARAMS = {"agent": "model"}  # what OpenAI calls a field of ours
KEPT_HEADERS = frozenset({"retry-after", "www-authenticate", "ratelimit", "ratelimit-policy"})


class OpenAIRefusal(UserError):
    """The request asks for what an agent does not have."""

    def __init__(self, message: str, *, code: str, param: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.param = param
        self.status = status


class OpenAIRoute(JsonRoute):
    """A route whose errors, those of its dependencies too, have OpenAI's form. Every answer has an `x-request-id`.
    Clients of OpenAI add parameters of their own to the address.
    """

    takes_unknown_parameters = True

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_as_openai(request: Request) -> Response:
            try:
                response = await handle(request)
            except OpenAIRefusal as refusal:
                response = error(refusal.status, str(refusal), code=refusal.code, param=refusal.param)
            except Exception as fault:
                response = problems.answer_to(request, fault)
            if response.media_type == problems.MEDIA_TYPE:
                response = _converted(response)
            response.headers["x-request-id"] = f"req_{uuid.uuid4().hex}"
            return with_rates(request, response)

        return handle_as_openai


def _converted(response: Response) -> Response:
    problem = json.loads(bytes(response.body))
    kind, kept = problem["type"], {name: value for name, value in response.headers.items() if name in KEPT_HEADERS}
    code, field = CODES.get(kind, kind.rpartition(":")[2]), problem.get("field")
    return error(problem["status"], problem["detail"], code=code, param=PARAMS.get(field, field), headers=kept)


def error(
    status: int, message: str, *, code: str, param: str | None = None, headers: dict[str, str] | None = None
) -> JSONResponse:
    kind = TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    content = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return JSONResponse(content, status_code=status, headers=headers)


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """These statuses, as OpenAPI describes them. What is refused before it is routed has a problem document."""
    text = {"type": "string"}
    nullable = {"type": ["string", "null"]}
    members = {"message": text, "type": text, "param": nullable, "code": nullable}
    schema = {
        "type": "object",
        "properties": {"error": {"type": "object", "properties": members, "required": list(members)}},
        "required": ["error"],
    }
    before = problems.documented(*statuses)
    return {
        status: {
            "description": HTTPStatus(status).phrase,
            "content": {"application/json": {"schema": schema}, **before[status]["content"]},
        }
        for status in statuses
    }
