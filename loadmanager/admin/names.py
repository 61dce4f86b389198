"""Names in paths as the core's own."""

from loadmanager.adapters.http.operations import Call
from loadmanager.core.ids import BrokerId, Namespace, parse_broker, parse_namespace


def namespace_in(call: Call) -> Namespace:
    """Return the namespace that a path names by ``tenant`` and ``namespace``."""
    return parse_namespace(f"{call.path['tenant']}/{call.path['namespace']}")


def broker_in(call: Call) -> BrokerId:
    """Return the broker that a path names."""
    return parse_broker(call.path["broker"])
