from asyncio import BaseTransport
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Final

from aiohttp import web

from loadmanager.adapters.http.replies import Refused

READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_FORWARDED: Final = frozenset({"forwarded", "via", "x-real-ip"})
_MOST_CACHED: Final = 4_096
_FORWARDED_PREFIXES: Final = ("x-forwarded-", "x-envoy-")
# Each such name contains one of these: searching all names at once is faster.
_IN_FORWARDED: Final = ("forwarded", "via", "x-real-ip", "x-envoy-")


@dataclass(frozen=True, slots=True)
class OwnNames:
    """The host names of this sidecar, in lower case; ``local`` are those of this host alone."""

    local: frozenset[str] = frozenset()
    advertised: frozenset[str] = frozenset()

    def is_local(self, host: str) -> bool:
        return (
            host in self.local
            or host == "localhost"
            or host.endswith(".localhost")
            or is_loopback_address(host)
        )

    def is_own(self, host: str) -> bool:
        """Return whether others cannot make the name resolve to this sidecar.

        An address is not resolved, so it is always safe.
        """
        return self.is_local(host) or host in self.advertised or _is_address(host)


@lru_cache(_MOST_CACHED)
def is_loopback_address(text: str) -> bool:
    try:
        address = ip_address(text)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def is_loopback_peer(transport: BaseTransport | None) -> bool:
    peer = None if transport is None else transport.get_extra_info("peername")
    return isinstance(peer, tuple) and bool(peer) and is_loopback_address(str(peer[0]))


@lru_cache(_MOST_CACHED)
def host_of(authority: str) -> str:
    """Return the host in ``host:port`` or ``[host]:port``, in lower case."""
    host = authority.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].removesuffix(".")


def asked_hosts(request: web.BaseRequest) -> tuple[str, ...]:
    """Return the hosts that a request names as its destination; none if it names none."""
    named = tuple(map(host_of, request.headers.getall("Host", [])))
    if request.raw_path.startswith("/"):
        return named
    # An absolute target overrides the header; neither may name another host.
    return *named, host_of(request.raw_path.partition("://")[2].partition("/")[0])


def is_forwarded(request: web.BaseRequest) -> bool:
    names = "\n".join(request.headers).lower()
    if not any(part in names for part in _IN_FORWARDED):
        return False
    for header in request.headers:
        name = header.lower()
        if name in _FORWARDED or name.startswith(_FORWARDED_PREFIXES):
            return True
    return False


def refuse_foreign_hosts(hosts: tuple[str, ...], names: OwnNames) -> None:
    """Refuse a request with any host that is not this sidecar's.

    A web page can send requests here under a name of its own site (DNS rebinding). Raises
    `Refused`: one of the hosts is not this sidecar's.
    """
    for host in hosts:
        if not names.is_own(host):
            raise Refused(
                403,
                f"Host {host!r} is no name of this sidecar; ask it as localhost, add the name to "
                "[sidecar] local_names, or send a token",
            )


def refuse_foreign_page(request: web.BaseRequest, names: OwnNames) -> None:
    """Refuse a change that a browser's headers show to be sent by a page of another site."""
    if request.method in READING:
        return
    if request.headers.get("Sec-Fetch-Site", "").strip().lower() == "cross-site":
        raise Refused(403, "Sec-Fetch-Site: cross-site; pages of other sites may change nothing")
    for origin in request.headers.getall("Origin", []):
        scheme, _, authority = origin.strip().lower().partition("://")
        own = scheme in {"http", "https"} and names.is_own(host_of(authority))
        if not own or authority != request.headers.get("Host", "").strip().lower():
            raise Refused(
                403, f"Origin {origin!r} is not this sidecar's; pages of others may change nothing"
            )


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
