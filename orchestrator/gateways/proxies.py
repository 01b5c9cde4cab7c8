"""Which proxy a request goes through, by the usual variables of the environment.

HTTPS_PROXY, HTTP_PROXY and ALL_PROXY name it, NO_PROXY lists hosts that are reached directly; lower case wins. This
machine itself is always reached directly.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from chordage.orchestrator.core.errors import ConfigError

LOCAL = {"localhost", "127.0.0.1", "::1"}


def proxy_of(environ: Mapping[str, str], url: str) -> str | None:
    """The address of the proxy, or None for a direct connection. Raises ConfigError for one of an unknown kind."""
    parts = urlsplit(url)
    scheme, host = parts.scheme, parts.hostname or ""
    proxy = _variable(environ, f"{scheme}_proxy") or _variable(environ, "all_proxy")
    port = parts.port or {"http": 80, "https": 443}.get(scheme)
    if not proxy or host in LOCAL or _is_listed((host, f"{host}:{port}"), _variable(environ, "no_proxy")):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if not proxy.startswith("http://"):
        raise ConfigError(
            f"the proxy {proxy.split('@')[-1]} for {scheme} addresses cannot be used:"
            f" set {scheme.upper()}_PROXY to one that starts with http://"
        )
    return proxy


def _is_listed(targets: tuple[str, ...], listed: str) -> bool:
    """A name covers itself and everything below it, with or without a leading dot or star."""
    names = [name.strip().lower() for name in listed.split(",") if name.strip()]
    domains = [name.removeprefix("*").removeprefix(".") for name in names]
    return "*" in names or any(t == name or t.endswith(f".{name}") for t in targets for name in domains)


def _variable(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name) or environ.get(name.upper()) or ""
