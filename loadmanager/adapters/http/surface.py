"""Every resource of the HTTP API, in the order in which people are told of them."""

from typing import Final

from loadmanager.adapters.http.admin.accounts import Accounts
from loadmanager.adapters.http.admin.drains import Drains
from loadmanager.adapters.http.admin.health import Health
from loadmanager.adapters.http.admin.namespaces import Namespaces
from loadmanager.adapters.http.admin.partitions import Partitions
from loadmanager.adapters.http.admin.splits import Splits
from loadmanager.adapters.http.admin.unloads import Unloads
from loadmanager.adapters.http.describing import Describing
from loadmanager.adapters.http.lookups import Lookups
from loadmanager.adapters.http.operations import Operation, operations_of
from loadmanager.adapters.http.watching import Watching

RESOURCES: Final[tuple[type, ...]] = (
    Lookups,
    Partitions,
    Health,
    Namespaces,
    Unloads,
    Splits,
    Drains,
    Accounts,
    Watching,
    Describing,
)


def surface() -> tuple[Operation, ...]:
    """Return every operation of the API."""
    return operations_of(*RESOURCES)
