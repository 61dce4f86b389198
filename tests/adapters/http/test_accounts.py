import json
from typing import Any

import pytest
from leader_queries import AT_MS, B1, B3, BUNDLE, FakeLeaderQueries

from loadmanager.admin.documents import TasksQuery
from loadmanager.core.bundle_task import TaskKind, TaskState
from loadmanager.core.planner import Planner
from loadmanager.core.settings import values_of
from loadmanager.core.shedding import ThresholdShedder
from tests.adapters.http.conftest import RunningServer, StartServer

ROOT = "/admin/v2/loadmanager"
QUESTIONS = (
    f"{ROOT}/snapshot",
    f"{ROOT}/explain?subject={B1}",
    f"{ROOT}/decisions?limit=5",
    f"{ROOT}/tasks?live=true",
    f"{ROOT}/optimality",
    f"{ROOT}/shadows",
)


@pytest.fixture
def leader_term() -> FakeLeaderQueries:
    return FakeLeaderQueries()


@pytest.fixture
async def leader(start_server: StartServer, leader_term: FakeLeaderQueries) -> RunningServer:
    return await start_server(more_routes=tuple(leader_term.routes()))


async def test_a_snapshot_is_whole(leader: RunningServer, leader_term: FakeLeaderQueries) -> None:
    got = await leader.ask(QUESTIONS[0])
    assert (got.status, got.headers["Content-Type"]) == (200, "application/json")
    assert got.text.encode() == leader_term.content


async def test_the_distance_from_the_best_is_that_of_the_last_round(
    leader: RunningServer, leader_term: FakeLeaderQueries
) -> None:
    figures = {"largest": 0.6, "bound": 0.4, "boundWithinPolicies": 0.48, "excess": 0.125} | {
        "gap": pytest.approx(0.5),
        "gapWithinPolicies": pytest.approx(0.25),
        "round": 8,
        "atMs": AT_MS + 60_000,
    }
    assert (await leader.ask(f"{ROOT}/optimality")).json() == {"optimality": figures}
    assert (await leader.ask(QUESTIONS[1])).json()["optimality"] == figures
    leader_term.last_round = 0
    assert (await leader.ask(f"{ROOT}/optimality")).json() == {"optimality": None}


async def test_the_thresholds_in_force_are_told(leader: RunningServer) -> None:
    told = (await leader.ask(QUESTIONS[1])).json()["inForce"]
    assert told["shedder"] == {"strategy": "threshold", "settings": values_of(ThresholdShedder())}
    assert told["planner"] == json.loads(json.dumps(values_of(Planner().settings)))


@pytest.mark.parametrize(("query", "limit"), [("", 100), ("?limit=1", 1), ("?limit=10000", 10_000)])
async def test_as_many_decisions_are_told_as_asked_for(
    leader: RunningServer, leader_term: FakeLeaderQueries, query: str, limit: int
) -> None:
    told = (await leader.ask(f"{ROOT}/decisions{query}")).json()["decisions"]
    assert [one["round"] for one in told] == [8, 7][:limit]
    assert leader_term.asked == [f"decisions {limit}"]


async def test_a_full_page_of_decisions_names_the_next(leader: RunningServer) -> None:
    page = (await leader.ask(f"{ROOT}/decisions?limit=1")).json()
    assert page["next"] == page["decisions"][0]["number"]
    assert (await leader.ask(f"{ROOT}/decisions")).json()["next"] is None


@pytest.mark.parametrize(
    ("query", "field", "told"),
    [
        (f"kind=move&subject={BUNDLE}", "outcome", ["moved"]),
        ("broker=b9:1", "kind", []),
        ("namespace=t/n", "kind", []),
        ("kind=move&kind=drain&namespace=t/ns", "kind", ["move"]),
        (f"sinceMs={AT_MS + 1}", "kind", ["left_alone"]),
    ],
)
async def test_decisions_are_filtered(
    leader: RunningServer, query: str, field: str, told: list[str]
) -> None:
    found = (await leader.ask(f"{ROOT}/decisions?{query}")).json()["decisions"]
    assert [one[field] for one in found] == told


TASK = json.loads(f"""{{"number": 12, "kind": "move", "bundles": ["{BUNDLE}"], "source": "{B1}",
 "target": "{B3}", "cause": "draining",
 "meaning": "Its broker is draining: everything is taken off it.", "askedBy": "drain",
 "state": "ordered", "live": true, "ageS": 90.0, "attempts": 2, "proposedAtMs": {AT_MS},
 "orderedAtMs": {AT_MS + 500}, "attemptedAtMs": {AT_MS + 15_500}, "releasedAtMs": null,
 "endedAtMs": null, "seenBeforeMs": null, "seenAfterMs": null, "influence": {{
 "msgsInPerS": 500.0, "msgsOutPerS": 1000.0, "bytesInPerS": 5e5, "bytesOutPerS": 2e6}},
 "note": ""}}""")


