from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit

from loadmanager.core.ids import BrokerId


def is_loopback(host: str) -> bool:
    name = host.strip("[]").rstrip(".").casefold()
    if name == "localhost":
        return True
    try:
        address = ip_address(name.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def host_of(url: str) -> str:
    """Return the host of a URL or of ``host:port``, without brackets; empty if it has none."""
    try:
        return urlsplit(url if "://" in url else f"//{url}").hostname or ""
    except ValueError:
        return ""


def is_http_url(text: str, *, without_path: bool = False) -> bool:
    try:
        parts = urlsplit(text)
        sound = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return sound and not (without_path and (parts.path.strip("/") or parts.query))


@lru_cache(maxsize=4096)
def _is_here(address: str) -> bool:
    # Each sidecar calls it twice a second for its URL; on a loopback address for all brokers.
    return is_loopback(host_of(address))


def unreachable(url: str, brokers: Iterable[BrokerId]) -> str:
    """Return why the sidecars of ``brokers`` cannot reach the sidecar at ``url``, else "".

    A broker whose id is not a loopback address may be on another host, where a loopback URL
    refers to that host itself.
    """
    if not _is_here(url):
        return ""
    elsewhere = sorted(broker for broker in brokers if not _is_here(broker))
    if not elsewhere:
        return ""
    return (
        f"[sidecar] advertised_url is {url}, a loopback address, and broker {elsewhere[0]} may be "
        "on another host; expected a URL that the other hosts reach (set [sidecar] "
        "advertised_url, or listen_host)"
    )
