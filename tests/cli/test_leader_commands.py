import json
import re
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from leader_queries import (
    ASSESSMENT,
    AT_MS,
    B1,
    BUNDLE,
    BUNDLE_STORY,
    WEIGHED_STORY,
    FakeLeaderQueries,
)
from snapshot_samples import hot_and_idle

from loadmanager.admin.decisions import Decisions
from loadmanager.admin.plan import Plans
from loadmanager.cli import main
from loadmanager.cli.decisions import decision_lines
from loadmanager.cli.tasks import age
from loadmanager.core.balancing import Balancing
from loadmanager.core.candidates import Candidate
from loadmanager.core.ids import BrokerId
from loadmanager.core.optimality import Optimality
from loadmanager.core.plan import Cause, Move
from loadmanager.core.planner import Plan, Planner
from loadmanager.core.round_memory import RoundMemory
from loadmanager.core.snapshot.encoding import encode_snapshot, in_force
from loadmanager.ports.leading import PlanOverrides, Preview, ShadowList


@dataclass
class Planned:
    moves: tuple[Move, ...] = (Move(BUNDLE, BrokerId("b2:8080"), B1, Cause.OVERLOADED),)
    optimality: Optimality | None = ASSESSMENT.optimality

    async def plan(self, _wish: PlanOverrides) -> Preview:
        found = self.optimality
        return Preview(
            plan=Plan(moves=self.moves, refusals=(), memory=RoundMemory()),
            optimality=found,
            with_moves=None if found is None else replace(found, largest=0.48),
            epoch=4,
            in_force=in_force(Planner()),
            balancing=Balancing(),
        )


Serve = Callable[..., str]


@pytest.fixture(name="serve")
def serve_fixture(serve: Callable[..., str]) -> Serve:
    return lambda leader_term, *more: serve(Decisions(leader_term), *more)


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


def test_a_bundle_is_explained_to_people(serve: Serve) -> None:
    got = run("explain", BUNDLE, "--url", serve(FakeLeaderQueries()))
    assert got.exit_code == 0, got.output
    text = got.output
    assert text.startswith(
        f"{BUNDLE} is on b1:8080.\n"
        "Traffic 1500.0 messages/s, 2500.0 kB/s; its broker's score 0.600; "
        "mean 0.450, lowest 0.300, highest 0.600.\n"
    )
    assert (
        "2023-11-14 22:14:20Z, epoch 4, round 8: left alone (no_improvement)\n"
        "  Wherever it went, that broker would stand about as high as its own does now.\n"
        "  Numbers: b1:8080 stands at 0.600, without it at 0.500\n"
        "  It would take: A broker with more room, a smaller bundle, or a smaller margin.\n"
    ) in text
    assert "round 7: moved from b2:8080 to b1:8080 (overloaded)\n" in text
    assert "  Carried out by task 10: serving\n" in text
    assert (
        "\nTask 12, move from b1:8080 to b3:8080: ordered, 1.5 min old "
        "(asked by drain, attempts: 2)\n"
    ) in text
    assert "  recently_moved (t/ns/0x00000000_0x20000000)\n" in text
    assert "  round_budget (the whole round)\n" in text
    assert "b3:8080  0.300    0.410  may take it\n" in text
    assert "b2:8080  0.450    0.610  no_improvement  Wherever it went" in text
    assert "Shedder threshold: threshold 0.1, history 0.9, " in text
    assert 'Planner: mode "safe", observe false, ' in text
    assert (
        "The cluster: fullest broker 60.0%; no assignment below 40.0%, within policies 48.0%; "
        "gap 50%.\n"
    ) in text
    assert text.endswith(
        "Explained by b1:8080, leader of epoch 4; last round 8 at 2023-11-14 22:14:20Z.\n"
    )


def test_what_a_move_is_weighed_by_is_told_with_where_it_is_known_from(serve: Serve) -> None:
    url = serve(FakeLeaderQueries(stories={BUNDLE: WEIGHED_STORY}))
    text = run("explain", BUNDLE, "--url", url).output
    assert (
        "Weighed by learned costs: the level is 0.400, and 75% of a change of traffic is taken "
        "to last for ten minutes.\n"
    ) in text
    rows = [line.split() for line in text.splitlines()]
    assert ["cpu", "0.600", "0.580", "0.050", "1.25", "0.010"] in rows
    assert ["cpu", "80", "%", "of", "a", "core", "4", "load", "reports", "96%"] in rows
    assert ["b3:8080", "cpu", "0.300", "0.400", "2.5000", "0.1250", "may", "take", "it"] in rows
    assert ["b2:8080", "-", "-", "-", "-", "-", "report_stale"] in [row[:7] for row in rows]


