"""The command line."""

import click

from loadmanager.cli.agent import agent
from loadmanager.cli.broker import broker
from loadmanager.cli.cluster import brokers_command, leader_command, lookup_command
from loadmanager.cli.completion import completion_command
from loadmanager.cli.config import config_commands
from loadmanager.cli.cost_model import cost_model_group
from loadmanager.cli.decide import decide
from loadmanager.cli.decisions import decisions_command, plan_command
from loadmanager.cli.demo import demo_command
from loadmanager.cli.dynamic import get_command, set_command, show_command, unset_command
from loadmanager.cli.faults import faults_command
from loadmanager.cli.history import history_group
from loadmanager.cli.isolation import isolation_commands
from loadmanager.cli.leader import explain_command, snapshot_command
from loadmanager.cli.namespaces import (
    bundles_command,
    merge_command,
    namespaces_commands,
    split_command,
)
from loadmanager.cli.pipeline import pipeline_command
from loadmanager.cli.rating import rate_strategies_command
from loadmanager.cli.reference import show_commands_command
from loadmanager.cli.simulate import simulate_command
from loadmanager.cli.spark import spark_group
from loadmanager.cli.steering import (
    drain_command,
    observe_command,
    pause_command,
    resume_command,
    unload_command,
)
from loadmanager.cli.top import top_command
from loadmanager.cli.zookeeper import zookeeper_command


@click.group()
def main() -> None:
    """Run and steer a load manager for topic brokers."""


main.add_command(agent)
main.add_command(broker)
main.add_command(brokers_command)
main.add_command(bundles_command)
main.add_command(completion_command)
main.add_command(config_commands)
main.add_command(cost_model_group)
main.add_command(decide)
main.add_command(decisions_command)
main.add_command(demo_command)
main.add_command(drain_command)
main.add_command(explain_command)
main.add_command(faults_command)
main.add_command(history_group)
main.add_command(isolation_commands)
main.add_command(leader_command)
main.add_command(lookup_command)
main.add_command(merge_command)
main.add_command(namespaces_commands)
main.add_command(observe_command)
main.add_command(pause_command)
main.add_command(pipeline_command)
main.add_command(plan_command)
main.add_command(rate_strategies_command)
main.add_command(resume_command)
main.add_command(show_commands_command)
main.add_command(simulate_command)
main.add_command(snapshot_command)
main.add_command(spark_group)
main.add_command(split_command)
main.add_command(top_command)
main.add_command(unload_command)
main.add_command(zookeeper_command)
for command in (get_command, set_command, show_command, unset_command):
    config_commands.add_command(command)
