import json
import math
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from configuration_reference import configuration_reference
from strategy_guide import strategy_guide

from loadmanager.cli import main
from loadmanager.config import Config, ConfigError, load_config
from loadmanager.config.load import checked
from loadmanager.config.model import chroot_of
from loadmanager.config.pulsar_import import (
    MISSPELT,
    TRANSLATED,
    UNUSED,
    import_settings,
    misspelt,
    read_broker_conf,
)
from loadmanager.config.strategies import fields_of
from loadmanager.core.placement import PLACEMENTS
from loadmanager.core.plan import Cause, Reason
from loadmanager.core.shedding import SHEDDERS

PULSAR_KEYS = json.loads((Path(__file__).parent / "pulsar_keys.json").read_text())

BROKER_CONF = """\
### --- General broker settings --- ###
clusterName=prod-eu
metadataStoreUrl=zk:zk1:2181,zk2:2181/pulsar
advertisedAddress=broker7.example.com
webServicePort=8080
brokerServicePort=6650
managedLedgerDefaultEnsembleSize=2

# Load balancer
loadBalancerLoadSheddingStrategy=org.apache.pulsar.broker.loadbalance.impl.ThresholdShedder
loadBalancerLoadPlacementStrategy=org.apache.pulsar.broker.loadbalance.impl.LeastLongTermMessageRate
loadBalancerSheddingIntervalMinutes=2
loadBalancerSheddingGracePeriodMinutes=15
loadBalancerReportUpdateMinIntervalMillis=2500
loadBalancerReportUpdateMaxIntervalMinutes=15
loadBalancerReportUpdateThresholdPercentage=20
loadBalancerBrokerThresholdShedderPercentage=12
loadBalancerBandwithInResourceWeight=0.5
loadBalancerAvgShedderLowThreshold=15
loadBalancerOverrideBrokerNicSpeedGbps=2.5
loadBalancerOverrideBrokerNics=eth0,eth1
loadBalancerSheddingExcludedNamespaces=
loadManagerClassName=org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl
"""


# Keys of Pulsar's that are not ours to read, with names like those that are.
OTHER_KEYS = (
    "allowAutoSubscriptionCreation", "allowAutoTopicCreationType",
    "backlogQuotaCheckIntervalInSeconds", "brokerClientTlsEnabled", "configurationMetadataStoreUrl",
    "configurationStoreServers", "defaultNumPartitions", "exposeConsumerLevelMetricsInPrometheus",
    "exposeTopicLevelMetricsInPrometheus", "globalZookeeperServers",
    "managedLedgerDefaultEnsembleSize", "maxConcurrentNonPersistentMessagePerConnection",
    "metadataStoreConfigPath", "numHttpServerThreads", "tlsEnabled", "webServiceTlsProvider",
    "zooKeeperOperationTimeoutSeconds", "zooKeeperSessionTimeoutMillis",
)  # fmt: skip
MISSPELT_WEIGHT = "loadBalancerBandwithInResourceWeight"
THRESHOLD = "loadBalancerLoadSheddingStrategy=ThresholdShedder"


def strategy_keys() -> set[str]:
    kinds = {*SHEDDERS.values(), *PLACEMENTS.values()}
    return {key for kind in kinds for key in fields_of(kind)}


def imported_by_command(folder: Path, text: str, *options: str) -> Result:
    path = folder / "broker.conf"
    path.write_text(text)
    result = CliRunner().invoke(main, ["config", "import", str(path), *options])
    (folder / "ours.toml").write_text(result.stdout)
    return result


def imported(found: Mapping[str, str]) -> Config:
    return checked(import_settings(found, "localhost").given(Path("broker.conf")))


@pytest.mark.parametrize("key", [known["key"] for known in PULSAR_KEYS])
def test_every_key_of_pulsar_has_one_fate(key: str) -> None:
    deployed = {"advertisedAddress", "bindAddress"}
    fates = [key in TRANSLATED, key in UNUSED, key in MISSPELT, key in deployed]
    told_by_strategies = key in strategy_keys() and not any(fates)
    assert sum([*fates, told_by_strategies]) == 1


def test_every_key_of_pulsar_is_told_of_in_the_reference_or_the_strategy_guide() -> None:
    told = configuration_reference() + strategy_guide()
    assert [known["key"] for known in PULSAR_KEYS if f"`{known['key']}`" not in told] == []
    assert {*Reason, *Cause} <= set(re.findall(r"^\| `([a-z_]+)` \|", told, re.MULTILINE))
    # No text of a row breaks it by a bar.
    tables = [line for line in strategy_guide().splitlines() if line.startswith("|")]
    assert {line.count("|") for line in tables} == {3, 4, 7}


