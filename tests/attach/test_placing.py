"""Bundles of new namespaces are spread over the brokers before their first lookup."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count
from pathlib import Path
from time import monotonic

import balancers
import pytest
from aiohttp import web
from balancers import Told, balancer_of
from fake_pulsar import EXTENSIBLE, FakeBroker, FakePulsar, running

from loadmanager.cli.attach_output import line
from loadmanager.core.bundle_task import TaskKind, TaskState
from loadmanager.core.bundle_traffic import CHANGE_EVENTS
from loadmanager.core.bundles import Boundaries
from loadmanager.core.hashing import FULL_RANGE_END, lies_in, position
from loadmanager.core.ids import BundleId, Namespace, TopicName, namespace_of
from loadmanager.pulsar.balancing import MOST_BUNDLES, Balancer, Stopped
from loadmanager.pulsar.client import Access, PulsarAdmin
from loadmanager.pulsar.observation import Rules
from loadmanager.pulsar.orders import holds_policies, name_in
from loadmanager.pulsar.state import StateFile
from tests.attach.conftest import isolation_policy

NEW = Namespace("bench/new")


@pytest.fixture
def pulsar() -> Iterator[FakePulsar]:
    """Run three brokers, of which the second has some traffic, and a namespace nobody uses yet."""
    topic = "persistent://bench/old/busy"
    busy = FakeBroker(
        owned=list(Boundaries.even(Namespace("bench/old"), 1).bundles),
        topics={topic: [0.0] * 4},
        grows={topic: (50.0, 50.0, 500.0, 500.0)},
    )
    unused = [str(one) for one in Boundaries.even(Namespace("bench/unused"), 4).bundles]
    with running(FakePulsar([FakeBroker(), busy, FakeBroker()], unloaded=unused)) as cluster:
        yield cluster


@pytest.fixture
async def balancer(pulsar: FakePulsar, tmp_path: Path) -> AsyncIterator[Balancer]:
    admin = PulsarAdmin(Access(), known={one.name for one in pulsar.brokers})
    rules = Rules(exclude=("bench/excluded",), place_new=True)
    yield balancer_of(pulsar, admin, StateFile(tmp_path / "state.json"), rules=rules)
    await admin.close()


async def balanced(balancer: Balancer, after_first: Callable[[], None], rounds: int = 2) -> Told:
    log = balancer.log
    assert isinstance(log, Told)
    log.after_round = lambda: after_first() if len(log.held) == 1 else None
    return await balancers.balanced(balancer, rounds)


def created(pulsar: FakePulsar, count: int = 7, namespace: Namespace = NEW) -> Callable[[], None]:
    return lambda: pulsar.unloaded.extend(Boundaries.even(namespace, count).bundles)


def owners(pulsar: FakePulsar, namespace: Namespace = NEW) -> Counter[int]:
    return Counter(
        place
        for place, broker in enumerate(pulsar.brokers)
        for one in broker.owned
        if one.startswith(f"{namespace}/")
    )


async def test_a_new_namespace_alone_is_spread(pulsar: FakePulsar, balancer: Balancer) -> None:
    log = await balanced(balancer, created(pulsar))
    # The seventh goes to one of the two without traffic.
    assert sorted(owners(pulsar).values()) == [2, 2, 3]
    assert owners(pulsar)[1] == 2
    assert set(log.ended.values()) == {TaskState.SERVING}
    assert {task.kind for task in log.tasks} == {TaskKind.PLACE}
    assert all(namespace_of(one) == NEW for one in log.ended)
    assert len([one for one in pulsar.unloaded if "unused" in one]) == 4
    assert pulsar.unloads == []
    assert balancer.budget.begun(monotonic()) == ()
    assert "no broker -> " in line(log.tasks[0])
    assert "its namespace is new" in line(log.tasks[0])


async def test_the_bundle_of_a_namespaces_policies_is_placed_before_pulsar_does_it(
    pulsar: FakePulsar, balancer: Balancer
) -> None:
    namespaces = (Namespace(f"bench/new-{number}") for number in count())
    late = next(one for one in namespaces if holds_policies(Boundaries.even(one, 6).bundles[-1]))
    log = await balanced(balancer, created(pulsar, 6, late))
    assert log.tasks[0].bundle == Boundaries.even(late, 6).bundles[-1]
    assert set(log.ended.values()) == {TaskState.SERVING}
    assert owners(pulsar, late) == {0: 2, 1: 2, 2: 2}


def not_asked_for(_: FakePulsar, balancer: Balancer) -> None:
    balancer.rules = Rules()


def extensible(pulsar: FakePulsar, _: Balancer) -> None:
    pulsar.settings["loadManagerClassName"] = EXTENSIBLE


def isolated_elsewhere(pulsar: FakePulsar, _: Balancer) -> None:
    pulsar.isolation["none"] = isolation_policy("bench/new", ["elsewhere.example.com"])


@pytest.mark.parametrize("set_up", [not_asked_for, extensible, isolated_elsewhere])
async def test_a_new_namespace_is_left_to_pulsar(
    pulsar: FakePulsar, balancer: Balancer, set_up: Callable[[FakePulsar, Balancer], None]
) -> None:
    set_up(pulsar, balancer)
    assert (await balanced(balancer, created(pulsar))).tasks == []
    asked = any("tenants" in path for one in pulsar.brokers for path in one.asked)
    assert asked is (set_up is isolated_elsewhere)


async def test_excluded_grouped_and_very_finely_cut_namespaces_are_left_to_pulsar(
    pulsar: FakePulsar, balancer: Balancer
) -> None:
    pulsar.groups["bench/grouped"] = "apart"

    def make() -> None:
        created(pulsar, 4, Namespace("bench/excluded"))()
        created(pulsar, 4, Namespace("bench/grouped"))()
        created(pulsar, MOST_BUNDLES + 1, Namespace("bench/fine"))()

    assert (await balanced(balancer, make)).tasks == []


async def test_without_a_sample_nothing_is_placed(pulsar: FakePulsar, balancer: Balancer) -> None:
    def make() -> None:
        created(pulsar)()
        pulsar.brokers[2].refuses("/metrics/", 500, "no metrics")

    assert (await balanced(balancer, make)).tasks == []


async def test_a_bundle_taken_first_is_where_it_is(pulsar: FakePulsar, balancer: Balancer) -> None:
    """A client's lookup at another broker comes between the look and the claim."""
    bundle = str(Boundaries.even(NEW, 1).bundles[0])

    async def late(_: web.Request) -> web.Response:
        if bundle in pulsar.unloaded:
            pulsar.unloaded.remove(bundle)
            pulsar.hand_over(bundle, pulsar.brokers[1])
        return web.Response(text="ok")

    for broker in pulsar.brokers:
        broker.instead["/admin/v2/brokers/ready"] = late
    log = await balanced(balancer, created(pulsar, 1))
    assert list(log.ended.values()) == [TaskState.LANDED_ELSEWHERE]
    assert owners(pulsar) == {1: 1}
    assert pulsar.unloads == []


