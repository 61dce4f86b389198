from typing import Final

from loadmanager.adapters.http.describing import Describing
from loadmanager.adapters.http.health_listener import Health, Watching
from loadmanager.adapters.http.lookups import Lookups
from loadmanager.adapters.http.operations import Operation, Resource, operations_of
from loadmanager.admin.brokers import BalancingModes, Brokers, Configuration, Drains
from loadmanager.admin.bundles import Splits, Unloads
from loadmanager.admin.decisions import Decisions, Plans
from loadmanager.admin.isolation import FailureDomains, Isolation
from loadmanager.admin.namespaces import AntiAffinity, Namespaces, Quotas
from loadmanager.admin.overview import Overviews
from loadmanager.admin.topics import Partitions, Topics

RESOURCES: Final[tuple[type[Resource], ...]] = (
    Lookups,
    Brokers,
    Health,
    Configuration,
    Namespaces,
    Unloads,
    Splits,
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