async def test_a_task_is_given_with_its_age_times_and_influence(leader: RunningServer) -> None:
    told = (await leader.ask(f"{ROOT}/tasks?live=true")).json()
    head = {name: told[name] for name in ("leader", "epoch", "atMs", "found")}
    assert head == {"leader": B1, "epoch": 4, "atMs": AT_MS + 90_000, "found": 1}
    assert told["tasks"] == [TASK]


async def test_a_task_that_ended_is_as_old_as_it_became(leader: RunningServer) -> None:
    told = (await leader.ask(f"{ROOT}/tasks?state=superseded")).json()["tasks"]
    assert [(one["number"], one["live"], one["ageS"]) for one in told] == [(11, False, 12.0)]
    assert (told[0]["endedAtMs"], told[0]["influence"]) == (AT_MS - 48_000, None)
    assert (told[0]["note"], told[0]["source"]) == ("task 12 took its place", None)


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ("", [12, 11]),
        ("live=false", [12, 11]),
        ("limit=1", [12]),
        ("state=ordered&state=superseded", [12, 11]),
        ("state=timed_out", []),
        ("kind=place", [11]),
        ("kind=place&kind=move", [12, 11]),
        ("kind=place&live=true", []),
        (f"bundle={BUNDLE}", [12]),
        ("namespace=t/other", [11]),
        ("namespace=t/oth", []),
        (f"broker={B1}", [12, 11]),
        (f"broker={B3}", [12]),
    ],
)
async def test_tasks_are_filtered(leader: RunningServer, query: str, numbers: list[int]) -> None:
    told = (await leader.ask(f"{ROOT}/tasks?{query}")).json()
    assert [one["number"] for one in told["tasks"]] == numbers
    assert told["found"] == (2 if query == "limit=1" else len(numbers))


def test_every_state_but_that_of_a_proposal_and_every_kind_can_be_asked_for() -> None:
    schema = TasksQuery.model_json_schema()["properties"]
    states = set(TaskState) - {TaskState.PROPOSED}
    assert set(schema["state"]["items"]["enum"]) == states
    assert set(schema["kind"]["items"]["enum"]) == set(TaskKind)


@pytest.mark.parametrize(
    ("path", "status", "reason"),
    [
        ("/explain", 400, "the query parameter subject = {}: Field required"),
        ("/explain?subject=", 400, "the query parameter subject = '': String should have"),
        ("/explain?subject=x", 412, "subject 'x' is not valid; expected a broker or a bundle"),
        ("/explain?subject=b9:8080", 404, "b9:8080: no such broker is registered"),
        ("/decisions?limit=0", 400, "the query parameter limit = 0: Input should be greater than"),
        ("/tasks?limit=0", 400, "the query parameter limit = 0: Input should be greater than"),
        ("/tasks?live=1", 400, "the query parameter live = '1': Input should be a valid boolean"),
        ("/tasks?state=proposed", 400, "the query parameter state"),
        ("/decisions?limit=x", 400, "the query parameter limit = 'x': Input should be a valid int"),
        ("/decisions?limit=%C2%B2", 400, "the query parameter limit = '\\xb2': Input should be a"),
        ("/decisions?limit=10001", 400, "the query parameter limit = 10001: Input should be less"),
        ("/decisions?kind=moves", 400, "the query parameter kind"),
        ("/decisions?limit=1&limit=2", 400, "limit is given 2 times, with different values"),
    ],
)
async def test_odd_questions(leader: RunningServer, path: str, status: int, reason: str) -> None:
    got = await leader.ask(ROOT + path)
    assert got.status == status
    assert got.json()["reason"].startswith(reason)


@pytest.mark.parametrize("question", QUESTIONS)
async def test_who_does_not_lead_sends_on_to_the_leader(
    start_server: StartServer, leader: RunningServer, question: str
) -> None:
    follower = FakeLeaderQueries(elsewhere=leader.url + "/")
    server = await start_server(more_routes=tuple(follower.routes()))
    got = await server.ask(question)
    assert (got.status, got.headers["Location"]) == (307, leader.url + question)
    followed = await server.ask(question, allow_redirects=True)
    assert (followed.status, followed.text) == (200, (await leader.ask(question)).text)


@pytest.mark.parametrize("question", QUESTIONS)
async def test_without_a_leader_it_is_told_so(start_server: StartServer, question: str) -> None:
    server = await start_server(more_routes=tuple(FakeLeaderQueries(away=True).routes()))
    got = await server.ask(question)
    want: dict[str, Any] = {"reason": "no leader is at work"}
    assert (got.status, got.headers["Retry-After"], got.json()) == (503, "2", want)
