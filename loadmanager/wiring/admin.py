from functools import partial

from loadmanager.adapters.http.assign_client import HttpAssignClient
from loadmanager.adapters.http.operations import Resource
from loadmanager.adapters.http.routes import Route
from loadmanager.adapters.http.topics_client import HttpTopicsClient
from loadmanager.admin.anti_affinity import AntiAffinity
from loadmanager.admin.balancing import BalancingModes
from loadmanager.admin.brokers import Brokers
from loadmanager.admin.configuration import Configuration
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
from loadmanager.config import Config
from loadmanager.config.model import chroot_of
from loadmanager.leader.preview import preview_round
from loadmanager.wiring.application import Application


def admin_routes(
    config: Config, context: Context, application: Application, leader_line: HttpAssignClient
) -> list[Route]:
    """Beside a Pulsar broker, its own admin REST has namespaces, topics and policies."""
    cluster = config.cluster.name
    topics = Topics(context, HttpTopicsClient(leader_line))
    partitions = Partitions(application.answering, PartitionRequests(context)).routes()
    resources: list[Resource] = [
        Brokers(context, cluster, topics),
        Configuration(application.dynamic, internal_configuration(config)),
        Unloads(application.unload_requests.unload),
        Drains(application.drain_requests),
        BalancingModes(BalancingModeRequests(context)),
        Overviews(application.overviews.overview),
        Decisions(application.explainer),
        Plans(partial(preview_round, application.leading)),
    ]
    if config.broker.kind == "pulsar":
        partitions = [route for route in partitions if route.method == "GET"]
    else:
        resources += _resources_of_namespaces(config, context, application, topics)
    return [*(route for resource in resources for route in resource.routes()), *partitions]


def _resources_of_namespaces(
    config: Config, context: Context, application: Application, topics: Topics
) -> list[Resource]:
    cluster, leading = config.cluster.name, application.leading
    unload, settings = application.unload_requests.unload, application.settings
    return [
        Namespaces(
            application.answering,
            NamespaceRequests(context, leading, cluster),
            default_bundles=config.cluster.default_bundles,
        ),
        Splits(application.split_requests.split, lambda: settings.now.split_policy.algorithm),
        Merges(application.merge_requests.merge),
        AntiAffinity(context, cluster),
        topics,
        Isolation(context, leading, unload, cluster),
        FailureDomains(context, cluster),
        Quotas(),
    ]


def internal_configuration(config: Config) -> dict[str, str]:
    servers = config.zookeeper.hosts
    return {
        "zookeeperServers": servers,
        "configurationStoreServers": servers,
        "metadataStoreUrl": f"zk:{servers}{chroot_of(config)}",
    }
