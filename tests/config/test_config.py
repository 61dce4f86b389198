import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from structlog.testing import capture_logs

from loadmanager.config import Config, ConfigError, annotated_toml, describe, load_config
from loadmanager.config.describe import shown
from loadmanager.config.dynamic import with_overrides
from loadmanager.config.model import health_port
from loadmanager.core.history.files import MOST_ROLL_MIB
from loadmanager.core.ids import BrokerId
from loadmanager.pipeline.ingest.history_files import LARGEST_BYTES

DEPLOYED = Path(__file__).parents[2] / "deploy" / "loadmanager.toml"


def test_the_committed_file_is_the_generated_one() -> None:
    # Renew it with: loadmanager config show-defaults > deploy/loadmanager.toml
    assert DEPLOYED.read_text() == annotated_toml()


def test_the_annotated_file_can_be_run_with() -> None:
    assert load_config(DEPLOYED, {}).broker.id == "localhost:8080"


def test_taking_the_comment_signs_away_changes_nothing(tmp_path: Path) -> None:
    unset = {k.key for k in describe() if k.default is None and not k.required}
    lines = [
        line.removeprefix("#") if re.match(r"#\w+ = ", line) and "unset by" not in line else line
        for line in annotated_toml().splitlines()
    ]
    (tmp_path / "all.toml").write_text("\n".join(lines))
    assert load_config(tmp_path / "all.toml", {}) == load_config(DEPLOYED, {})
    assert sum(bool(re.match(r"\w+ = ", line)) for line in lines) == len(describe()) - len(unset)


def test_the_examples_of_unset_keys_are_accepted(tmp_path: Path) -> None:
    text = re.sub(r"(?m)^#(\w+ = )", r"\1", annotated_toml())
    (tmp_path / "all.toml").write_text(text)
    assert load_config(tmp_path / "all.toml", {}).host.cores == 4.0


def beside_pulsar(kind: str = "pulsar", **sections: Any) -> Config:
    broker = {"id": "b1:8080", "kind": kind, **sections.pop("broker", {})}
    return Config.model_validate({"broker": broker, **sections})


@pytest.mark.parametrize(
    ("kind", "sections", "expected"),
    [
        ("contract", {"pulsar": {"token_file": "/t"}}, r"\[pulsar\] token_file: expected no value"),
        ("pulsar", {"broker": {"control_url": "http://a:1"}}, r"control_url: expected no value"),
        ("pulsar", {"broker": {"control_secret_file": "/s"}}, r"control_secret_file: expected no"),
        ("pulsar", {"pulsar": {"certificate_file": "/c"}}, r"key_file: expected a value"),
        ("pulsar", {"pulsar": {"key_file": "/k"}}, r"certificate_file: expected a value"),
        ("pulsar", {"cluster": {"hash": "murmur3"}}, r'hash: expected "crc32"'),
        ("kafka", {}, "kind"),
    ],
)
def test_what_contradicts_is_refused(kind: str, sections: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValidationError, match=expected):
        beside_pulsar(kind, **sections)


def history(**keys: Any) -> Config:
    return Config.model_validate({"broker": {"id": "b1:8080"}, "history": keys})


def test_a_url_needs_a_spool() -> None:
    expected = r"\[history\] spool_dir: expected a folder on this host.*dir is a URL"
    with pytest.raises(ValidationError, match=expected):
        history(dir="s3://bucket/prefix")
    assert history(dir="s3://bucket/prefix", spool_dir="/spool").history.is_remote
    assert not history(dir="/var/lib/history").history.is_remote


def test_no_writer_may_make_files_that_the_pipeline_does_not_read(tmp_path: Path) -> None:
    assert history(dir="/x", roll_mib=float(MOST_ROLL_MIB)).history.roll_mib == MOST_ROLL_MIB
    assert MOST_ROLL_MIB << 20 < LARGEST_BYTES
    file = tmp_path / "loadmanager.toml"
    file.write_text('[broker]\nid = "b1:8080"\n[history]\nroll_mib = 257.0\n', encoding="utf-8")
    told = r"\[history\] roll_mib = 257\.0; expected a number from 0\.001 to 256$"
    with pytest.raises(ConfigError, match=told):
        load_config(file, {})


ID = {"LOADMANAGER_BROKER__ID": "b1:8080"}


