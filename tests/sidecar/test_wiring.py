import os
import socket
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner
from prometheus_client import CollectorRegistry

from loadmanager.adapters.broker.http_control import CONNECTIONS
from loadmanager.adapters.clock import SystemClock
from loadmanager.adapters.history import ThreadedHistory
from loadmanager.agent.lease_terms import Displaced
from loadmanager.agent.ownership_effects import PARALLEL
from loadmanager.cli import main
from loadmanager.common.task_groups import first_leaf
from loadmanager.config.balancing import PlacementSettings, SheddingSettings
from loadmanager.config.strategies import make_placement, make_shedder
from loadmanager.core.history.schema import Stream
from loadmanager.core.placement import PLACEMENTS
from loadmanager.core.shedding import SHEDDERS, ThresholdShedder
from loadmanager.wiring.sidecar import make_history, make_identity, zookeeper_options
from tests.testbed.faults.cluster import make_config
from tests.testbed.faults.virtual_time import VirtualClock, run


def test_every_strategy_is_made_by_each_of_its_names() -> None:
    for name, shedder in SHEDDERS.items():
        assert isinstance(make_shedder(SheddingSettings(strategy=name)), shedder)
    for name, placement in PLACEMENTS.items():
        made = make_placement(PlacementSettings(strategy=name), ThresholdShedder)
        assert isinstance(made, placement)


def test_the_identity_tells_an_address_that_others_can_reach() -> None:
    async def program() -> list[str]:
        clock = VirtualClock()
        sections: list[dict[str, str]] = [
            {"listen_host": "10.0.0.7"},
            {"listen_host": "::1"},
            {"listen_host": "0.0.0.0", "advertised_url": "http://lb:80"},  # noqa: S104 - it is what is tested
        ]
        security = {"anonymous": "lookup"}
        made = [
            make_identity(make_config(sidecar=s, security=security), 7750, clock) for s in sections
        ]
        assert len({identity.instance for identity in made}) == 3
        return [identity.sidecar_url for identity in made]

    assert run(program()) == ["http://10.0.0.7:7750", "http://[::1]:7750", "http://lb:80"]


def test_access_and_host_name_checks_reach_zookeeper_s_options() -> None:
    login = {"digest_user": "me", "digest_password": "s3cret"}
    options = zookeeper_options(make_config(zookeeper=login))
    assert (options.tls_verify_hostname, options.creator_only) == (True, None)
    assert (options.digest_user, options.digest_password) == ("me", "s3cret")
    assert options.hosts == make_config(zookeeper=login).zookeeper.hosts
    section = {**login, "tls_verify_hostname": False, "creator_only": False}
    options = zookeeper_options(make_config(zookeeper=section))
    assert (options.tls_verify_hostname, options.creator_only) == (False, False)


def test_the_first_of_nested_errors_is_told() -> None:
    inner = Displaced("another one")
    assert first_leaf(ExceptionGroup("a", [ExceptionGroup("b", [inner]), ValueError()])) is inner


def test_no_renewal_waits_for_a_connection_behind_other_commands() -> None:
    assert CONNECTIONS >= PARALLEL + 2


def test_the_command_tells_each_fault_of_the_configuration_and_its_place(tmp_path: Path) -> None:
    file = tmp_path / "lm.toml"
    file.write_text('[broker]\nid = "localhost:8080"\n[shedding]\nstrategy = "Nobody"\n')
    ended = CliRunner().invoke(main, ["agent", "--config", str(file)])
    assert ended.exit_code == 2
    assert ended.stdout == ""
    told = f'{file}: [shedding] strategy = "Nobody"; expected one of '
    assert ended.stderr.startswith(told)


def test_the_command_tells_why_it_cannot_listen_and_how_many_connections_fit() -> None:
    agent = f"{sys.executable} -m loadmanager agent"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        keys = (
            "broker.id=localhost:8080",
            "sidecar.listen_host=127.0.0.1",
            f"sidecar.listen_port={port}",
            "log.format=json",
        )
        sets = " ".join(f"--set {key}" for key in keys)
        ended = subprocess.run(
            ["sh", "-c", f"ulimit -Sn 300; ulimit -Hn 500; exec {agent} {sets}"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert ended.returncode == 1
    assert "loadmanager agent: " in ended.stderr
    assert f"127.0.0.1 port {port}: address already in use, by " in ended.stderr
    assert f"(process {os.getpid()}); expected a free port as [sidecar] listen_port" in ended.stderr
    assert "Traceback" not in ended.stderr
    said = ended.stdout + ended.stderr
    (line,) = (one for one in said.splitlines() if "http.open_files.too_few" in one)
    assert "500" in line
    assert "244" in line
    assert "[http] max_connections" in line


def test_the_command_tells_that_an_address_is_not_this_host_s() -> None:
    sets = ["--set", "broker.id=localhost:8080", "--set", "sidecar.listen_host=192.0.2.1"]
    command = [sys.executable, "-m", "loadmanager", "agent", *sets]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1
    assert "expected an address of this host as [sidecar] listen_host" in ended.stderr


def test_history_goes_where_the_configuration_says(tmp_path: Path) -> None:
    config = make_config(history={"dir": str(tmp_path), "write": "reports"})
    history = make_history(config, make_identity(config, 7750, SystemClock()), CollectorRegistry())
    assert isinstance(history, ThreadedHistory)
    history.close(10.0)
    assert (history.wants(Stream.REPORTS), history.wants(Stream.ROUNDS)) == (True, False)