def default_text(known: dict[str, object]) -> str:
    default = known["default"]
    if default is None:
        return "lo" if known["key"] != "loadBalancerOverrideBrokerNicSpeedGbps" else "10"
    if isinstance(default, bool):
        return str(default).lower()
    return ",".join(default) if isinstance(default, list) else str(default)


@pytest.mark.parametrize("known", PULSAR_KEYS, ids=lambda known: known["key"])
def test_the_defaults_of_pulsar_can_be_run_with(known: dict[str, object]) -> None:
    found = {str(known["key"]): default_text(known)}
    assert imported(found).broker.id.endswith(":8080")
    assert import_settings(found, "localhost").foreign == []


@pytest.mark.parametrize("shedder", sorted(SHEDDERS.keys() - {"joint"}))
def test_a_file_with_every_key_becomes_one_that_loads(shedder: str, tmp_path: Path) -> None:
    lines = [f"{known['key']}={default_text(known)}" for known in PULSAR_KEYS]
    lines += [f"loadBalancerLoadSheddingStrategy={shedder}", "advertisedAddress=b1.example.org"]
    result = imported_by_command(tmp_path, "\n".join(lines))
    assert result.exit_code == 0, result.stderr
    config = load_config(tmp_path / "ours.toml", {})
    assert config.broker.id == "b1.example.org:8080"
    assert config.shedding.strategy == shedder


@pytest.mark.parametrize(
    ("key", "named"),
    [
        ("loadBalancerLoadPlacementStrategy=RoundRobinBrokerSelector", True),
        ("loadBalancerBandwidthInResourceWeight=0.5", False),
    ],
)
def test_a_placement_alone_is_imported_beside_pulsars_default(key: str, *, named: bool) -> None:
    name, _, text = key.partition("=")
    config = imported({name: text})
    assert ("strategy" in config.shedding.model_fields_set) is named
    assert config.shedding.settings == ({} if named else {name: 0.5})
    if named:
        assert config.shedding.strategy == "AvgShedder"


def test_a_real_file_becomes_a_configuration_that_runs(tmp_path: Path) -> None:
    result = imported_by_command(tmp_path, BROKER_CONF)
    assert result.exit_code == 0, result.stderr
    config = load_config(tmp_path / "ours.toml", {})
    assert config.broker.id == "broker7.example.com:8080"
    assert config.broker.broker_url == "pulsar://broker7.example.com:6650"
    assert (config.cluster.name, config.cluster.hash) == ("prod-eu", "crc32")
    assert config.zookeeper.hosts == "zk1:2181,zk2:2181"
    assert chroot_of(config) == "/loadmanager/prod-eu"
    assert config.sidecar.advertised_url == "http://broker7.example.com:7750"
    assert (config.leader.round_interval_s, config.shedding.grace_period_s) == (120, 900)
    assert (config.report.min_interval_s, config.report.max_interval_s) == (2.5, 900)
    assert config.leader.report_stale_s == 1800
    assert (config.report.change_fraction, config.report.change_points) == (0.2, 0.2)
    assert (config.host.nics, config.host.nic_speed_mbit_per_s) == (("eth0", "eth1"), 5000)
    assert config.shedding.settings == {
        "loadBalancerBrokerThresholdShedderPercentage": 12,
        "loadBalancerBandwidthInResourceWeight": 0.5,
    }


def test_what_is_ignored_is_told_with_the_reason(tmp_path: Path) -> None:
    result = imported_by_command(tmp_path, BROKER_CONF)
    assert "loadManagerClassName ignored: loadmanager is the load manager" in result.stderr
    assert (
        "loadBalancerAvgShedderLowThreshold ignored: not a setting of the chosen strategies"
    ) in result.stderr
    assert "/pulsar in metadataStoreUrl ignored: Pulsar's own nodes are there" in result.stderr
    assert "not about load balancing, dropped: managedLedgerDefaultEnsembleSize" in result.stderr
    assert result.stderr.endswith("0 misspelt, 3 ignored, 1 not about load balancing\n")


def test_every_key_that_is_dropped_is_told_those_of_security_first(tmp_path: Path) -> None:
    dropped = {
        "managedLedgerCacheSizeMB": "512",
        "superUserRoles": "admin",
        "authenticationEnabled": "true",
        "brokerClientTlsEnabled": "true",
        "tlsKeyFilePath": "/etc/secret.pem",
        "loadBalancerSheddingIntervallMinutes": "2",
        "zooKeeperServers": "zk9:2181",
    }
    text = BROKER_CONF + "".join(f"{key}={value}\n" for key, value in dropped.items())
    result = imported_by_command(tmp_path, text)
    assert result.exit_code == 0, result.stderr
    told = result.stderr.splitlines()
    for key in dropped:
        assert sum(key in line for line in told) == 1, key
    assert [line.split()[1] for line in told[:4]] == [
        "authenticationEnabled",
        "brokerClientTlsEnabled",
        "superUserRoles",
        "tlsKeyFilePath",
    ]
    assert "did you mean loadBalancerSheddingIntervalMinutes?" in told[4]
    assert "did you mean zookeeperServers?" in told[5]
    assert "secret" not in result.stderr
    assert "4 of security dropped, 2 misspelt" in told[-1]