def test_a_broker_is_explained_to_people(serve: Serve) -> None:
    text = run("explain", B1, "--url", serve(FakeLeaderQueries())).output
    assert text.startswith("b1:8080 has 12 bundles.\n")
    assert f"round 7: {BUNDLE}: moved from b2:8080 to b1:8080 (overloaded)\n" in text
    assert "  within_threshold (b1:8080)\n    The load is within what the strategy" in text
    assert "Where it could go" not in text


def test_a_bundle_on_its_way_and_one_of_nobody_are_told_as_such(serve: Serve) -> None:
    moving = replace(BUNDLE_STORY, target=BrokerId("b3:8080"), decisions=(), grounds=())
    orphan = replace(moving, owner=None, target=None, score=None)
    others = tuple(Candidate(BrokerId(f"b{number}:80"), 0.1, 0.2, None) for number in range(10, 35))
    leader_term = FakeLeaderQueries(
        stories={"a/b": replace(moving, candidates=others), "c/d": orphan}
    )
    leader_term.last_round = 0
    url = serve(leader_term)
    text = run("explain", "a/b", "--url", url).output
    assert f"{BUNDLE} is on b1:8080, on its way to b3:8080.\n" in text
    assert "This leader has decided nothing about it.\n" in text
    assert "... and 5 more (--json prints all)\n" in text
    assert text.endswith("leader of epoch 4; no round yet.\n")
    assert f"{BUNDLE} is reported by no broker.\n" in run("explain", "c/d", "--url", url).output


def test_a_plan_is_shown_with_the_distance_from_the_best_before_and_after(serve: Serve) -> None:
    url = serve(FakeLeaderQueries(), Plans(Planned().plan))
    text = run("plan", "--url", url).output
    assert "1 moves\n" in text
    assert text.endswith(
        "\nNow: fullest broker 60.0%; no assignment below 40.0%, within policies 48.0%; gap 50%\n"
        "With these moves: fullest broker 48.0%; no assignment below 40.0%, within policies 48.0%; "
        "gap 20%\n"
    )
    url = serve(FakeLeaderQueries(), Plans(Planned(moves=(), optimality=None).plan))
    assert run("plan", "--url", url).output == (
        "Nothing would move.\n\nNow: fullest broker: not known yet\n"
    )


def test_strategies_beside_the_active_one_are_shown_in_80_columns(serve: Serve) -> None:
    url = serve(FakeLeaderQueries())
    assert run("shadows", "--url", url).output.splitlines()[1:] == [
        "Beside AvgShedder",
        "strategy          rounds   gap  mean gap  regret  moves  traffic moved",
        "JointShedder           2  0.0%     12.5%  +37.5%      6          25.0%",
        "ThresholdShedder       0     -      0.0%   +0.0%      0           0.0%",
        "AvgShedder in the last 2 rounds: mean gap 50.0%, 2 moves, traffic moved 12.5%",
    ]
    assert json.loads(run("shadows", "--json", "--url", url).output)["active"] == "AvgShedder"
    none = serve(FakeLeaderQueries(beside=ShadowList(active="AvgShedder", shadows={})))
    assert run("shadows", "--url", none).output == (
        "No strategy decides beside the active one: [shedding] shadows names them.\n"
    )


def test_decisions_are_listed_in_80_columns_with_their_kind(serve: Serve) -> None:
    got = run("decisions", "--url", serve(FakeLeaderQueries()))
    assert got.exit_code == 0, got.output
    assert got.output == (
        "2023-11-14  kind        bundle, from -> to, numbers\n"
        "22:14:20    left-alone  t/ns/0x00000000_0x20000000          no_improvement\n"
        "            b1:8080 stands at 0.600, without it at 0.500\n"
        "22:13:20    move        t/ns/0x00000000_0x20000000          overloaded\n"
        "            b2:8080 -> b1:8080\n"
        "            task 10: serving\n"
        "\n"
        "no_improvement: Wherever it went, that broker would stand about as high as its\n"
        "  own does now.\n"
        "overloaded: Its broker carried more than the strategy allows.\n"
    )


