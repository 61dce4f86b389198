"""docs/scenario-format.md and the commands for those who write scenarios."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from scenario_reference import EXAMPLE, scenario_reference

from loadmanager.cli import main
from loadmanager.config.forms import Section
from loadmanager.simulator.catalogue import find, shipped
from loadmanager.simulator.scenario import Scenario
from loadmanager.simulator.scenario.shapes import Key, Kinds, Several, Shape, Table, keys_of
from loadmanager.simulator.scenario_files import ScenarioError, load_scenario


def keys_in(model: type[Section]) -> list[Key]:
    found = list(keys_of(model).values())
    return found + [inner for key in found for inner in keys_below(key.shape)]


def keys_below(shape: Shape) -> list[Key]:
    if isinstance(shape, Several):
        return keys_below(shape.of)
    if isinstance(shape, Table):
        return keys_in(shape.model)
    if isinstance(shape, Kinds):
        return [key for model in shape.models.values() for key in keys_in(model)]
    return []


def run(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["config", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def test_every_key_says_what_it_does() -> None:
    # Which kind it is says itself.
    assert {key.name for key in keys_in(Scenario) if not key.field.description} == {"kind"}


def test_every_key_but_those_of_a_configuration_is_in_the_reference() -> None:
    text = scenario_reference()
    own = [key for key in keys_in(Scenario) if key.name not in {"kind", "settings"}]
    in_configuration = {
        key.name
        for name in ("report", "leader", "shedding", "placement", "planner")
        for key in keys_below(keys_of(Scenario)[name].shape)
    }
    missing = [key.name for key in own if f"| `{key.name}` | {key.field.description}" not in text]
    assert set(missing) <= in_configuration


def test_the_example_of_the_reference_is_sound(tmp_path: Path) -> None:
    path = tmp_path / "example.toml"
    path.write_text(EXAMPLE)
    assert load_scenario(path).title == "A broker joins"


def test_a_shipped_scenario_is_found_by_name_and_ones_own_by_its_path(tmp_path: Path) -> None:
    assert find("trace-example") == shipped()["trace-example"]
    assert find("mine.toml") == Path("mine.toml")
    assert find("./mine") == Path("./mine")
    own = tmp_path / "mine"
    own.write_text(EXAMPLE)
    assert find(str(own)) == own


def test_a_name_that_no_scenario_has_is_told_with_those_there_are() -> None:
    with pytest.raises(ScenarioError) as caught:
        find("trace-exampel")
    (fault,) = caught.value.faults
    assert fault.startswith(
        "scenario 'trace-exampel'; expected a .toml file or one of all-on-one, "
    )
    assert fault.endswith("; did you mean trace-example?")


def test_the_check_tells_every_mistake_of_every_file_and_ends_with_1(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text(EXAMPLE)
    bad.write_text("seed = -1\n" + EXAMPLE)
    code, out, err = run("check-scenario", bad, "nothing", good)
    assert (code, out.count("sound")) == (1, 1)
    assert err.startswith(f"{bad}: seed = -1; expected a whole number from 0 below 4294967296\n")
    assert "scenario 'nothing'; expected" in err


def test_the_check_reads_the_trace(tmp_path: Path) -> None:
    path, trace = tmp_path / "x.toml", tmp_path / "rates.csv"
    path.write_text(EXAMPLE)
    sound = f"{path}: sound: 4 brokers, 64 bundles, 3600 s\n"
    assert run("check-scenario", path) == (0, sound, "")
    trace.write_text("time_s,topic,msg_rate_in\n0,a,1\n1800,a,1\n")
    sound = f"{path}: sound: 4 brokers, 1 topics at 2 times, 3600 s\n"
    assert run("check-scenario", path, "--trace", trace) == (0, sound, "")
    trace.write_text("time_s,topic\n")
    assert run("check-scenario", path, "--trace", trace)[0] == 1