def faults_of(
    path: Path | None = None, environ: dict[str, str] | None = None, overrides: tuple[str, ...] = ()
) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load_config(path, ID if environ is None else environ, overrides)
    return caught.value.faults


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "sidecar.toml"


def test_only_the_broker_id_is_required() -> None:
    config = load_config(None, ID)
    assert config == Config.model_validate({"broker": {"id": "b1:8080"}})
    assert config.broker.id == BrokerId("b1:8080")
    assert config.report.max_interval_s == 60


@pytest.mark.parametrize(
    ("environ", "overrides", "fault"),
    [
        (
            {},
            (),
            "[broker] id is not set (in a file, or as LOADMANAGER_BROKER__ID); expected host:port",
        ),
        (
            {**ID, "LOADMANAGER_LOG_LEVEL": "debug"},
            (),
            "environment LOADMANAGER_LOG_LEVEL: sets nothing; did you mean LOADMANAGER_LOG__LEVEL?",
        ),
        (
            ID,
            ("placement.strategy=3 4",),
            "--set placement.strategy=3 4; expected a name of letters, digits and any of . - _",
        ),
        (
            ID,
            ("sidecar.listen_host=a?b",),
            "--set sidecar.listen_host=a?b; expected a host name or an address, or empty",
        ),
        (
            ID,
            ("report.max_interval_s=x", "report.min_interval_s=80"),
            "--set report.max_interval_s=x; expected a number from 1 to 900",
        ),
    ],
    ids=["id", "one underscore too few", "placement", "host", "contradicts no other"],
)
def test_a_fault_is_told(environ: dict[str, str], overrides: tuple[str, ...], fault: str) -> None:
    assert faults_of(None, environ, overrides) == (fault,)


def test_the_environment_wins_over_the_file_and_the_command_line_over_both(file: Path) -> None:
    file.write_text('[log]\nlevel = "error"\n[lookup]\nwait_s = 1\n[leader]\nsettle_s = 1\n')
    environ = {**ID, "LOADMANAGER_LOOKUP__WAIT_S": "2", "LOADMANAGER_LEADER__SETTLE_S": "2"}
    config = load_config(file, environ, ["leader.settle_s=3"])
    assert (config.log.level, config.lookup.wait_s, config.leader.settle_s) == ("error", 2, 3)


def test_addresses_follow_from_the_id_unless_given() -> None:
    broker = load_config(None, ID).broker
    assert (broker.http_url, broker.control_url) == ("http://b1:8080", "")
    assert load_config(None, ID, ["broker.http_url=https://x:1"]).broker.http_url == "https://x:1"


@pytest.mark.parametrize(
    ("broker", "keys", "url"),
    [
        ("b1:8080", ["listen_port=9"], "http://b1:9"),
        ("b1:8080", ["advertised_url=http://s:2"], "http://s:2"),
        ("[fd00::7]:8080", [], "http://[fd00::7]:7750"),
        ("b1:8080", ["listen_host=10.0.0.7"], "http://10.0.0.7:7750"),
        ("b1:8080", ["listen_host=::1"], "http://[::1]:7750"),
        ("b1:8080", ["tls.certificate_file=c", "tls.key_file=k"], "https://b1:7750"),
        # The listener tells which one was free.
        ("b1:8080", ["listen_port=0"], ""),
    ],
)
def test_without_security_it_is_at_its_brokers_host(broker: str, keys: list[str], url: str) -> None:
    overrides = [one if one.startswith("tls.") else f"sidecar.{one}" for one in keys]
    sidecar = load_config(None, {"LOADMANAGER_BROKER__ID": broker}, overrides).sidecar
    assert sidecar.advertised_url == url
    assert sidecar.listen_host == "".join(overrides).partition("listen_host=")[2]


@pytest.mark.parametrize(
    "keys",
    [
        ("security.anonymous=admin",),
        ("security.token_claim=role",),
        ('security.admins=["operator"]',),
        ("tls.client_authorities_file=a", "tls.certificate_file=c", "tls.key_file=k"),
    ],
)
def test_with_security_a_sidecar_listens_on_loopback_unless_told(keys: tuple[str, ...]) -> None:
    config = load_config(None, ID, keys)
    scheme = "https" if "tls" in keys[0] else "http"
    assert config.sidecar.listen_host == "127.0.0.1"
    assert config.sidecar.advertised_url == f"{scheme}://127.0.0.1:7750"


