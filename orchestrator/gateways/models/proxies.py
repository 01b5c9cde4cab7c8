"""Which proxy a request goes through, by the usual variables of the environment.

HTTPS_PROXY, HTTP_PROXY and ALL_PROXY name it, NO_PROXY lists hosts that are reached directly; lower case wins. This
machine itself is always reached directly.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address

from chordage.orchestrator.core.errors import ConfigError

_DIRECT = ("localhost", "127.0.0.1", "[::1]")


def proxy_by_pattern(environ: Mapping[str, str]) -> dict[str, str | None]:
    """URL patterns as httpx mounts them, each with the proxy's address, or None for a direct connection."""
    proxies = {f"{scheme}://": url for scheme in ("http", "https") if (url := _proxy(environ, scheme))}
    without = [host.strip() for host in _variable(environ, "no_proxy").split(",") if host.strip()]
    if not proxies or "*" in without:
        return {}
    return {**proxies, **{_pattern(host): None for host in (*without, *_DIRECT)}}


def _proxy(environ: Mapping[str, str], scheme: str) -> str:
    url = _variable(environ, f"{scheme}_proxy") or _variable(environ, "all_proxy")
    url = url if "://" in url or not url else f"http://{url}"
    if url and not url.startswith("http://"):
        raise ConfigError(
            f"the proxy {url.split('@')[-1]} for {scheme} addresses cannot be used:"
            f" set {scheme.upper()}_PROXY to one that starts with http://"
        )
    return url


def _variable(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name) or environ.get(name.upper()) or ""


def _pattern(host: str) -> str:
    try:
        address = ip_address(host)
    except ValueError:
        # "*example.com" in httpx's words is the domain and everything below it.
        return f"all://{host}" if host in _DIRECT else f"all://*{host.removeprefix('*').removeprefix('.')}"
    return f"all://[{address}]" if address.version == 6 else f"all://{address}"
