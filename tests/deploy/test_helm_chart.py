import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from loadmanager.cli.attach import attach_command
from loadmanager.config import Config
from loadmanager.pulsar.controller import _LAST_LOOK_S

SET_BY_THE_CHART = {
    *("pulsar", "config", "state-dir", "history", "token-file"),
    *("metrics-host", "metrics-port"),
    *("ca-file", "certificate-file", "key-file", "once", "json", "doctor"),
    *("balance", "restore", "pause", "resume", "as", "clear-target"),
    *("cordon", "drain", "uncordon", "reason", "drain-timeout"),
}
"""Options that are no values, or values of their own."""


@pytest.fixture
def chart(project: Path) -> Path:
    return project / "deploy" / "helm" / "loadmanager"


@pytest.fixture
def schema(chart: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((chart / "values.schema.json").read_text("utf-8"))[
        "properties"
    ]
    return loaded


def test_every_option_of_the_command_is_a_value(schema: dict[str, Any]) -> None:
    known = {
        option.removeprefix("--")
        for parameter in attach_command.params
        if isinstance(parameter, click.Option)
        for option in parameter.opts
        if option.startswith("--")
    }
    assert known >= SET_BY_THE_CHART
    assert schema["options"]["properties"].keys() == known - SET_BY_THE_CHART


def test_every_key_of_zookeeper_is_a_value_or_in_a_secret(schema: dict[str, Any]) -> None:
    (section,) = (Config.model_fields["zookeeper"].annotation,)
    known = set(getattr(section, "model_fields", {}))
    in_secrets = {
        *("digest_password", "sasl_password"),
        *("tls_ca_file", "tls_certificate_file", "tls_key_file"),
    }
    assert schema["zookeeper"]["properties"].keys() == known - in_secrets
    assert in_secrets <= known


def test_the_alerts_of_the_chart_are_those_of_attach(chart: Path, project: Path) -> None:
    alerts = project / "deploy" / "prometheus" / "alerts.yml"
    groups = yaml.safe_load(alerts.read_text("utf-8"))["groups"]
    rules = yaml.safe_load((chart / "files" / "rules.yml").read_text("utf-8"))
    assert rules == {"groups": [one for one in groups if one["name"] == "loadmanager-attach"]}


def test_a_candidate_has_time_to_see_that_another_one_leads(
    chart: Path, schema: dict[str, Any], project: Path
) -> None:
    least_s = _LAST_LOOK_S + 30
    grace = "terminationGracePeriodSeconds"
    values = yaml.safe_load((chart / "values.yaml").read_text("utf-8"))
    assert values[grace] >= schema[grace]["minimum"] >= least_s
    unit = (project / "deploy" / "systemd" / "loadmanager-attach.service").read_text("utf-8")
    (stop,) = re.findall(r"^TimeoutStopSec=(\d+)s$", unit, re.MULTILINE)
    assert int(stop) >= least_s
