"""Where an MCP server is: a program to start, or a URL. Of secrets only the variable is in here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import urlsplit

Pairs = tuple[tuple[str, str], ...]
Environ = Mapping[str, str]

URL_BEGINS = ("http://", "https://")


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """Talked to over its standard input and output."""

    kind: ClassVar[str] = "stdio"
    command: str
    args: tuple[str, ...] = ()
    env: Pairs = ()
    env_from: Pairs = ()  # name there, variable here
    cwd: str = "."  # seen from the room

    @property
    def shown(self) -> str:
        """Without the arguments: people put secrets there."""
        return self.command

    def lookups(self) -> Iterator[tuple[str, str]]:
        """Each key that names a variable, with the variable."""
        yield from ((f"env.{name}_env", variable) for name, variable in self.env_from)

    def variables(self, environ: Environ) -> dict[str, str]:
        """What the server finds in its environment besides HOME, PATH, USER and the like."""
        return {**dict(self.env), **{name: environ[variable] for name, variable in self.env_from}}


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """Talked to over streamable HTTP."""

    kind: ClassVar[str] = "http"
    url: str = ""
    url_from: str | None = None
    headers: Pairs = ()
    headers_from: Pairs = ()
    token_from: str | None = None

    @property
    def shown(self) -> str:
        """Without path and query: some services put their key there."""
        if self.url_from:
            return f"${self.url_from}"
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"

    def lookups(self) -> Iterator[tuple[str, str]]:
        if self.url_from:
            yield "url_env", self.url_from
        if self.token_from:
            yield "token_env", self.token_from
        yield from ((f"headers.{name}_env", variable) for name, variable in self.headers_from)

    def target(self, environ: Environ) -> str:
        return environ[self.url_from] if self.url_from else self.url

    def sent_headers(self, environ: Environ) -> dict[str, str]:
        token = {"Authorization": f"Bearer {environ[self.token_from]}"} if self.token_from else {}
        return {**token, **dict(self.headers), **{name: environ[variable] for name, variable in self.headers_from}}


Address = Program | Endpoint
