"""One move by admin REST: where the bundle is in the end, and why."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from time import monotonic

import pytest
from aiohttp import web
from fake_pulsar import EXTENSIBLE, FakePulsar, Handler, refused, release
from waiting import eventually

from loadmanager.core.ids import BrokerId, BundleId, parse_broker, parse_bundle, parse_full_topic
from loadmanager.pulsar.client import Access, PulsarAdmin
from loadmanager.pulsar.moves import PAUSE_RATIO, Unload
from tests.attach.conftest import move, mover


@pytest.fixture
async def admin(pulsar: FakePulsar) -> AsyncIterator[PulsarAdmin]:
    access = Access(timeout_s=30.0, change_timeout_s=30.0)
    made = PulsarAdmin(access, known={one.name for one in pulsar.brokers})
    yield made
    await made.close()


async def test_without_a_claim_the_modular_manager_serves_it_nowhere_until_somebody_asks(
    pulsar: FakePulsar, admin: PulsarAdmin
) -> None:
    outcome = await mover(admin, pulsar).move(replace(move(pulsar), topic=None))
    assert outcome.state == "timed_out"
    assert outcome.reason == "no broker says that it serves it"


async def test_extensible_managers_need_no_claim(pulsar: FakePulsar, admin: PulsarAdmin) -> None:
    pulsar.settings["loadManagerClassName"] = EXTENSIBLE
    outcome = await mover(admin, pulsar, claims=False).move(move(pulsar))
    assert outcome.state == "serving"
    assert not any(path.startswith("/lookup") for one in pulsar.brokers for path in one.asked)


async def test_what_another_took_moves_from_there(pulsar: FakePulsar, admin: PulsarAdmin) -> None:
    pulsar.snatched = [pulsar.brokers[2], pulsar.brokers[0]]
    outcome = await mover(admin, pulsar).move(move(pulsar))
    assert (outcome.state, outcome.attempts) == ("serving", 3)


async def test_after_three_attempts_it_stays_there(pulsar: FakePulsar, admin: PulsarAdmin) -> None:
    third = pulsar.brokers[2]
    pulsar.snatched = [third] * 5
    outcome = await mover(admin, pulsar).move(move(pulsar))
    assert (outcome.state, outcome.attempts, outcome.owner) == ("landed_elsewhere", 3, third.name)
    assert outcome.reason == f"{third.name} serves it after 3 attempts"
    assert len(pulsar.unloads) == 3


async def test_nothing_is_ordered_of_another_owner(pulsar: FakePulsar, admin: PulsarAdmin) -> None:
    gone = move(pulsar)
    pulsar.hand_over(gone.bundle, pulsar.brokers[2])
    outcome = await mover(admin, pulsar).move(gone)
    assert (outcome.state, outcome.attempts) == ("superseded", 0)
    assert "does not serve it any more" in outcome.reason
    assert pulsar.unloads == []


@pytest.mark.parametrize(("status", "text"), [(200, "starting"), (500, "not ready"), (503, "")])
async def test_nothing_is_ordered_to_a_target_that_is_not_ready(
    pulsar: FakePulsar, admin: PulsarAdmin, status: int, text: str
) -> None:
    pulsar.brokers[1].tells("/admin/v2/brokers/ready", text, status)
    outcome = await mover(admin, pulsar).move(move(pulsar))
    assert (outcome.state, outcome.attempts) == ("failed", 0)
    assert pulsar.brokers[1].name in outcome.reason
    assert pulsar.unloads == []


async def test_nothing_is_ordered_of_silent_brokers(pulsar: FakePulsar, admin: PulsarAdmin) -> None:
    nobody = BrokerId("127.0.0.1:9")
    wanted = move(pulsar)
    for dead in (replace(wanted, source=nobody), replace(wanted, target=nobody)):
        outcome = await mover(admin, pulsar).move(dead)
        assert (outcome.state, outcome.attempts) == ("failed", 0)
        assert "127.0.0.1:9" in outcome.reason
    assert pulsar.unloads == []


@pytest.mark.parametrize(
    ("answer", "ends"),
    [
        ((412, "Invalid upper boundary for bundle"), ("superseded", 1)),
        ((404, "Namespace not found"), ("superseded", 1)),
        (
            (409, "Not allowed unload namespace bundle to inactive destination broker"),
            ("failed", 1),
        ),
        ((500, "An unexpected error occurred in the server"), ("failed", 3)),
        ((503, "Service Unavailable"), ("failed", 3)),
    ],
)
async def test_what_a_refusal_means(
    pulsar: FakePulsar, admin: PulsarAdmin, answer: tuple[int, str], ends: tuple[str, int]
) -> None:
    asked, (status, reason), (state, orders) = [], answer, ends

    async def refuse(request: web.Request) -> web.Response:
        asked.append(request.method)
        return refused(status, reason)

    wanted = move(pulsar)
    pulsar.brokers[0].instead[unload_path(wanted.bundle)] = refuse
    outcome = await mover(admin, pulsar).move(wanted)
    assert (outcome.state, len(asked)) == (state, orders)
    assert reason in outcome.reason
    assert wanted.bundle in pulsar.brokers[0].owned


def unload_path(bundle: BundleId) -> str:
    return f"/admin/v2/namespaces/{bundle}/unload"


@pytest.mark.parametrize("answers", [True, False])
async def test_what_moved_is_no_failure_whatever_the_order_is_answered(
    pulsar: FakePulsar, admin: PulsarAdmin, *, answers: bool
) -> None:
    wanted = move(pulsar)

    async def hand_over(_: web.Request) -> web.Response:
        pulsar.hand_over(wanted.bundle, pulsar.brokers[1])
        if answers:
            return refused(500, "cannot be transfer to same broker")
        await asyncio.sleep(30)
        return web.Response(status=204)

    pulsar.brokers[0].instead[unload_path(wanted.bundle)] = hand_over
    async with asyncio.timeout(20):
        outcome = await mover(admin, pulsar).move(wanted)
    assert (outcome.state, outcome.attempts) == ("serving", 1)


async def test_an_order_follows_only_own_redirects(pulsar: FakePulsar, admin: PulsarAdmin) -> None:
    wanted, other = move(pulsar), move(pulsar, number=1)
    leader = pulsar.brokers[2].name

    async def to_the_leader(request: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect(f"http://{leader}{request.path_qs}")

    async def away(_: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect("http://127.0.0.1:9/unload")

    pulsar.brokers[0].instead[unload_path(wanted.bundle)] = to_the_leader
    pulsar.brokers[0].instead[unload_path(other.bundle)] = away
    assert (await mover(admin, pulsar).move(wanted)).state == "serving"
    outcome = await mover(admin, pulsar).move(other)
    assert outcome.state == "failed"
    assert "no broker of this cluster" in outcome.reason


async def test_with_claims_clients_of_one_move_are_back_before_the_next_from_that_broker(
    pulsar: FakePulsar, admin: PulsarAdmin
) -> None:
    wanted, times = [move(pulsar, number) for number in range(2)], []

    async def take_time(request: web.Request) -> web.Response:
        began_s = monotonic()
        await asyncio.sleep(0.1)
        pulsar.hand_over(moved(request), pulsar.brokers[1])
        times.append((began_s, monotonic()))
        return web.Response(status=204)

    for one in wanted:
        pulsar.brokers[0].instead[unload_path(one.bundle)] = take_time
    moves = mover(admin, pulsar)
    outcomes = await asyncio.gather(*(moves.move(one) for one in wanted))
    assert [one.state for one in outcomes] == ["serving", "serving"]
    (_, ended_s), (began_s, _) = sorted(times)
    assert began_s - ended_s >= PAUSE_RATIO * 0.1


@pytest.mark.parametrize(
    ("sources", "targets", "equal_ranges"),
    [((0, 0), (1, 2), False), ((0, 1), (2, 2), False), ((0, 1), (1, 2), True)],
)
async def test_bundles_of_one_broker_or_of_equal_ranges_move_one_after_the_other(
    pulsar: FakePulsar,
    admin: PulsarAdmin,
    sources: tuple[int, int],
    *,
    targets: tuple[int, int],
    equal_ranges: bool,
) -> None:
    wanted = between(pulsar, sources, targets)
    if equal_ranges:
        twin = parse_bundle(wanted[0].bundle.replace("bench/skew", "bench/twin"))
        pulsar.brokers[sources[1]].owned.append(twin)
        wanted[1] = replace(wanted[1], bundle=twin, topic=None)
    under_way: list[str] = []
    most = 0

    async def take_time(request: web.Request) -> web.Response:
        nonlocal most
        under_way.append(moved(request))
        most = max(most, len(under_way))
        await asyncio.sleep(0.1)
        under_way.remove(moved(request))
        return arrived(pulsar, wanted, request)

    assert await carried_out(pulsar, admin, wanted, take_time) == ["serving", "serving"]
    assert most == 1


async def test_without_claims_brokers_move_at_once(pulsar: FakePulsar, admin: PulsarAdmin) -> None:
    wanted, asked, both = between(pulsar, (0, 1), (1, 2)), set(), asyncio.Event()

    async def wait_for_the_other(request: web.Request) -> web.Response:
        asked.add(request.path)
        if len(asked) == len(wanted):
            both.set()
        await both.wait()
        return arrived(pulsar, wanted, request)

    assert await carried_out(pulsar, admin, wanted, wait_for_the_other) == ["serving", "serving"]


def between(pulsar: FakePulsar, sources: tuple[int, int], targets: tuple[int, int]) -> list[Unload]:
    found = [move(pulsar, number) for number in range(2)]
    for one, source in zip(found, sources, strict=True):
        pulsar.hand_over(one.bundle, pulsar.brokers[source])
    names = [parse_broker(one.name) for one in pulsar.brokers]
    return [
        replace(one, source=names[source], target=names[target])
        for one, source, target in zip(found, sources, targets, strict=True)
    ]


def arrived(pulsar: FakePulsar, wanted: list[Unload], request: web.Request) -> web.Response:
    target = next(one.target for one in wanted if one.bundle == moved(request))
    pulsar.hand_over(moved(request), next(one for one in pulsar.brokers if one.name == target))
    return web.Response(status=204)


async def carried_out(
    pulsar: FakePulsar, admin: PulsarAdmin, wanted: list[Unload], unloading: Handler
) -> list[str]:
    for one in wanted:
        source = next(broker for broker in pulsar.brokers if broker.name == one.source)
        source.instead[unload_path(one.bundle)] = unloading
    moves = mover(admin, pulsar, claims=False)
    return [one.state for one in await asyncio.gather(*(moves.move(one) for one in wanted))]


def moved(request: web.Request) -> str:
    return request.path.removeprefix("/admin/v2/namespaces/").removesuffix("/unload")


@pytest.fixture(autouse=True)
def _brief_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_WATCH_S", "_STUCK_LOOK_S", "_PAUSE_S"):
        monkeypatch.setattr(f"loadmanager.pulsar.moves.{name}", 0.02)


@pytest.mark.parametrize(
    ("change_timeout_s", "answers_s"),
    [(10.0, 10.0), (0.1, 10.0), (10.0, 0.1)],
    ids=["answered at its end", "never answered", "answered with an error before its end"],
)
async def test_a_slow_unload_is_ordered_once_and_the_bundle_claimed_at_its_end(
    pulsar: FakePulsar, admin: PulsarAdmin, change_timeout_s: float, answers_s: float
) -> None:
    admin.access = Access(timeout_s=3.0, change_timeout_s=change_timeout_s)
    pulsar.unload_s, pulsar.answers_s = 1.0, answers_s
    wanted, unloads = move(pulsar), []
    outcome = await mover(admin, pulsar).move(wanted, sent=lambda: unloads.append(wanted))
    assert (outcome.state, outcome.attempts, outcome.owner) == ("serving", 1, wanted.target)
    assert pulsar.unloads == [(wanted.bundle, wanted.target)]
    assert len(unloads) == 1


async def test_an_unanswered_order_may_have_failed(pulsar: FakePulsar, admin: PulsarAdmin) -> None:
    admin.access = Access(timeout_s=30.0, change_timeout_s=0.3)
    wanted, asked = move(pulsar), []

    async def hang(request: web.Request) -> web.Response:
        asked.append(request.path)
        pulsar.brokers[0].closing.add(wanted.bundle)
        await asyncio.sleep(0.6)
        pulsar.brokers[0].closing.discard(wanted.bundle)
        await asyncio.sleep(30)
        return web.Response(status=204)

    pulsar.brokers[0].instead[unload_path(wanted.bundle)] = hang
    outcome = await mover(admin, pulsar).move(wanted)
    assert (outcome.state, outcome.owner, len(asked)) == ("failed", wanted.source, 1)
    assert "no answer within 0.3 s" in outcome.reason


async def test_an_unload_that_does_not_end_is_stuck_and_its_bundle_claimed_when_it_does(
    pulsar: FakePulsar, admin: PulsarAdmin
) -> None:
    wanted, other = move(pulsar), move(pulsar, number=1)
    pulsar.unload_s = 3600.0
    moves = mover(admin, pulsar, stuck_s=0.5)
    outcome = await moves.move(wanted)
    assert (outcome.state, outcome.attempts) == ("stuck", 1)
    assert f"{wanted.source} has been unloading it for 0.5 s" in outcome.reason
    assert list(moves.stuck) == [wanted.bundle]
    for left_out in (wanted, other):
        assert (await moves.move(left_out)).attempts == 0
    assert len(pulsar.unloads) == 1
    release(pulsar, wanted.bundle, pulsar.brokers[1])
    await eventually(lambda: not moves.stuck)
    assert wanted.bundle in pulsar.brokers[1].owned
    pulsar.unload_s = 0.0
    assert (await moves.move(other)).state == "serving"


async def test_a_stuck_bundle_is_left_out_for_as_long_as_its_source_lists_it(
    pulsar: FakePulsar, admin: PulsarAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadmanager.pulsar.moves.STUCK_FOLLOWED_S", 0.05)
    wanted, (source, target, _) = move(pulsar), pulsar.brokers
    pulsar.unload_s = 3600.0
    moves = mover(admin, pulsar, stuck_s=0.0)
    assert (await moves.move(wanted)).state == "stuck"
    path = f"/admin/v2/brokers/research/{source.name}/ownedNamespaces"
    for status in (200, 401, 200):  # Also where a right is missing for a while.
        if status != 200:
            source.refuses(path, status, "expired")
        asked: list[str] = []
        source.asked = asked
        await eventually(partial(more_than, asked, 8))
        source.instead.pop(path, None)
        assert list(moves.stuck) == [wanted.bundle]
    pulsar.hand_over(wanted.bundle, target)
    await eventually(lambda: not moves.stuck)


async def test_the_terms_end_ends_the_watch_of_it(pulsar: FakePulsar, admin: PulsarAdmin) -> None:
    pulsar.unload_s = 3600.0
    moves = mover(admin, pulsar)
    asyncio.get_running_loop().call_later(0.2, moves.over.set)
    outcome = await moves.move(move(pulsar))
    assert (outcome.state, outcome.attempts) == ("timed_out", 1)
    assert "the term ended while" in outcome.reason


async def test_a_target_that_owns_a_bundle_but_loads_no_topic_gives_it_back_and_takes_no_more(
    pulsar: FakePulsar, admin: PulsarAdmin
) -> None:
    wanted, other = watched(move(pulsar)), move(pulsar, number=1)
    pulsar.brokers[1].opens = False
    moves = mover(admin, pulsar, served_s=0.3)
    outcome = await moves.move(wanted)
    assert (outcome.state, outcome.owner) == ("owned_not_served", wanted.source)
    assert f"{wanted.target} owns it" in outcome.reason
    assert pulsar.unloads == [(wanted.bundle, wanted.target), (wanted.bundle, wanted.source)]
    assert wanted.bundle in pulsar.brokers[0].owned
    outcome = await moves.move(other)
    assert (outcome.state, outcome.attempts) == ("failed", 0)
    moves.over.set()


async def test_a_target_that_ends_later_is_kept(pulsar: FakePulsar, admin: PulsarAdmin) -> None:
    wanted, (_, second, third) = watched(move(pulsar)), pulsar.brokers

    async def end(_: web.Request) -> web.Response:
        pulsar.hand_over(wanted.bundle, third)
        return refused(404, "Topic not found")

    second.instead[f"/admin/v2/persistent/bench/skew/{wanted.active[0].local}/stats"] = end
    moves = mover(admin, pulsar, served_s=0.1)
    outcome = await moves.move(wanted)
    assert (outcome.state, outcome.owner) == ("landed_elsewhere", third.name)
    assert len(pulsar.unloads) == 1
    assert not moves.avoided


async def test_the_pause_of_a_move_lies_between_the_order_and_the_first_traffic(
    pulsar: FakePulsar, admin: PulsarAdmin
) -> None:
    began_s = monotonic()
    outcome = await mover(admin, pulsar).move(watched(move(pulsar)))
    assert outcome.state == "serving"
    assert outcome.pause is not None
    assert began_s < outcome.pause.seen_before_s < outcome.pause.seen_after_s < monotonic()


async def test_deleted_topics_say_nothing_of_it(pulsar: FakePulsar, admin: PulsarAdmin) -> None:
    target, wanted = pulsar.brokers[1], watched(move(pulsar))
    deleted = wanted.active[0].local
    target.refuses(f"/admin/v2/persistent/bench/skew/{deleted}/stats", 404, "Topic not found")
    target.refuses(f"/lookup/v2/topic/persistent/bench/skew/{deleted}", 404, "Topic not found")
    pulsar.settings["loadManagerClassName"] = EXTENSIBLE
    outcome = await mover(admin, pulsar, claims=False, served_s=0.1).move(wanted)
    assert (outcome.state, outcome.pause, target.owned) == ("serving", None, [wanted.bundle])


async def test_topics_that_load_late_are_served(pulsar: FakePulsar, admin: PulsarAdmin) -> None:
    target = pulsar.brokers[1]
    wanted = watched(move(pulsar))
    topic = str(next(iter(pulsar.brokers[0].topics)))
    pulsar.brokers[0].grows[topic] = (0.0, 0.0, 0.0, 0.0)  # Its clients have gone.
    outcome = await mover(admin, pulsar, served_s=0.1).move(wanted)
    assert (outcome.state, outcome.pause) == ("serving", None)
    assert target.owned == [wanted.bundle]


def more_than(asked: list[str], count: int) -> bool:
    return len(asked) > count


def watched(wanted: Unload) -> Unload:
    assert wanted.topic is not None
    return replace(wanted, active=(wanted.topic,))


async def test_a_claim_has_the_name_as_urls_do(pulsar: FakePulsar, admin: PulsarAdmin) -> None:
    wanted = replace(move(pulsar), topic=parse_full_topic("persistent://bench/skew/a b/ü?x"))
    asked: list[str] = []

    async def hear(request: web.Request) -> web.Response:
        asked.append(request.raw_path)
        pulsar.hand_over(wanted.bundle, pulsar.brokers[1])
        return web.json_response({})

    path = "/lookup/v2/topic/persistent/bench/skew/a b/ü?x"
    pulsar.brokers[1].instead[path] = hear
    assert (await mover(admin, pulsar).move(wanted)).state == "serving"
    assert asked == ["/lookup/v2/topic/persistent/bench/skew/a%20b%2F%C3%BC%3Fx?authoritative=true"]