def test_a_changed_setting_leaves_where_a_sidecar_listens_as_it_is() -> None:
    for keys in ((), ("security.anonymous=admin",)):
        config = load_config(None, ID, keys)
        changed = with_overrides(config, {"log.level": "debug"})
        assert changed.sidecar == config.sidecar
        assert changed.security == config.security


def test_every_fault_of_every_source_is_told_at_once(file: Path) -> None:
    file.write_text(
        'loose = 1\n[broker]\nid = "nohost"\n[sidecar]\nlisten_prot = 1\n'
        '[zookeper]\n[zookeeper]\nsession_timeout_s = 500\n[host]\nscope = "process"\nnics = [1]\n'
    )
    environ = {"LOADMANAGER_LOOKUP__WAIT_S": "soon"}
    assert faults_of(file, environ, ("leader.settle_s=soon", "leader")) == (
        f"{file}: loose stands in no section; expected [section] above it",
        f"{file}: [sidecar] listen_prot; no such key; did you mean listen_port?",
        f"{file}: [zookeper]; no such section; did you mean [zookeeper]?",
        "--set leader; expected section.key=value",
        f'{file}: [broker] id = "nohost"; expected host:port',
        f"{file}: [zookeeper] session_timeout_s = 500; expected a number from 1 to 120",
        f'{file}: [host] nics = [1]; expected a list of texts, such as ["eth0"]',
        "--set leader.settle_s=soon; expected a number from 0 to 3600",
        "environment LOADMANAGER_LOOKUP__WAIT_S=soon; expected a number from 0 to 60",
        (
            f'[host] cores is not set (with {file}: [host] scope = "process"); expected the number '
            "of cores the broker may use, because [host] scope is process"
        ),
    )


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"[sidecar]\nlisten_port = = 1\n", "line 2"),
        (b"\n\n[log\n", "line 3"),
        (b"\xff\xfe\x00", "; expected TOML"),
        (None, "No such file or directory; expected a readable TOML file"),
    ],
)
def test_a_file_that_is_no_toml_is_told(file: Path, content: bytes | None, expected: str) -> None:
    if content is not None:
        file.write_bytes(content)
    (fault,) = faults_of(file)
    assert fault.startswith(f"{file}: ")
    assert expected in fault


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (("sidecar.listen_port=65536",), "a whole number from 0 to 65535"),
        (("sidecar.listen_port=true",), "a whole number from 0 to 65535"),
        (("sidecar.listen_port=1.0",), "a whole number from 0 to 65535"),
        (("sidecar.advertised_url=ftp://x",), "http://host:port or https://host:port without"),
        (("broker.control_url=http://x/path",), "http://host:port or https://host:port without"),
        (("broker.broker_url=x:6650",), "pulsar://host:port or pulsar+ssl://host:port, or empty"),
        (("report.change_fraction=NaN",), "a number from 0 to 10"),
        (("report.change_fraction=true",), "a number from 0 to 10"),
        (("host.cores=0",), "a number from 0.001 to 4096"),
        (("host.memory_limit_mib=-1",), "a number from 1 to"),
        (("shedding.enabled=yes",), "true or false"),
        (("zookeeper.chroot=/a/",), "empty, / for the root, or an absolute path without a slash"),
        (("zookeeper.hosts=a:1, b:2",), "host:port, or several separated by commas"),
        (("cluster.hash=md5",), 'one of "murmur3", "crc32"'),
        (("placement.settings=3",), "a table of keys with plain values"),
        (("report.min_interval_s=70",), "at most [report] max_interval_s (60)"),
        (("report.max_interval_s=150",), "so much below [leader] report_stale_s (180)"),
        (("report.sample_interval_s=61",), "at most [report] max_interval_s (60)"),
        (("leader.tick_interval_s=61",), "at most [leader] round_interval_s (60)"),
        (("ownership.heartbeat_fraction=0.4",), "at most half of [ownership] self_fence_fraction"),
        (("sidecar.listen_host=0.0.0.0", "security.anonymous=lookup"), "that others can reach"),
        (
            ("sidecar.listen_host=10.0.0.7", 'security.admins=["a"]'),
            "admin, read, lookup or none, because [sidecar] listen_host (10.0.0.7) can be reached",
        ),
        (("tls.certificate_file=c",), "a file, because [tls] certificate_file is set"),
        (("tls.key_file=k",), "a file, because [tls] key_file is set"),
        (("tls.client_authorities_file=a",), "a file, because [tls] client_authorities_file is"),
        (
            ("security.token_secret_key_file=s", "security.token_public_key_file=p"),
            "empty, because [security] token_secret_key_file is set",
        ),
        (("zookeeper.digest_user=u",), "a value, because [zookeeper] digest_user is set"),
        (("zookeeper.digest_password=p",), "a value, because [zookeeper] digest_password is set"),
        (("zookeeper.tls_key_file=k",), "a value, because [zookeeper] tls_key_file is set"),
        (("zookeeper.creator_only=true",), "a digest or SASL login with it"),
    ],
)
def test_a_wrong_value_says_what_was_expected(overrides: tuple[str, ...], expected: str) -> None:
    (fault,) = faults_of(overrides=overrides)
    assert expected in fault.partition("expected ")[2]


