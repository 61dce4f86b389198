"""A sound scenario as text, variations of it, and what reading them tells."""

from pathlib import Path
from typing import Final

import pytest

from loadmanager.simulator.scenario import Scenario, ScenarioError
from loadmanager.simulator.scenario_files import load_scenario

SOUND: Final = """\
title = "Two brokers"
duration_s = 600

[[brokers]]
name = "small"
count = 2

[[load]]
namespace = "public/default"
topics = 10
msgs_in_per_s = 100
"""


def told(folder: Path, text: str | bytes) -> list[str]:
    path = folder / "x.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path)
    return [
        fault.replace(f"{folder}/x.toml: ", "").replace(f"{folder}/", "")
        for fault in caught.value.faults
    ]


def loaded(folder: Path, text: str) -> Scenario:
    path = folder / "x.toml"
    path.write_text(text)
    return load_scenario(path)


def changed(old: str, new: str) -> str:
    assert old in SOUND
    return SOUND.replace(old, new)
