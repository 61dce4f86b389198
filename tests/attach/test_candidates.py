"""`loadmanager attach --balance --config FILE`: several candidates, of which one leads."""

import json
import os
import signal
import time
import tomllib
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from attach_process import LIMIT_S, AttachProcess, attached, event, free_port
from click.testing import CliRunner, Result
from fake_pulsar import FakePulsar
from kazoo.client import KazooClient

from loadmanager.cli import main
from loadmanager.pulsar.state import SWITCHES

pytestmark = pytest.mark.zookeeper
OFF = dict.fromkeys(SWITCHES, "false")


@pytest.fixture
def config(zookeeper_address: str, tmp_path: Path) -> Path:
    file = tmp_path / "attach.toml"
    file.write_text(
        f'[zookeeper]\nhosts = "{zookeeper_address}"\n'
        f'chroot = "/attach-{tmp_path.name}-{os.getpid()}"\nsession_timeout_s = 4\ntick_s = 0.2\n'
    )
    return file


def options(pulsar: FakePulsar, config: Path, *more: str) -> list[str]:
    return [
        *("--pulsar", pulsar.url, "--json", "--interval", "0.2"),
        *("--config", str(config), *more),
    ]


def candidate(
    pulsar: FakePulsar, config: Path, *more: str
) -> AbstractContextManager[AttachProcess]:
    return attached(*options(pulsar, config, "--balance", *more))


def once(pulsar: FakePulsar, config: Path, *more: str) -> Result:
    return CliRunner().invoke(main, ["attach", *options(pulsar, config, *more)])


def printed_lines(process: AttachProcess) -> list[dict[str, Any]]:
    return [json.loads(line) for line in process.lines if line.startswith("{")]


def events(process: AttachProcess) -> list[str]:
    return [line["event"] for line in printed_lines(process) if "event" in line]


def says(process: AttachProcess, text: str) -> bool:
    return any(text in line for line in process.lines)


def kill(process: AttachProcess) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def until(what: Callable[[], bool], *processes: AttachProcess) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not what():
        assert time.monotonic() < deadline_s, [one.lines for one in processes]
        time.sleep(0.02)


def test_another_candidate_goes_on_after_the_leaders_kill(pulsar: FakePulsar, config: Path) -> None:
    # Two of the five moves that are needed; the rest is left to the other one.
    limit, port = ("--moves-per-hour", "2", "--most-moves", "1"), free_port()
    with candidate(pulsar, config, *limit, "--settle", "0") as first:
        first.until("leads term 1")
        with candidate(pulsar, config, "--settle", "0", "--page", str(port)) as second:
            second.until("stands for election")
            first.until('"state": "serving"')
            until(lambda: "this candidate waits" in str(event(port)), second)
            kill(first)
            killed_ms = time.time_ns() // 1_000_000
            assert pulsar.dynamic == OFF
            # A move may have been under way: a client's lookup has Pulsar place the bundle.
            for bundle in list(pulsar.unloaded):
                pulsar.unloaded.remove(bundle)
                pulsar.hand_over(bundle, pulsar.brokers[0])
            second.until("no move that is allowed is worth its price")
            assert says(second, "leads term 2")
            assert {one["task"]["epoch"] for one in printed_lines(second) if "task" in one} == {2}
            kind, data = event(port)
            assert kind == "event: overview", data
            course = [at_ms for at_ms, *_ in data["overview"]["course"]]
            assert course[0] < killed_ms < course[-1]
            assert not says(second, "Pulsar's settings")
            second.end()
    assert sorted(len(one.topics) for one in pulsar.brokers) == [2, 3, 3]
    assert events(second)[-1] == f"{SWITCHES[1]}: not overridden again"
    assert pulsar.dynamic == {}


def test_a_candidate_leads_while_its_broker_is_down(pulsar: FakePulsar, config: Path) -> None:
    with candidate(pulsar, config) as leader:
        leader.until("are off")
        kill(leader)
    pulsar.brokers[0].down = True
    with candidate(pulsar, config) as next_one:
        next_one.until("are off")
        assert says(next_one, "leads term 2")
        kill(next_one)
    assert pulsar.dynamic == OFF
    until(lambda: once(pulsar, config, "--restore").exit_code == 0)
    assert pulsar.dynamic == {}


@pytest.mark.parametrize("crashes", ["neither", "leader", "other"])
def test_the_last_candidate_restores_the_settings(
    pulsar: FakePulsar, config: Path, crashes: str
) -> None:
    with candidate(pulsar, config) as leader:
        leader.until("are off")
        with candidate(pulsar, config) as other:
            other.until("stands for election")
            refusal = once(pulsar, config, "--restore")
            assert (refusal.exit_code, "expected no controller" in refusal.stderr) == (1, True)
            # Its session, and so its node among the candidates, lasts for seconds.
            if crashes != "neither":
                kill({"leader": leader, "other": other}[crashes])
            # Neither: as when Kubernetes deletes all pods of a Deployment.
            ended = {"neither": [other, leader], "leader": [other], "other": [leader]}[crashes]
            for one in ended:
                one.terminate()
            assert {one.wait() for one in ended} == {0}
    assert pulsar.dynamic == {}
    if crashes == "leader":
        assert not says(other, "leads term")
    elif crashes == "other":
        assert says(leader, "waits until another candidate leads")
        assert events(leader)[-1] == f"{SWITCHES[1]}: not overridden again"


def test_a_pause_holds_for_each_leader(pulsar: FakePulsar, config: Path) -> None:
    assert once(pulsar, config, "--pause").exit_code == 0
    with candidate(pulsar, config) as leader:
        leader.until("paused by attach --pause at 20")
        assert pulsar.unloads == []
        assert once(pulsar, config, "--resume").exit_code == 0
        leader.until('"serving"')
        port, first = free_port(), pulsar.brokers[0]
        with candidate(pulsar, config, "--page", str(port)) as other:
            other.until("stands for election")
            url = ["--url", f"http://127.0.0.1:{port}"]
            drained = CliRunner().invoke(main, ["drain", first.name, *url])
            assert (drained.exit_code, first.topics) == (0, {}), drained.output
            assert f"{first.name} is drained, and takes no bundle" in events(other)[-1]
            assert CliRunner().invoke(main, ["pause", *url]).exit_code == 0
            leader.until("held: paused by ")
            other.end()
        leader.end()
    assert pulsar.dynamic == {}


def test_a_candidate_waits_for_zookeeper_and_ends(pulsar: FakePulsar, tmp_path: Path) -> None:
    file = tmp_path / "attach.toml"
    file.write_text('[zookeeper]\nhosts = "127.0.0.1:9"\nchroot = "/attach"\n')
    with candidate(pulsar, file) as waiting:
        waiting.until("Connection refused", times=2)
        waiting.end()
    assert printed_lines(waiting) == []
    assert pulsar.dynamic == {}


def test_sidecars_root_is_refused(pulsar: FakePulsar, config: Path, zookeeper_address: str) -> None:
    chroot = tomllib.loads(config.read_text())["zookeeper"]["chroot"]
    client = KazooClient(hosts=zookeeper_address)
    client.start()
    try:
        record = b'{"format":2,"hash":"crc32"}'
        client.create(f"{chroot}/loadbalance/cluster", record, makepath=True)
    finally:
        client.stop()
        client.close()
    found = once(pulsar, config, "--balance")
    assert found.exit_code == 1
    assert (
        "this cluster has [broker] kind = 'contract', and this is of kind 'attach'" in found.stderr
    )
    assert pulsar.dynamic == {}
