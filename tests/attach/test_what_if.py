"""`loadmanager simulate --from`: a real cluster with other brokers or other traffic."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from fake_pulsar import FakePulsar

from loadmanager.cli import main
from loadmanager.cli import what_if as command
from tests.attach.conftest import attach, isolation_policy

BUNDLES = 8


@pytest.fixture
def snapshot(pulsar: FakePulsar, tmp_path: Path) -> Path:
    """Return what `attach --once --json` prints: eight bundles that are alike, on one of three."""
    found = attach(pulsar, "--once", "--json")
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


def test_a_running_cluster_is_seen_with_its_policies_and_asked_with_a_token(
    pulsar: FakePulsar, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "INTERVAL_S", 0.3)
    pulsar.isolation["none"] = {
        "namespaces": ["bench/.*"],
        "primary": ["elsewhere"],
        "secondary": [],
        "auto_failover_policy": {"policy_type": "min_available", "parameters": {}},
    }
    file = tmp_path / "token"
    file.write_text("a.b.c\n", encoding="utf-8")
    found = what_if(pulsar.url, "--json", "--token-file", str(file))
    assert found.exit_code == 0, found.output
    now = json.loads(found.stdout)["now"]
    assert (now["maxOverMean"], now["moves"]) == (pytest.approx(3.0), [])
    assert {one for broker in pulsar.brokers for one in broker.authorizations} == {"Bearer a.b.c"}


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
        (["--token-file", "FILE"], "--token-file is given with --from URL"),
        (["--lose-broker=EACH"], "no broker would be left"),
    ],
)
def test_what_cannot_be_is_named(
    snapshot: Path, pulsar: FakePulsar, options: list[str], expected: str
) -> None:
    names = [one.name for one in pulsar.brokers] if "EACH" in options[0] else [""]
    given = [one.replace("EACH", name) for name in names for one in options]
    found = what_if(snapshot, *(str(snapshot) if one == "FILE" else one for one in given))
    assert found.exit_code == 2
    assert expected in " ".join(found.output.split())


@pytest.mark.parametrize(
    ("option", "expected"),
    [("--ca-file=README.md", "is given with --from URL"), ("--add-brokers=2", "given with --from")],
)
def test_changes_and_access_need_a_cluster(option: str, expected: str) -> None:
    found = CliRunner().invoke(main, ["simulate", "over-placement", option])
    assert (found.exit_code, expected in found.output) == (2, True)


def with_traffic(**columns: list[Any]) -> str:
    """Return a snapshot of a broker with one bundle, with other columns."""
    rates = {"msgsInPerS": [1], "msgsOutPerS": [0], "bytesInPerS": [1], "bytesOutPerS": [1]}
    traffic = {"bundle": ["t/n/0x00000000_0xffffffff"], **rates, **columns}
    return json.dumps({"brokers": [{"broker": "a:1", "traffic": traffic}], "staying": {}})


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", '{"brokers": 7, "staying": {}}', '{"brokers": [], "staying": {}}'),
        '{"brokers": [{"broker": "a:1"}], "staying": {}}',
        with_traffic(bundle=["x"]),
        with_traffic(msgsInPerS=[10**400]),
        with_traffic(msgsInPerS=[-1]),
        with_traffic(msgsInPerS=[]),
    ],
)
def test_what_is_no_snapshot_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(text, encoding="utf-8")
    found = what_if(file)
    assert found.exit_code == 2
    assert str(file) in found.stderr
    assert "expected" in found.stderr


def test_a_missing_file_and_a_cluster_that_does_not_answer_are_named(tmp_path: Path) -> None:
    found = what_if(tmp_path / "gone.json")
    assert (found.exit_code, "gone.json: No such file" in found.stderr) == (2, True)
    found = what_if("http://127.0.0.1:9")
    assert (found.exit_code, "http://127.0.0.1:9" in found.stderr) == (2, True)


def isolated(snapshot: Path, *, primary: list[str], secondary: list[str]) -> None:
    """Let a policy govern the namespace of a snapshot, as `attach --once --json` tells it."""
    document = json.loads(snapshot.read_text(encoding="utf-8"))
    assert document["isolation"] == {}
    document["isolation"] = {"own": isolation_policy("bench/.*", primary, secondary)}
    for number, broker in enumerate(document["brokers"]):
        broker["broker"] = f"host-{number}:8080"
    snapshot.write_text(json.dumps(document), encoding="utf-8")


def by_broker(outlook: dict[str, Any]) -> dict[str, bool]:
    return {one["broker"]: one["evenedMsgsPerS"] > 0 for one in outlook["brokers"]}


@pytest.fixture
def first_host(snapshot: Path, pulsar: FakePulsar) -> int:
    names = [one["broker"] for one in json.loads(snapshot.read_text(encoding="utf-8"))["brokers"]]
    return names.index(pulsar.brokers[0].name)


def test_moves_go_to_primary_brokers_alone(snapshot: Path, first_host: int) -> None:
    other = (first_host + 1) % 3
    isolated(snapshot, primary=[f"host-{first_host}", f"host-{other}"], secondary=[])
    found = told(snapshot, "--add-brokers", "1")["changed"]
    assert {one["target"] for one in found["moves"]} == {f"host-{other}:8080"}
    assert len(found["moves"]) == BUNDLES / 2
    # A broker that comes is governed by its name like any other.
    isolated_again = json.loads(snapshot.read_text(encoding="utf-8"))
    isolated_again["isolation"]["own"]["primary"] = [f"host-{first_host}", "new-.*"]
    snapshot.write_text(json.dumps(isolated_again), encoding="utf-8")
    found = told(snapshot, "--add-brokers", "1")["changed"]
    assert {one["target"] for one in found["moves"]} == {"new-1"}


def test_a_secondary_broker_gets_a_lost_ones_bundles(snapshot: Path, first_host: int) -> None:
    other = (first_host + 1) % 3
    isolated(snapshot, primary=[f"host-{first_host}"], secondary=[f"host-{other}"])
    found = told(snapshot, "--lose-broker", f"host-{first_host}:8080")
    assert (found["placed"], found["unserved"]) == (BUNDLES, [])
    assert [n for n, busy in by_broker(found["changed"]).items() if busy] == [f"host-{other}:8080"]


def test_bundles_that_no_broker_may_serve_are_named(snapshot: Path, first_host: int) -> None:
    isolated(snapshot, primary=[f"host-{first_host}"], secondary=[])
    lose = ("--lose-broker", f"host-{first_host}:8080")
    found = told(snapshot, *lose)
    assert (found["placed"], len(found["unserved"])) == (0, BUNDLES)
    assert not any(by_broker(found["changed"]).values())
    said = what_if(snapshot, *lose).output
    assert f"{BUNDLES} bundles have no broker that isolation policies allow: bench/skew/" in said


def test_policies_that_are_none_are_refused(snapshot: Path) -> None:
    document = json.loads(snapshot.read_text(encoding="utf-8"))
    every: list[object] = [3, {"own": {"namespaces": [7]}}, {"own": []}]
    for wrong in every:
        snapshot.write_text(json.dumps({**document, "isolation": wrong}), encoding="utf-8")
        found = what_if(snapshot)
        assert found.exit_code == 2
        assert "isolation" in found.output
