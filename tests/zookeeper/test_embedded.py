import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loadmanager.adapters.zookeeper import embedded
from loadmanager.adapters.zookeeper.embedded import (
    EmbeddedZooKeeper,
    EmbeddedZooKeeperError,
    four_letter_word,
)

pytestmark = pytest.mark.zookeeper


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_a_server_answers_while_it_runs_and_leaves_nothing_behind() -> None:
    with EmbeddedZooKeeper(tick_ms=300) as server:
        host, _, port = server.address.rpartition(":")
        assert "tickTime=300" in four_letter_word(host, int(port), "conf")
        pid, folder = server.pid, server.log_file.parent
        assert server.exit_code() is None
        assert "Processing conf command" in server.log_tail()
        with pytest.raises(EmbeddedZooKeeperError, match=f"runs on {server.address} already"):
            server.start()
    assert not is_running(pid)
    assert not folder.exists()
    assert four_letter_word(host, int(port), "ruok") == ""


def test_a_server_that_dies_at_its_start_shows_the_end_of_its_log(tmp_path: Path) -> None:
    server = EmbeddedZooKeeper(port=0, data_dir=tmp_path, config={"secureClientPort": "no number"})
    with pytest.raises(EmbeddedZooKeeperError, match=r"(?s)exit code 2.*no number"):
        server.start()
    with pytest.raises(EmbeddedZooKeeperError, match="not running"):
        _ = server.pid


def test_a_frozen_server_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "STOP_TIMEOUT_S", 0.3)
    with EmbeddedZooKeeper() as server:
        pid = server.pid
        os.kill(pid, signal.SIGSTOP)
    assert not is_running(pid)


def start_command(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        (sys.executable, "-m", "loadmanager", "zookeeper", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    "stop", [pytest.param(signal.SIGINT, marks=pytest.mark.thorough), signal.SIGTERM]
)
def test_the_command_says_when_it_is_ready_and_stops_in_good_order(stop: signal.Signals) -> None:
    with start_command("--port", "0", "--tick-ms", "300") as command:
        assert command.stdout is not None
        ready = re.compile(r"ZooKeeper is ready on (127\.0\.0\.1):(\d+)")
        found = next(filter(None, map(ready.match, command.stdout)))
        assert "tickTime=300" in four_letter_word(found[1], int(found[2]), "conf")
        command.send_signal(stop)
        _, errors = command.communicate(timeout=50)
        assert (command.returncode, errors) == (0, "")
    assert four_letter_word(found[1], int(found[2]), "ruok") == ""


def server_pids(parent: int) -> list[int]:
    children = Path(f"/proc/{parent}/task").glob("*/children")
    return [int(pid) for listed in children for pid in listed.read_text().split()]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of the end")
def test_the_server_does_not_outlive_a_command_that_is_killed() -> None:
    with start_command("--port", "0", "--tick-ms", "300") as command:
        try:
            assert command.stdout is not None
            assert any("ZooKeeper is ready" in line for line in command.stdout)
            (server,) = server_pids(command.pid)
            assert "ZooKeeperServerMain" in Path(f"/proc/{server}/cmdline").read_text()
        finally:
            command.kill()
    deadline_s = time.monotonic() + 60
    while is_running(server):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_the_command_fails_with_a_sentence_when_its_server_dies() -> None:
    with start_command("--port", "0") as command:
        assert command.stdout is not None
        next(line for line in command.stdout if "ready" in line)
        os.kill(server_pids(command.pid)[0], signal.SIGKILL)
        _, errors = command.communicate(timeout=50)
        assert command.returncode == 1
        assert "ended by itself with exit code -9" in errors


def test_the_command_fails_with_a_sentence_when_its_port_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with start_command("--port", port) as command:
            _, errors = command.communicate(timeout=50)
        assert command.returncode == 1
        assert f"cannot listen on 127.0.0.1:{port}" in errors
        assert "Traceback" not in errors