@pytest.mark.parametrize(
    ("bound", "listens_on"),
    [
        (None, "0.0.0.0"),  # noqa: S104 - compared with
        ("0.0.0.0", "0.0.0.0"),  # noqa: S104 - compared with
        ("10.0.0.7", "10.0.0.7"),
        ("127.0.0.1", "0.0.0.0"),  # noqa: S104 - compared with
    ],
)
def test_a_sidecar_listens_where_the_others_reach_it(bound: str | None, listens_on: str) -> None:
    found = {"advertisedAddress": "b1"} | ({"bindAddress": bound} if bound else {})
    config = checked(import_settings(found, "b1").given(Path("broker.conf")))
    assert config.sidecar.listen_host == listens_on


@pytest.mark.parametrize("key", OTHER_KEYS)
def test_another_key_of_pulsar_is_not_taken_for_a_misspelt_one(key: str) -> None:
    assert misspelt(key) == ""


def test_a_switch_that_is_off_under_either_name_is_off() -> None:
    both = {"loadBalancerEnabled": "false", "loadBalancerSheddingEnabled": "true"}
    for found in (both, dict(reversed(both.items()))):
        assert not imported(found).shedding.enabled


@pytest.mark.parametrize("misspelt_first", [True, False])
@pytest.mark.parametrize(
    ("right", "counts", "ignored"), [("0.25", 0.25, "Bandwith"), ("1.0", 0.5, "Bandwidth")]
)
def test_the_misspelt_weight_counts_only_where_the_right_one_has_its_default(
    right: str, counts: float, ignored: str, *, misspelt_first: bool
) -> None:
    key = "loadBalancer{}InResourceWeight"
    weights = {key.format("Bandwith"): "0.5", key.format("Bandwidth"): right}
    order = weights.items() if misspelt_first else reversed(weights.items())
    found = {"loadBalancerLoadSheddingStrategy": "ThresholdShedder", **dict(order)}
    assert imported(found).shedding.settings[key.format("Bandwidth")] == counts
    assert key.format(ignored) in import_settings(found, "localhost").ignored


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("loadBalancerSheddingEnabled=maybe", "expected true or false"),
        ("loadBalancerSheddingIntervalMinutes=often", "expected a number"),
        ("loadBalancerSheddingIntervalMinutes=0", "expected a number from 0.1 to 3600"),
        ("maxConcurrentLookupRequest=1.5", "expected a whole number"),
        ("metadataStoreUrl=rocksdb:///data", "expected zk:host:port"),
        ("webServicePort=eighty", "expected host:port"),
        ("defaultNamespaceBundleSplitAlgorithm=halve", "expected one of"),
        ("loadBalancerBandwithInResourceWeight=heavy", "expected a number"),
        ("loadBalancerLoadSheddingStrategy=Guessing", "expected one of AvgShedder"),
        (
            f"{MISSPELT_WEIGHT}=2\n{MISSPELT[MISSPELT_WEIGHT]}=heavy\n{THRESHOLD}",
            f"{MISSPELT[MISSPELT_WEIGHT]} = 'heavy'",
        ),
    ],
)
def test_a_value_that_means_nothing_is_named(line: str, expected: str, tmp_path: Path) -> None:
    result = imported_by_command(tmp_path, f"{line}\n", "--host", "localhost")
    assert result.exit_code == 1, result.stdout
    key = line.partition("=")[0]
    assert key in result.stderr or MISSPELT.get(key, "[shedding] strategy") in result.stderr
    assert expected in result.stderr
    assert result.stdout == ""


def test_a_file_that_cannot_be_read_is_told_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    for content in (None, b"\xff\xfe=\\uZZ", b"key=\\uZZZZ"):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"expected Pulsar's broker\.conf"):
            read_broker_conf(path)


def test_units_are_ours() -> None:
    read, _ = TRANSLATED["loadBalancerReportUpdateMinIntervalMillis"]
    assert math.isclose(float(str(read("2500"))), 2.5)


def test_a_place_that_cannot_be_written_to_is_told(tmp_path: Path) -> None:
    out = str(tmp_path / "missing" / "loadmanager.toml")
    result = imported_by_command(tmp_path, "clusterName=eu\n", "--out", out)
    told = "No such file or directory; expected a file to write to"
    assert (result.exit_code, told in result.stderr.replace("\n", " ")) == (2, True)
