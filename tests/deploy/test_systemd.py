import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from loadmanager.cli.attach import attach_command
from loadmanager.cli.running import DISPLACED
from loadmanager.config.sections import OwnershipSettings

MOST_EXPOSED = 20
"""The worst score allowed, in tenths: systemd calls below 2 "OK" and an unhardened unit 9.6."""


@pytest.fixture
def unit(project: Path) -> Path:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze: install your distribution's package systemd")
    return project / "deploy" / "systemd" / "loadmanager.service"


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *arguments], capture_output=True, text=True, check=False
    )


def installed(unit: Path, folder: Path) -> Path:
    """Copy the unit with the path of a program that exists here: systemd looks whether it does."""
    copy = folder / unit.name
    text = unit.read_text(encoding="utf-8")
    assert "ExecStart=/opt/loadmanager/bin/loadmanager a" in text
    program = Path(sys.executable).with_name("loadmanager")
    copy.write_text(text.replace("/opt/loadmanager/bin/loadmanager", str(program)), "utf-8")
    return copy


@pytest.mark.parametrize("name", ["loadmanager.service", "loadmanager-attach.service"])
def test_systemd_calls_the_unit_hardened(unit: Path, tmp_path: Path, name: str) -> None:
    verdict = analyze("verify", "--man=no", installed(unit.with_name(name), tmp_path))
    assert (verdict.returncode, verdict.stdout + verdict.stderr) == (0, "")
    hardened = ("--offline=true", "--no-pager", f"--threshold={MOST_EXPOSED}")
    verdict = analyze("security", *hardened, unit.with_name(name))
    assert verdict.returncode == 0, verdict.stdout


def test_unit_comes_back_whatever_ends_it_but_for_another_sidecar(unit: Path) -> None:
    lines = set(unit.read_text(encoding="utf-8").splitlines())
    displaced = f"RestartPreventExitStatus={DISPLACED}"
    assert {"Restart=always", "StartLimitIntervalSec=0", displaced} <= lines


def test_unit_has_time_to_hand_everything_over_when_it_is_stopped(unit: Path) -> None:
    text = unit.read_text(encoding="utf-8")
    stop = re.search(r"^TimeoutStopSec=(\d+)s$", text, re.MULTILINE)
    assert stop is not None
    assert int(stop[1]) >= OwnershipSettings().drain_deadline_s + 30


def test_the_unit_of_attach_restores_what_a_crash_left(
    unit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "attach.toml"
    config.touch()
    monkeypatch.setenv("LOADMANAGER_PULSAR", "http://broker-1:8080")
    text = unit.with_name("loadmanager-attach.service").read_text(encoding="utf-8")
    for setting, action in {"ExecStart=": "balance", "ExecStopPost=-": "restore"}.items():
        (line,) = re.findall(
            f"^{setting}/opt/loadmanager/bin/loadmanager (.*)$", text, re.MULTILINE
        )
        command, *arguments = line.replace("/etc/loadmanager/attach.toml", str(config)).split()
        context = attach_command.make_context(command, arguments)
        assert context.params[action]
        assert context.params["config"] == config