def test_a_login_by_password_needs_both_its_parts() -> None:
    assert len(faults_of(overrides=("zookeeper.sasl_mechanism=DIGEST-MD5",))) == 2
    assert load_config(None, ID, ["zookeeper.sasl_mechanism=GSSAPI"]).zookeeper.sasl_username == ""


def test_listening_on_all_addresses_is_fine_with_an_advertised_one() -> None:
    sidecar = ["sidecar.listen_host=0.0.0.0", "sidecar.advertised_url=http://s1:7750"]
    config = load_config(None, ID, [*sidecar, "security.anonymous=lookup"])
    assert config.sidecar.advertised_url == "http://s1:7750"


@pytest.mark.parametrize(
    ("key", "suggestion"),
    [
        ("sidecar.listen_prot", "did you mean listen_port?"),
        ("report.listen_port", "did you mean [sidecar] listen_port?"),
        ("log.zzzzz", "expected one of format, level"),
        ("lgo.level", "no such section; did you mean [log]?"),
        ("qqqq.level", "no such section; expected one of broker, sidecar,"),
        ("log.level.deep", "expected a section and a key only"),
    ],
)
def test_an_unknown_key_is_answered_with_the_closest_one(key: str, suggestion: str) -> None:
    (fault,) = faults_of(overrides=(f"{key}=1",))
    assert suggestion in fault


def test_a_key_that_has_no_meaning_any_more_is_ignored_with_a_warning() -> None:
    with capture_logs() as logs:
        former = {"LOADMANAGER_PLANNER__LEARNED_COSTS": "maybe", "LOADMANAGER_LOOKUP__MODE": "x"}
        config = load_config(None, {**ID, **former})
    assert config == load_config(None, ID)
    assert [(one["event"], one["key"]) for one in logs] == [
        ("configuration.key.ignored", key) for key in ("lookup.mode", "planner.learned_costs")
    ]


def test_lists_and_tables_come_as_json_from_the_environment() -> None:
    environ = {
        **ID,
        "LOADMANAGER_HOST__NICS": '["eth0", "eth1"]',
        "LOADMANAGER_SHEDDING__STRATEGY": "ThresholdShedder",
        "LOADMANAGER_SHEDDING__SETTINGS": '{"threshold": 0.2, "lower_boundary": true}',
        "LOADMANAGER_SHEDDING__SETTINGS__THRESHOLD": "0.3",
    }
    config = load_config(None, environ)
    assert config.host.nics == ("eth0", "eth1")
    assert config.shedding.settings == {"threshold": 0.3, "lower_boundary": True}


def test_one_entry_of_a_table_joins_those_of_the_file(file: Path) -> None:
    file.write_text('[shedding]\nstrategy = "uniform"\n[shedding.settings]\nmax_bundles = 2\n')
    told = ["shedding.settings.max_bundles=3", "shedding.settings.max_share=0.5"]
    config = load_config(file, ID, told)
    assert config.shedding.settings == {"max_bundles": 3, "max_share": 0.5}


def test_strategies_and_their_settings_are_told_together_with_all_other_faults(file: Path) -> None:
    file.write_text(
        '[shedding]\nstrategy = "Thresold"\n'
        '[placement]\nstrategy = "LeastResourceUsageWithWeight"\n'
        "[placement.settings]\ndiffrence = 0.1\nzzz = 1\n"
        "[lookup]\nwait_s = -1\n"
    )
    for overrides in ([], ["log.level=loud"], ["leader.tick_interval_s=100"]):
        told = "\n".join(faults_of(file, ID, tuple(overrides)))
        assert f'{file}: [shedding] strategy = "Thresold"; expected one of' in told
        assert "diffrence is unknown; did you mean difference?" in told
        assert "zzz is unknown; expected one of difference" in told
        assert "wait_s" in told
        assert all(one.partition("=")[0].partition(".")[2] in told for one in overrides)


