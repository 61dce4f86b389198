from collections.abc import Mapping
from typing import Final

import click

from loadmanager.cli.attach import attach_command
from loadmanager.cli.balancing import (
    drain_command,
    observe_command,
    pause_command,
    resume_command,
)
from loadmanager.cli.cluster import (
    brokers_command,
    leader_command,
    lookup_command,
    snapshot_command,
)
from loadmanager.cli.config import config_commands
from loadmanager.cli.decisions import (
    decide,
    decisions_command,
    explain_command,
    plan_command,
    shadows_command,
    tasks_command,
)
from loadmanager.cli.demo import demo_command
from loadmanager.cli.namespaces import (
    bundles_command,
    merge_command,
    split_command,
    unload_command,
)
from loadmanager.cli.options import SectionedGroup
from loadmanager.cli.pipeline import history_group, pipeline_command
from loadmanager.cli.running import agent, broker, zookeeper_command
from loadmanager.cli.simulate import simulate_command
from loadmanager.cli.token import token_command
from loadmanager.cli.top import top_command

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


@click.group(
    cls=SectionedGroup,
    removed=REMOVED,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="loadmanager", message="loadmanager %(version)s")
def main() -> None:
    """Run a load manager for Pulsar-like brokers, and operate it.

    Commands that ask a sidecar take its address from --url, LOADMANAGER_URL or a profile.
    `loadmanager COMMAND -h` shows every option of a command, with an example.
    """


main.add_section(
    "Cluster",
    attach_command,
    agent,
    top_command,
    brokers_command,
    bundles_command,
    lookup_command,
    leader_command,
)
main.add_section(
    "Decisions",
    decisions_command,
    tasks_command,
    explain_command,
    plan_command,
    shadows_command,
    snapshot_command,
    decide,
)
main.add_section(
    "Operate",
    drain_command,
    unload_command,
    split_command,
    merge_command,
    pause_command,
    observe_command,
    resume_command,
    token_command,
    config_commands,
)
main.add_section(
    "Try",
    demo_command,
    simulate_command,
    broker,
    zookeeper_command,
)
main.add_section(
    "Data",
    history_group,
    pipeline_command,
)
