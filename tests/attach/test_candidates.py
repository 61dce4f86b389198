"""`loadmanager attach --balance --config FILE`: several candidates, of which one leads."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from attach_process import event, free_port
from fake_pulsar import FakePulsar
from kazoo.client import KazooClient

from loadmanager.attach.pulsar_balancer import SWITCHES

pytestmark = pytest.mark.zookeeper

OFF = dict.fromkeys(SWITCHES, "false")
LIMIT_S = 90.0


@pytest.fixture
def config(zookeeper_address: str, tmp_path: Path) -> Path:
    file = tmp_path / "attach.toml"
    file.write_text(
        f'[zookeeper]\nhosts = "{zookeeper_address}"\n'
        f'chroot = "/attach-{tmp_path.name}-{os.getpid()}"\nsession_timeout_s = 4\ntick_s = 0.2\n'
    )
    return file


@dataclass
class Process:
    popen: subprocess.Popen[str]
    told: list[str] = field(default_factory=list)

    def says(self, text: str) -> bool:
        return any(text in line for line in self.told)

    @property
    def events(self) -> list[str]:
        return [line["event"] for line in map(json.loads, self.told) if "event" in line]

    def tasks(self, state: str) -> list[dict[str, Any]]:
        found = (line["task"] for line in map(json.loads, self.told) if "task" in line)
        return [one for one in found if one["state"] == state]


def command(pulsar: FakePulsar, config: Path, *more: str) -> list[str]:
    return [
        *(sys.executable, "-m", "loadmanager", "attach", "--pulsar", pulsar.url, "--json"),
        *("--interval", "0.2", "--config", str(config), *more),
    ]


@contextmanager
def candidate(pulsar: FakePulsar, config: Path, *more: str) -> Iterator[Process]:
    popen = subprocess.Popen(
        command(pulsar, config, "--balance", *more), stdout=subprocess.PIPE, text=True
    )
    process = Process(popen)

    def listen() -> None:
        assert popen.stdout is not None
        process.told.extend(popen.stdout)

    reader = threading.Thread(target=listen)
    reader.start()
    try:
        yield process
    finally:
        popen.kill()
        popen.wait()
        reader.join()
        assert popen.stdout is not None
        popen.stdout.close()


def once(pulsar: FakePulsar, config: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(pulsar, config, *more), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def until(what: Callable[[], bool], *processes: Process) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not what():
        assert time.monotonic() < deadline_s, [one.told for one in processes]
        time.sleep(0.02)


def test_another_candidate_goes_on_after_the_leaders_kill(pulsar: FakePulsar, config: Path) -> None:
    # Two of the five moves that are needed; the rest is left to the other one.
    limit, port = ("--moves-per-hour", "2", "--most-moves", "1"), free_port()
    with candidate(pulsar, config, *limit, "--settle", "0") as first:
        until(lambda: first.says("leads term 1"), first)
        with candidate(pulsar, config, "--settle", "0", "--page", str(port)) as second:
            until(lambda: second.says("stands for election"), second)
            until(lambda: bool(first.tasks("serving")), first)
            until(lambda: "this candidate waits" in str(event(port)), second)
            os.kill(first.popen.pid, signal.SIGKILL)
            first.popen.wait()
            killed_ms = time.time_ns() // 1_000_000
            assert pulsar.dynamic == OFF
            # A move may have been under way: a client's lookup has Pulsar place the bundle.
            for bundle in list(pulsar.unloaded):
                pulsar.unloaded.remove(bundle)
                pulsar.hand_over(bundle, pulsar.brokers[0])
            until(lambda: second.says("no move that is allowed makes it better"), second)
            assert second.says("leads term 2")
            assert {one["epoch"] for one in second.tasks("ordered")} == {2}
            kind, told = event(port)
            assert kind == "event: overview", told
            course = [at_ms for at_ms, *_ in told["overview"]["course"]]
            assert course[0] < killed_ms < course[-1]
            assert not second.says("Pulsar's settings")
            second.popen.terminate()
            assert second.popen.wait(LIMIT_S) == 0
    assert sorted(len(one.topics) for one in pulsar.brokers) == [2, 3, 3]
    assert second.events[-1] == f"{SWITCHES[1]}: not overridden again"
    assert pulsar.dynamic == {}


def test_a_candidate_leads_while_the_one_broker_that_it_was_given_is_down(
    pulsar: FakePulsar, config: Path
) -> None:
    with candidate(pulsar, config) as leader:
        until(lambda: leader.says("are off"), leader)
        os.kill(leader.popen.pid, signal.SIGKILL)
        leader.popen.wait()
    pulsar.brokers[0].down = True
    with candidate(pulsar, config) as next_one:
        until(lambda: next_one.says("are off"), next_one)
        assert next_one.says("leads term 2")
        os.kill(next_one.popen.pid, signal.SIGKILL)
        next_one.popen.wait()
    assert pulsar.dynamic == OFF
    until(lambda: once(pulsar, config, "--restore").returncode == 0)
    assert pulsar.dynamic == {}


def test_an_ended_leader_leaves_the_settings_to_the_next(pulsar: FakePulsar, config: Path) -> None:
    with candidate(pulsar, config) as first:
        until(lambda: first.says("leads term 1"), first)
        with candidate(pulsar, config) as second:
            until(lambda: second.says("stands for election"), second)
            refusal = once(pulsar, config, "--restore")
            assert (refusal.returncode, "expected no controller" in refusal.stderr) == (1, True)
            first.popen.terminate()
            assert first.popen.wait(LIMIT_S) == 0
            assert pulsar.dynamic == OFF
            until(lambda: second.says("leads term 2"), second)
            until(lambda: second.says("are off"), second)
            os.kill(second.popen.pid, signal.SIGKILL)
            second.popen.wait()
    assert pulsar.dynamic == OFF
    deadline_s = time.monotonic() + LIMIT_S
    while (found := once(pulsar, config, "--restore")).returncode:
        assert "expected no controller" in found.stderr
        assert time.monotonic() < deadline_s
    assert pulsar.dynamic == {}


def test_candidates_ended_at_once_restore_the_settings(pulsar: FakePulsar, config: Path) -> None:
    # As when Kubernetes deletes all pods of a Deployment.
    with candidate(pulsar, config) as first:
        until(lambda: first.says("are off"), first)
        with candidate(pulsar, config) as second:
            until(lambda: second.says("stands for election"), second)
            for one in (second, first):
                one.popen.terminate()
            assert [one.popen.wait(LIMIT_S) for one in (first, second)] == [0, 0]
    assert pulsar.dynamic == {}


def test_a_leader_that_is_ended_after_the_other_candidate_crashed_restores_the_settings(
    pulsar: FakePulsar, config: Path
) -> None:
    with candidate(pulsar, config) as leader:
        until(lambda: leader.says("are off"), leader)
        with candidate(pulsar, config) as other:
            until(lambda: other.says("stands for election"), other)
            # Its session, and so its node among the candidates, lasts for seconds.
            os.kill(other.popen.pid, signal.SIGKILL)
            other.popen.wait()
            leader.popen.terminate()
            assert leader.popen.wait(LIMIT_S) == 0
    assert pulsar.dynamic == {}
    assert leader.says("waits until another candidate leads")
    assert leader.events[-1] == f"{SWITCHES[1]}: not overridden again"


def test_a_candidate_that_is_ended_after_the_leader_crashed_restores_the_settings(
    pulsar: FakePulsar, config: Path
) -> None:
    with candidate(pulsar, config) as leader:
        until(lambda: leader.says("are off"), leader)
        with candidate(pulsar, config) as other:
            until(lambda: other.says("stands for election"), other)
            os.kill(leader.popen.pid, signal.SIGKILL)
            leader.popen.wait()
            other.popen.terminate()
            assert other.popen.wait(LIMIT_S) == 0
    assert not other.says("leads term")
    assert pulsar.dynamic == {}


def test_a_pause_holds_for_each_leader(pulsar: FakePulsar, config: Path) -> None:
    assert once(pulsar, config, "--pause").returncode == 0
    with candidate(pulsar, config) as leader:
        until(lambda: leader.says("paused by attach --pause at 20"), leader)
        assert pulsar.unloads == []
        assert once(pulsar, config, "--resume").returncode == 0
        until(lambda: leader.says('"serving"'), leader)
        leader.popen.terminate()
        assert leader.popen.wait(LIMIT_S) == 0
    assert pulsar.dynamic == {}


def test_what_only_people_can_change_ends_a_candidate(pulsar: FakePulsar, config: Path) -> None:
    with candidate(pulsar, config) as leader:
        until(lambda: leader.says("are off"), leader)
        pulsar.dynamic[SWITCHES[0]] = "true"
        assert leader.popen.wait(LIMIT_S) == 1
    assert pulsar.dynamic == {SWITCHES[0]: "true"}


def test_a_candidate_waits_for_zookeeper_and_can_be_ended(
    pulsar: FakePulsar, tmp_path: Path
) -> None:
    file = tmp_path / "attach.toml"
    file.write_text('[zookeeper]\nhosts = "127.0.0.1:9"\nchroot = "/attach"\n')
    with candidate(pulsar, file) as waiting:
        # The handlers of signals are there before the cluster is asked.
        until(lambda: bool(pulsar.brokers[0].asked), waiting)
        time.sleep(1.0)
        assert waiting.popen.poll() is None
        waiting.popen.terminate()
        assert waiting.popen.wait(LIMIT_S) == 0
    assert waiting.told == []
    assert pulsar.dynamic == {}


def test_sidecars_chroot_is_refused(
    pulsar: FakePulsar, config: Path, zookeeper_address: str
) -> None:
    chroot = tomllib.loads(config.read_text())["zookeeper"]["chroot"]
    client = KazooClient(hosts=zookeeper_address)
    client.start()
    try:
        client.create(f"{chroot}/loadbalance/brokers/b-1:8080", b"", makepath=True)
    finally:
        client.stop()
        client.close()
    found = once(pulsar, config, "--balance")
    assert found.returncode == 1
    assert "the [zookeeper] chroot is that of a cluster of sidecars" in found.stderr
    assert pulsar.dynamic == {}
