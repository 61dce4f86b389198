"""Names and addresses of hosts, judged by their text: nothing is looked up."""

from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    """Return whether ``host`` is the machine it is used on: ``localhost`` or a loopback address."""
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
