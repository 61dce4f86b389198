"""The routes of the admin REST, built on the application."""

from loadmanager.adapters.http.assign_client import HttpAssignClient
from loadmanager.adapters.http.routes import Route
from loadmanager.adapters.http.topics_client import HttpTopicsClient
from loadmanager.admin.anti_affinity import AntiAffinity
from loadmanager.admin.balancing import BalancingModes
from loadmanager.admin.brokers import Brokers
from loadmanager.admin.configuration import Configuration
from loadmanager.admin.cost_models import CostModels
from loadmanager.admin.decisions import Decisions
from loadmanager.admin.drains import Drains
from loadmanager.admin.failure_domains import FailureDomains
from loadmanager.admin.isolation import Isolation
from loadmanager.admin.merges import Merges
from loadmanager.admin.namespaces import NamespaceRequests, Namespaces
from loadmanager.admin.overview import Overviews
from loadmanager.admin.partitions import Partitions
from loadmanager.admin.plan import Plans
from loadmanager.admin.quotas import Quotas
from loadmanager.admin.splits import Splits
from loadmanager.admin.topics import PartitionRequests, Topics
from loadmanager.admin.unloads import Unloads
from loadmanager.common.balancing_mode import BalancingModeRequests
from loadmanager.common.context import Context
from loadmanager.common.cost_model_watch import CostModelRequests
from loadmanager.config import Config
from loadmanager.config.model import chroot_of
from loadmanager.leader.preview import PreviewRequests
from loadmanager.wiring.application import Application


def admin_routes(
    config: Config, context: Context, application: Application, leader_line: HttpAssignClient
) -> list[Route]:
    """Return the routes of the admin REST of one sidecar."""
    if config.broker.kind == "pulsar":
        return _routes_beside_pulsar(config, context, application, leader_line)
    cluster, lookup = config.cluster.name, application.answering
    settings = application.settings
    namespaces = NamespaceRequests(context, application.leading, cluster)
    topics = Topics(context, HttpTopicsClient(leader_line))
    resources = (
        Brokers(context, cluster, topics),
        Configuration(application.dynamic, internal_configuration(config)),
        Namespaces(lookup, namespaces, default_bundles=config.cluster.default_bundles),
        Unloads(application.unload_requests.unload),
        Splits(application.split_requests.split, lambda: settings.now.split_policy.algorithm),
        Merges(application.merge_requests.merge),
        AntiAffinity(context, cluster),
        topics,
        Partitions(lookup, PartitionRequests(context)),
        Isolation(context, application.leading, application.unload_requests.unload, cluster),
        FailureDomains(context, cluster),
        Quotas(context),
        Drains(application.drain_requests),
        BalancingModes(BalancingModeRequests(context)),
        CostModels(CostModelRequests(context, cluster)),
        Overviews(application.overviews.overview),
        Decisions(application.accounting),
        Plans(PreviewRequests(application.leading).plan),
    )
    return [route for resource in resources for route in resource.routes()]


def _routes_beside_pulsar(
    config: Config, context: Context, application: Application, leader_line: HttpAssignClient
) -> list[Route]:
    """Return the routes of the admin REST beside a Pulsar broker.

    Namespaces, topics and policies are Pulsar's own: they are read and changed through its
    brokers' admin REST, not here.
    """
    cluster = config.cluster.name
    resources = (
        Brokers(context, cluster, Topics(context, HttpTopicsClient(leader_line))),
        Configuration(application.dynamic, internal_configuration(config)),
        Unloads(application.unload_requests.unload),
        Drains(application.drain_requests),
        BalancingModes(BalancingModeRequests(context)),
        CostModels(CostModelRequests(context, cluster)),
        Overviews(application.overviews.overview),
        Decisions(application.accounting),
        Plans(PreviewRequests(application.leading).plan),
    )
    partitions = Partitions(application.answering, PartitionRequests(context)).routes()
    return [
        *(route for resource in resources for route in resource.routes()),
        *(route for route in partitions if route.method == "GET"),
    ]


def internal_configuration(config: Config) -> dict[str, str]:
    """Return the addresses of the cluster's metadata, by Pulsar's names of the settings."""
    servers = config.zookeeper.hosts
    return {
        "zookeeperServers": servers,
        "configurationStoreServers": servers,
        "metadataStoreUrl": f"zk:{servers}{chroot_of(config)}",
    }