def test_settings_of_strategies_beside_are_told_with_all_other_faults(file: Path) -> None:
    file.write_text(
        '[shedding]\nshadows = ["joint", {strategy = "avg", settings = {high_hit = 3}}]\n'
        "[lookup]\nwait_s = -1\n"
    )
    told = "\n".join(faults_of(file, ID))
    assert "shadows, settings for AvgShedder: high_hit is unknown; did you mean high_hits?" in told
    assert "wait_s" in told
    config = load_config(None, ID, ['shedding.shadows=["avg", {"strategy": "joint"}]'])
    assert shown(config)["shedding.shadows"] == '["avg", {"strategy": "joint", "settings": {}}]'


def test_settings_of_a_strategy_that_is_no_text_are_not_told_as_unknown() -> None:
    given = {**ID, "LOADMANAGER_SHEDDING__SETTINGS": '{"threshold": 0.3}'}
    assert len(faults_of(None, given, ("shedding.strategy=3 4",))) == 1


def test_empty_variables_and_those_of_a_kubernetes_service_are_no_settings() -> None:
    service = {"LOADMANAGER_PORT": "tcp://10.0.0.1:7750", "LOADMANAGER_SERVICE_HOST": "x"}
    for environ in (service, {"LOADMANAGER_HOST__CORES": ""}):
        assert load_config(None, {**ID, **environ}) == load_config(None, ID)


def test_secrets_are_in_no_message_and_no_print(file: Path) -> None:
    file.write_text('[zookeeper]\ndigest_password = "hunter2"\nsasl_pasword = "hunter2"\n')
    environ = {"LOADMANAGER_ZOOKEEPER__DIGEST_PASSWRD": "hunter2"}
    overrides = ("zookeeper.digest_password.x=hunter2", "zookeper.digest_password=hunter2")
    assert "hunter2" not in "\n".join(faults_of(file, environ, overrides))
    environ = {
        **ID,
        "LOADMANAGER_ZOOKEEPER__DIGEST_USER": "u",
        "LOADMANAGER_ZOOKEEPER__DIGEST_PASSWORD": "hunter2",
    }
    config = load_config(None, environ)
    assert config.zookeeper.digest_password.get_secret_value() == "hunter2"
    assert "hunter2" not in repr(config) + str(config) + json.dumps(config.model_dump(mode="json"))


def test_every_key_says_its_effect_and_its_own_default_is_accepted() -> None:
    for key in describe():
        assert len(key.description) > 10, key
        assert key.expected, key
        assert key.required or key.default is not None or key.example is not None, key


def test_units_are_read_off_the_names() -> None:
    expected = {
        "lookup.wait_s": "seconds",
        "http.max_body_bytes": "bytes",
        "planner.max_bytes_per_s_per_round": "bytes per second",
        "host.nic_speed_mbit_per_s": "Mbit per second",
        "split.max_mib_per_s": "MiB per second",
        "split.max_msgs_per_s": "messages per second",
        "split.difference_percent": "percent",
        "sidecar.listen_port": "",
    }
    units = {f"{k.section}.{k.key}": k.unit for k in describe()}
    assert expected.items() <= units.items()


def test_probes_have_a_port_beside_the_others() -> None:
    cases = {
        "listen_port=7751": 8751,
        "listen_port=0": 0,
        "health_port=0": 0,
        "health_port=7751": 7751,
    }
    for override, port in cases.items():
        assert health_port(load_config(None, ID, [f"sidecar.{override}"]).sidecar) == port
    assert health_port(load_config(None, ID).sidecar) == 8750
    both = ("sidecar.listen_port=65000", "sidecar.health_port=9000")
    assert health_port(load_config(None, ID, both).sidecar) == 9000


@pytest.mark.parametrize(
    "overrides", [("sidecar.health_port=7750",), ("sidecar.listen_port=65000",)]
)
def test_a_port_for_probes_that_cannot_be_is_refused(overrides: tuple[str, ...]) -> None:
    (fault,) = faults_of(None, ID, overrides)
    assert re.search(r"health_port.*expected a port up to", fault)
