"""Every resource of the HTTP API, in the order in which people are told of them."""

from typing import Final

from loadmanager.adapters.http.admin.anti_affinity import AntiAffinity
from loadmanager.adapters.http.admin.brokers import Brokers
from loadmanager.adapters.http.admin.configuration import Configuration
from loadmanager.adapters.http.admin.cost_models import CostModels
from loadmanager.adapters.http.admin.decisions import Accounts
from loadmanager.adapters.http.admin.drains import Drains
from loadmanager.adapters.http.admin.failure_domains import FailureDomains
from loadmanager.adapters.http.admin.health import Health
from loadmanager.adapters.http.admin.isolation import Isolation
from loadmanager.adapters.http.admin.merges import Merges
from loadmanager.adapters.http.admin.namespaces import Namespaces
from loadmanager.adapters.http.admin.partitions import Partitions
from loadmanager.adapters.http.admin.plan import Plans
from loadmanager.adapters.http.admin.quotas import Quotas
from loadmanager.adapters.http.admin.splits import Splits
from loadmanager.adapters.http.admin.steering import Steers
from loadmanager.adapters.http.admin.topics import Topics
from loadmanager.adapters.http.admin.unloads import Unloads
from loadmanager.adapters.http.describing import Describing
from loadmanager.adapters.http.lookups import Lookups
from loadmanager.adapters.http.operations import Operation, Resource, operations_of
from loadmanager.adapters.http.watching import Watching

RESOURCES: Final[tuple[type[Resource], ...]] = (
    Lookups,
    Brokers,
    Health,
    Configuration,
    Namespaces,
    Unloads,
    Splits,
    Merges,
    AntiAffinity,
    Topics,
    Partitions,
    Isolation,
    FailureDomains,
    Quotas,
    Drains,
    Steers,
    CostModels,
    Accounts,
    Plans,
    Watching,
    Describing,
)


def surface() -> tuple[Operation, ...]:
    """Return every operation of the API."""
    return operations_of(*RESOURCES)
