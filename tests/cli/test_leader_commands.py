import json
import re
import shlex
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from leader_queries import ASSESSMENT, B1, BUNDLE, BUNDLE_STORY, WEIGHED_STORY, FakeLeaderQueries
from snapshot_samples import hot_and_idle

from loadmanager.admin.decisions import PlanDocument, PlanQuery, Plans
from loadmanager.admin.documents import ShadowsDocument
from loadmanager.cli import main
from loadmanager.cli.decisions import age
from loadmanager.core.balancing import Balancing
from loadmanager.core.explaining import Candidate
from loadmanager.core.ids import BrokerId
from loadmanager.core.optimality import Optimality
from loadmanager.core.plan import Cause, Move
from loadmanager.core.planner import Planner
from loadmanager.core.snapshot.codec import encode_snapshot, in_force, in_force_to_json


@dataclass
class Planned(Plans):
    moves: tuple[Move, ...] = (Move(BUNDLE, BrokerId("b2:8080"), B1, Cause.OVERLOADED),)
    optimality: Optimality | None = ASSESSMENT.optimality

    async def plan(self, query: PlanQuery) -> PlanDocument:  # noqa: ARG002 - the same for all
        found = self.optimality
        return PlanDocument.model_validate(
            {
                "epoch": 4,
                "moves": self.moves,
                "refusals": [],
                "refusals_in_all": 0,
                "optimality": found,
                "with_moves": None if found is None else replace(found, largest=0.48),
                "in_force": in_force_to_json(in_force(Planner())),
                "balancing": Balancing(),
            }
        )


Serve = Callable[..., str]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_a_snapshot_is_the_leaders_by_way_of_any_sidecar(serve: Serve, tmp_path: Path) -> None:
    content = encode_snapshot(hot_and_idle())
    leader = serve(FakeLeaderQueries(content=content))
    follower = serve(FakeLeaderQueries(elsewhere=leader))
    file = tmp_path / "cluster.json"
    got = run("snapshot", "--url", f"{follower}/", "--out", str(file))
    assert (got.exit_code, got.output) == (0, "")
    assert file.read_bytes() == content
    got = run("snapshot", "--url", leader, "--out", "-")
    assert (got.exit_code, got.stdout_bytes) == (0, content)
    decided = run("decide", "--snapshot", str(file), "--json", "--shedder", "threshold")
    assert len(json.loads(decided.output)["rounds"][0]["moves"]) == 4


def test_a_file_that_cannot_be_written_ends_with_2(serve: Serve, tmp_path: Path) -> None:
    got = run("snapshot", "--url", serve(FakeLeaderQueries()), "--out", str(tmp_path / "no" / "x"))
    assert got.exit_code == 2
    assert "No such file or directory" in got.stderr


SHOWN = Path(__file__).with_name("leader_commands.txt").read_text("utf-8")
"""What commands print, each after a line ``$ loadmanager ...  # which leader``."""
MOVING = replace(BUNDLE_STORY, target=BrokerId("b3:8080"), decisions=(), grounds=())
FAR = tuple(Candidate(BrokerId(f"b{number}:80"), 0.1, 0.2, None) for number in range(10, 35))
LEADERS: Mapping[str, tuple[Mapping[str, Any], Planned]] = {
    "": ({}, Planned()),
    "weighs": ({"stories": {BUNDLE: WEIGHED_STORY}}, Planned()),
    "moves it": ({"stories": {BUNDLE: replace(MOVING, candidates=FAR)}}, Planned()),
    "knows no owner": (
        {"stories": {BUNDLE: replace(MOVING, owner=None, target=None, score=None)}},
        Planned(),
    ),
    "alone": (
        {"beside": ShadowsDocument(active="AvgShedder", shadows=[])},
        Planned(moves=(), optimality=None),
    ),
}


@pytest.mark.parametrize("shown", SHOWN.split("\n$ loadmanager ")[1:])
def test_people_are_told(serve: Serve, shown: str) -> None:
    line, _, told = shown.partition("\n")
    command, _, leader = line.partition("  # ")
    answers, planned = LEADERS[leader]
    leader_term = FakeLeaderQueries(**answers)
    leader_term.last_round = 0 if leader == "moves it" else leader_term.last_round
    got = run(*shlex.split(command), "--url", serve(leader_term, planned))
    # Of the settings in force the first stands for all.
    text = re.sub(
        r"(?m)^((?:Shedder|Placement|Planner)\b[^:\n]*: [^,\n]*), .*", r"\1, ...", got.output
    )
    assert (got.exit_code, text.rstrip()) == (0, told.rstrip())


def test_decisions_and_tasks_are_given_as_json_by_known_kinds_and_states(serve: Serve) -> None:
    url = serve(FakeLeaderQueries())
    told = json.loads(run("decisions", "--kind", "left-alone", "--json", "--url", url).output)
    assert [one["kind"] for one in told["decisions"]] == ["left_alone"]
    told = json.loads(run("tasks", "--state", "ordered", "--json", "--url", url).output)
    assert [one["number"] for one in told["tasks"]] == [12]
    assert json.loads(run("shadows", "--json", "--url", url).output)["active"] == "AvgShedder"
    for wrong in (("decisions", "--kind", "moves"), ("tasks", "--state", "proposed")):
        assert run(*wrong, "--url", url).exit_code == 2


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (59.9, "59.9 s"), (60, "1.0 min"), (5400, "1.5 h")]
)
def test_an_age_is_given_in_a_unit_that_fits(seconds: float, text: str) -> None:
    assert age(seconds) == text


def test_json_is_the_leaders_answer(serve: Serve) -> None:
    url = serve(FakeLeaderQueries())
    got = CliRunner().invoke(main, ["explain", B1, "--json"], env={"LOADMANAGER_URL": url})
    assert json.loads(got.output)["grounds"][0]["reason"] == "within_threshold"


@pytest.mark.parametrize(
    ("subject", "away", "code", "message"),
    [
        ("x", False, 2, "subject 'x' is not valid; expected a broker or a bundle\n"),
        ("b9:8080", False, 2, "b9:8080: no such broker is registered\n"),
        (B1, True, 1, "no leader is at work\n"),
    ],
)
def test_what_cannot_be_explained(
    serve: Serve, subject: str, *, away: bool, code: int, message: str
) -> None:
    got = run("explain", subject, "--url", serve(FakeLeaderQueries(away=away)))
    assert (got.exit_code, got.stderr) == (code, message)


@pytest.mark.parametrize("url", ["b1:7750", "ftp://b1:7750", "http://", "http://b1:x", "file:///x"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    got = run("explain", B1, "--url", url)
    assert got.exit_code == 2
    assert f"{url!r}; expected http://host:port of any sidecar" in got.stderr


def test_a_sidecar_that_is_not_there_ends_with_1() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        got = run("snapshot", "--url", url, "--out", "-")
    assert got.exit_code == 1
    assert got.stderr.startswith(f"{url}: ")
    assert "refused" in got.stderr


def test_what_is_no_sidecar_is_told_with_what_it_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.0 500 Oh\r\n\r\nbroken")

        thread = threading.Thread(target=answer)
        thread.start()
        got = run("snapshot", "--url", url, "--out", "-")
        thread.join(10)
    assert got.exit_code == 1
    assert got.stderr == f"{url}/admin/v2/loadmanager/snapshot: answered 500 broken\n"
