"""The systemd unit is one that systemd accepts, and gives the sidecar few rights."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from loadmanager.cli.agent import DISPLACED
from loadmanager.config.serving import OwnershipSettings

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
    assert "ExecStart=/opt/loadmanager/bin/loadmanager agent" in text
    program = Path(sys.executable).with_name("loadmanager")
    copy.write_text(text.replace("/opt/loadmanager/bin/loadmanager", str(program)), "utf-8")
    return copy


def test_systemd_accepts_the_unit(unit: Path, tmp_path: Path) -> None:
    verdict = analyze("verify", "--man=no", installed(unit, tmp_path))
    assert (verdict.returncode, verdict.stdout + verdict.stderr) == (0, "")


def test_systemd_would_notice_a_misspelt_setting(unit: Path, tmp_path: Path) -> None:
    copy = installed(unit, tmp_path)
    copy.write_text(copy.read_text("utf-8").replace("Restart=always", "Restart=alwys"), "utf-8")
    assert "alwys" in analyze("verify", "--man=no", copy).stderr


def test_unit_is_hardened(unit: Path) -> None:
    threshold = f"--threshold={MOST_EXPOSED}"
    verdict = analyze("security", "--offline=true", "--no-pager", threshold, unit)
    assert verdict.returncode == 0, verdict.stdout


def test_unit_comes_back_whatever_ends_it(unit: Path) -> None:
    lines = unit.read_text(encoding="utf-8").splitlines()
    assert {"Restart=always", "StartLimitIntervalSec=0"} <= set(lines)


def test_unit_leaves_a_sidecar_down_whose_broker_another_one_has(unit: Path) -> None:
    lines = unit.read_text(encoding="utf-8").splitlines()
    assert f"RestartPreventExitStatus={DISPLACED}" in lines


def test_unit_has_time_to_hand_everything_over_when_it_is_stopped(unit: Path) -> None:
    text = unit.read_text(encoding="utf-8")
    stop = re.search(r"^TimeoutStopSec=(\d+)s$", text, re.MULTILINE)
    assert stop is not None
    assert int(stop[1]) >= OwnershipSettings().drain_deadline_s + 30
