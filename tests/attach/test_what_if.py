"""`loadmanager simulate --from`: a real cluster with other brokers or other traffic."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from fake_pulsar import FakePulsar

from loadmanager.cli import main
from loadmanager.cli import what_if as command

BUNDLES = 8


@pytest.fixture
def snapshot(pulsar: FakePulsar, tmp_path: Path) -> Path:
    """Return what `attach --once --json` prints: eight bundles that are alike, on one of three."""
    attach = ["attach", "--pulsar", pulsar.url, "--interval", "0.3", "--once", "--json"]
    found = CliRunner().invoke(main, attach)
    assert found.exit_code == 0, found.output
    file = tmp_path / "snapshot.json"
    file.write_text(found.stdout, encoding="utf-8")
    return file


def what_if(source: Path | str, *more: str) -> Result:
    return CliRunner().invoke(main, ["simulate", "--from", str(source), *more])


def told(source: Path, *more: str) -> dict[str, Any]:
    found = what_if(source, "--json", *more)
    assert found.exit_code == 0, found.output
    document: dict[str, Any] = json.loads(found.stdout)
    return document


def test_without_a_change_it_is_as_it_is(snapshot: Path) -> None:
    found = told(snapshot)
    assert found["now"] == found["changed"]
    assert found["now"]["maxOverMean"] == pytest.approx(3.0)
    assert found["now"]["plannedMaxOverMean"] == pytest.approx(9 / 8)
    assert len(found["now"]["moves"]) == 5


def test_brokers_that_come_take_their_share(snapshot: Path) -> None:
    found = told(snapshot, "--add-brokers", "2")["changed"]
    assert [one["broker"] for one in found["brokers"]][3:] == ["new-1", "new-2"]
    assert found["maxOverMean"] == pytest.approx(5.0)
    total = sum(one["msgsPerS"] for one in found["brokers"])
    evened = [one["evenedMsgsPerS"] for one in found["brokers"]]
    assert max(evened) == pytest.approx(2 * total / BUNDLES, rel=1e-3)
    assert sum(evened) == pytest.approx(total)


def test_a_lost_brokers_bundles_are_on_the_others(snapshot: Path, pulsar: FakePulsar) -> None:
    first, *others = [one.name for one in pulsar.brokers]
    found = told(snapshot, "--lose-broker", first)
    assert found["placed"] == BUNDLES
    assert {one["broker"] for one in found["changed"]["brokers"]} == set(others)
    assert found["changed"]["maxOverMean"] == pytest.approx(1.0, rel=1e-3)
    assert found["changed"]["moves"] == []


def test_a_namespace_with_more_traffic(snapshot: Path) -> None:
    found = told(snapshot, "--times", "bench/skew=2")

    def total(one: dict[str, Any]) -> float:
        return float(sum(broker["msgsPerS"] for broker in one["brokers"]))

    assert total(found["changed"]) == pytest.approx(2 * total(found["now"]))


def test_a_running_cluster_is_looked_at(
    pulsar: FakePulsar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "INTERVAL_S", 0.3)
    found = what_if(pulsar.url, "--json")
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["now"]["maxOverMean"] == pytest.approx(3.0)


def test_people_are_told_in_a_table(snapshot: Path) -> None:
    found = what_if(snapshot, "--add-brokers", "1")
    assert found.exit_code == 0, found.output
    assert "new-1" in found.output
    assert "changed: the fullest broker has 4.00 times the mean, 1.00 after 6 moves" in found.output


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--lose-broker", "nobody:1"], "broker nobody:1 is not there; expected one of 127.0.0.1:"),
        (["--times", "no/where=2"], "namespace no/where has no bundle"),
        (["--times", "bench=2"], "expected tenant/namespace=factor"),
        (["--times", "bench/skew=x"], "expected tenant/namespace=factor"),
        (["--times", "bench/skew=-1"], "expected a factor from 0"),
        (["--times", "bench/skew=nan"], "expected a factor from 0"),
        (["over-placement"], "--from is given instead of scenarios"),
    ],
)
def test_what_cannot_be_is_named(snapshot: Path, options: list[str], expected: str) -> None:
    found = what_if(snapshot, *options)
    assert found.exit_code == 2
    assert expected in " ".join(found.output.split())


def test_losing_all_brokers_is_refused(snapshot: Path, pulsar: FakePulsar) -> None:
    found = what_if(snapshot, *(f"--lose-broker={one.name}" for one in pulsar.brokers))
    assert (found.exit_code, "no broker would be left" in found.output) == (2, True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"brokers": 7, "staying": {}}',
        '{"brokers": [], "staying": {}}',
        (
            '{"brokers": [{"broker": "a:1", "traffic": {"bundle": ["t/n/0x00000000_0xffffffff"], '
            f'"msgsInPerS": [1{"0" * 400}], "msgsOutPerS": [0], "bytesInPerS": [1], '
            '"bytesOutPerS": [1]}}], "staying": {}}'
        ),
        '{"brokers": [{"broker": "a:1"}], "staying": {}}',
        (
            '{"brokers": [{"broker": "a:1", "traffic": {"bundle": ["x"], "msgsInPerS": [1], '
            '"msgsOutPerS": [1], "bytesInPerS": [1], "bytesOutPerS": [1]}}], "staying": {}}'
        ),
        (
            '{"brokers": [{"broker": "a:1", "traffic": {"bundle": ["t/n/0x00000000_0xffffffff"], '
            '"msgsInPerS": [-1], "msgsOutPerS": [0], "bytesInPerS": [1], "bytesOutPerS": [1]}}], '
            '"staying": {}}'
        ),
        (
            '{"brokers": [{"broker": "a:1", "traffic": {"bundle": ["t/n/0x00000000_0xffffffff"], '
            '"msgsInPerS": [], "msgsOutPerS": [0], "bytesInPerS": [1], "bytesOutPerS": [1]}}], '
            '"staying": {}}'
        ),
    ],
)
def test_what_is_no_snapshot_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(text, encoding="utf-8")
    found = what_if(file)
    assert found.exit_code == 2
    assert str(file) in found.stderr
    assert "expected" in found.stderr


def test_a_file_that_is_not_there_and_a_cluster_that_does_not_answer_are_named(
    tmp_path: Path,
) -> None:
    found = what_if(tmp_path / "gone.json")
    assert (found.exit_code, "gone.json: No such file" in found.stderr) == (2, True)
    found = what_if("http://127.0.0.1:9")
    assert (found.exit_code, "http://127.0.0.1:9" in found.stderr) == (2, True)


def test_changes_need_a_cluster() -> None:
    found = CliRunner().invoke(main, ["simulate", "over-placement", "--add-brokers", "2"])
    assert (found.exit_code, "are given with --from" in found.output) == (2, True)