@pytest.mark.parametrize(
    ("status", "text", "stops"),
    [(403, "no", True), (500, "no", False), (200, '{"not": "names"}', False)],
)
async def test_tenants_that_cannot_be_read_are_named(
    pulsar: FakePulsar, balancer: Balancer, status: int, text: str, stops: bool
) -> None:
    pulsar.brokers[0].tells("/admin/v2/tenants", text, status)
    if stops:
        with pytest.raises(Stopped, match="admin/v2/tenants"):
            await balanced(balancer, created(pulsar))
        return
    log = await balanced(balancer, created(pulsar))
    assert log.tasks == []
    assert any("/admin/v2/tenants" in one for one in log.events)


def test_the_name_for_a_claim_lies_in_its_bundle() -> None:
    for bundle in Boundaries.even(NEW, 16).bundles:
        name = name_in(bundle)
        assert name is not None
        assert lies_in(position(name, "crc32"), bundle)
    narrow = BundleId("bench/new/0x00000000_0x00000001")
    assert name_in(narrow) is None


def test_the_last_bundle_of_a_namespace_has_the_last_position() -> None:
    # The position of the topic of the policies is 0xffffffff.
    namespace = Namespace("bench/aacaaaacaaaccaaccccaccaccccaccccaaaaaaaa")
    assert position(TopicName("persistent", namespace, CHANGE_EVENTS), "crc32") == FULL_RANGE_END
    first, last = Boundaries.even(namespace, 2).bundles
    assert holds_policies(last)
    assert not holds_policies(first)
