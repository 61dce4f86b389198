from typing import Final

from loadmanager.adapters.http.describing import Describing
from loadmanager.adapters.http.health import Health, Watching
from loadmanager.adapters.http.lookups import Lookups
from loadmanager.adapters.http.operations import Operation, Resource, operations_of
from loadmanager.admin.anti_affinity import AntiAffinity
from loadmanager.admin.balancing import BalancingModes
from loadmanager.admin.brokers import Brokers
from loadmanager.admin.configuration import Configuration
from loadmanager.admin.decisions import Decisions
from loadmanager.admin.drains import Drains
from loadmanager.admin.failure_domains import FailureDomains
from loadmanager.admin.isolation import Isolation
from loadmanager.admin.merges import Merges
from loadmanager.admin.namespaces import Namespaces
from loadmanager.admin.overview import Overviews
from loadmanager.admin.partitions import Partitions
from loadmanager.admin.plan import Plans
from loadmanager.admin.quotas import Quotas
from loadmanager.admin.splits import Splits
from loadmanager.admin.topics import Topics
from loadmanager.admin.unloads import Unloads

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
    BalancingModes,
    Overviews,
    Decisions,
    Plans,
    Watching,
    Describing,
)


def surface() -> tuple[Operation, ...]:
    return operations_of(*RESOURCES)