def test_decisions_are_filtered_and_a_full_page_says_so(serve: Serve) -> None:
    url = serve(FakeLeaderQueries())
    wishes = ("--kind", "move", "--kind", "drain", "--namespace", "t/ns", "--broker", "b2:8080")
    text = run("decisions", *wishes, "--url", url).output
    assert "22:13:20    move " in text
    assert "left-alone" not in text
    assert "These are the newest" not in text
    assert "left-alone" not in run("decisions", "--kind", "move", "--url", url).output
    last = run("decisions", "--limit", "1", "--url", url).output
    assert last.endswith("\nThese are the newest 1; --limit shows more.\n")
    for wish in (("--since", "1m"), ("--namespace", "t/other"), ("--bundle", "t/ns/x")):
        none = run("decisions", *wish, "--url", url)
        assert (none.exit_code, none.output) == (0, "No decision of this leader's term matches.\n")
    told = json.loads(run("decisions", "--kind", "left-alone", "--json", "--url", url).output)
    assert [one["kind"] for one in told["decisions"]] == ["left_alone"]
    assert run("decisions", "--kind", "moves", "--url", url).exit_code == 2


def test_live_tasks_are_listed_with_age_state_cause_and_attempts(serve: Serve) -> None:
    got = run("tasks", "--url", serve(FakeLeaderQueries()))
    assert got.exit_code == 0, got.output
    title, names, row = got.output.strip().splitlines()
    assert title == "1 tasks at 2023-11-14 22:14:50Z, leader b1:8080, epoch 4"
    assert re.split("  +", names) == [
        *("task", "kind", "state", "age", "attempts", "cause", "asked by", "bundle"),
        *("from", "to", "note"),
    ]
    assert re.split("  +", row.strip()) == [
        *("12", "move", "ordered", "1.5 min", "2", "draining", "drain", BUNDLE),
        *("b1:8080", "b3:8080"),
    ]


def test_ended_tasks_follow_with_the_reason_of_their_end(serve: Serve) -> None:
    url = serve(FakeLeaderQueries())
    rows = run("tasks", "--all", "--url", url).output.strip().splitlines()[2:]
    assert [row.split()[:4] for row in rows] == [
        ["12", "move", "ordered", "1.5"],
        ["11", "place", "superseded", "12.0"],
    ]
    assert rows[1].endswith("task 12 took its place; ended 2023-11-14 22:12:32Z")
    assert "(no owner)" in rows[1]
    alone = run("tasks", "--state", "superseded", "--url", url).output.splitlines()[-1]
    assert alone.split() == rows[1].split()
    first = run("tasks", "--all", "--limit", "1", "--url", url).output
    assert first.endswith("\nThese are the first 1; --limit shows more.\n")


def test_tasks_are_filtered_and_given_as_json(serve: Serve) -> None:
    url = serve(FakeLeaderQueries())
    wishes = ("--kind", "move", "--namespace", "t/ns", "--broker", B1, "--bundle", BUNDLE)
    told = json.loads(run("tasks", *wishes, "--state", "ordered", "--json", "--url", url).output)
    assert [one["number"] for one in told["tasks"]] == [12]
    none = run("tasks", "--kind", "split", "--url", url)
    want = "No task under way fits. --all lists those that ended.\n"
    assert (none.exit_code, none.output) == (0, want)
    none = run("tasks", "--state", "timed-out", "--url", url)
    assert none.output == "No task of this leader's term fits.\n"
    assert run("tasks", "--state", "proposed", "--url", url).exit_code == 2


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (59.9, "59.9 s"), (60, "1.0 min"), (5400, "1.5 h")]
)
def test_an_age_is_given_in_a_unit_that_fits(seconds: float, text: str) -> None:
    assert age(seconds) == text


def test_long_names_in_decisions_are_kept_whole() -> None:
    long = "pulsar-broker-0.pulsar-broker.production.svc.cluster.local:8080"
    bundle = "a-tenant-with-a-long-name/and-such-a-namespace/0x00000000_0x20000000"
    one = {
        "atMs": AT_MS,
        "kind": "drain",
        "code": "draining",
        "subject": bundle,
        "source": long,
        "target": long.replace("-0", "-1"),
        "detail": "",
    }
    lines = list(decision_lines([one]))
    assert [line.strip() for line in lines[1:]] == [
        f"22:13:20    drain       {bundle}",
        "draining",
        long,
        f"-> {long.replace('-0', '-1')}",
    ]


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


def test_a_sidecar_that_says_nothing_ends_with_1() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        got = run("snapshot", "--url", url, "--out", "-", "--timeout", "0.2")
    assert (got.exit_code, got.stderr) == (1, f"{url}: no answer within 0.2 s\n")


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
