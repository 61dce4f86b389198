from collections.abc import Mapping
from typing import Final

import click

from loadmanager.cli import (
    attach,
    balancing,
    cluster,
    config,
    decisions,
    demo,
    pipeline,
    running,
    simulate,
    token,
)
from loadmanager.cli.options import SectionedGroup

REMOVED: Final[Mapping[str, str]] = {
    "faults": "`make simulated-faults SEEDS=100` in a checkout of the source",
    "rate-strategies": "`make ratings` in a checkout of the source",
    "spark": "PySpark's own bin/spark-class, as docs/pipeline.md shows",
    "show-commands": "docs/command-line.md, which `make reference` writes in a checkout",
    "cost-model": "`loadmanager pipeline costs`, a report: decisions use no published costs",
    "completion": 'eval "$(_LOADMANAGER_COMPLETE=bash_source loadmanager)", or zsh_, fish_source',
    "namespaces": "`pulsar-admin namespaces`, or /admin/v2/namespaces (docs/rest-api.md)",
    "isolation": "`pulsar-admin ns-isolation-policy`, or /admin/v2/clusters (docs/rest-api.md)",
}
"""What to use instead of commands of former versions."""


@click.group(cls=SectionedGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="loadmanager", message="loadmanager %(version)s")
def main() -> None:
    """Run a load manager for Pulsar-like brokers, and operate it.

    Commands that ask a sidecar take its address from --url, LOADMANAGER_URL or a profile.
    `loadmanager COMMAND -h` shows every option of a command, with an example.
    """


main.removed = REMOVED
main.add_section(
    "Cluster",
    attach.attach_command,
    running.agent,
    cluster.top_command,
    cluster.brokers_command,
    cluster.bundles_command,
    cluster.lookup_command,
    cluster.leader_command,
)
main.add_section(
    "Decisions",
    decisions.decisions_command,
    decisions.tasks_command,
    decisions.explain_command,
    decisions.plan_command,
    decisions.shadows_command,
    cluster.snapshot_command,
    decisions.decide,
)
main.add_section(
    "Operate",
    balancing.drain_command,
    balancing.cordon_command,
    balancing.uncordon_command,
    cluster.unload_command,
    cluster.split_command,
    cluster.merge_command,
    balancing.pause_command,
    balancing.observe_command,
    balancing.resume_command,
    token.token_command,
    config.config_commands,
)
main.add_section(
    "Try",
    demo.demo_command,
    simulate.simulate_command,
    running.broker,
    running.zookeeper_command,
)
main.add_section(
    "Data",
    pipeline.history_group,
    pipeline.pipeline_command,
)
