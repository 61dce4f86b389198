"""How orders come to their ends, as the owners in the picture tell it."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import pytest

from loadmanager.app.arrivals import Arrivals
from loadmanager.app.parts import Parts
from loadmanager.app.picture import Holding
from loadmanager.core.history import HandOver
from loadmanager.core.ids import BrokerId, BundleId

X = BundleId("t/n/0x00000000_0x80000000")
B1, B2, B3 = (BrokerId(f"b{number}:8080") for number in (1, 2, 3))


@dataclass
class Watch:
    """A clock by hand, a picture by hand, and what was told."""

    now_s: float = 0.0
    owners: dict[BundleId, Holding] = field(default_factory=dict)
    told: list[HandOver] = field(default_factory=list)

    def monotonic_s(self) -> float:
        """See `Clock`."""
        return self.now_s

    def wall_ms(self) -> int:
        """See `Clock`."""
        return 1000 + round(self.now_s * 1000)

    def owned(self, at_s: float, broker: BrokerId | None, *, serving: bool = True) -> None:
        """Let the bundle have this owner from now on."""
        self.now_s = at_s
        self.owners = {} if broker is None else {X: Holding(broker, 1, serving)}


@pytest.fixture(name="watch")
def watch_fixture() -> Watch:
    return Watch()


@pytest.fixture(name="arrivals")
def arrivals_fixture(watch: Watch) -> Arrivals:
    class Picture:
        """Its owners are those of the watch."""

        @property
        def owners(self) -> dict[BundleId, Holding]:
            """See `ClusterPicture`."""
            return watch.owners

    parts = cast("Parts", SimpleNamespace(clock=watch, picture=Picture()))
    return Arrivals(parts, 7, watch.told.append)


def end_of(watch: Watch) -> tuple[object, ...]:
    (one,) = watch.told
    return (one.source, one.target, one.outcome, one.released_at_ms, one.acquired_at_ms)


def test_clients_wait_from_the_source_s_end_until_the_target_serves(
    watch: Watch, arrivals: Arrivals
) -> None:
    watch.owned(0.0, B1)
    arrivals.ordered({X: B2})
    for at_s, broker, serving in ((1.0, None, True), (1.5, B2, False), (1.75, B2, True)):
        watch.owned(at_s, broker, serving=serving)
        arrivals.look()
    assert end_of(watch) == (B1, B2, "finished", 2000, 2750)
    assert (watch.told[0].took_s, watch.told[0].pause_s) == (1.75, 0.75)
    assert watch.told[0].ordered_at_ms == 1000


def test_nobody_s_bundle_kept_its_clients_waiting_since_the_order(
    watch: Watch, arrivals: Arrivals
) -> None:
    arrivals.ordered({X: B2})
    watch.owned(2.0, B2)
    arrivals.look()
    assert end_of(watch) == (None, B2, "finished", None, 3000)
    assert watch.told[0].pause_s == 2.0


def test_what_is_there_already_is_no_hand_over(watch: Watch, arrivals: Arrivals) -> None:
    watch.owned(0.0, B2)
    arrivals.ordered({X: B2})
    arrivals.end()
    assert watch.told == []


def test_an_order_that_is_repeated_is_one(watch: Watch, arrivals: Arrivals) -> None:
    arrivals.ordered({X: B2})
    watch.now_s = 5.0
    arrivals.ordered({X: B2})
    watch.owned(6.0, B2)
    arrivals.look()
    assert watch.told[0].took_s == 6.0


@pytest.mark.parametrize("how", ["ordered", "tend", "dropped"])
def test_an_order_that_stands_no_more_was_replaced(
    watch: Watch, arrivals: Arrivals, how: str
) -> None:
    watch.owned(0.0, B1)
    arrivals.ordered({X: B2})
    arrivals.tend({X: B2})
    assert watch.told == []
    if how == "ordered":
        arrivals.ordered({X: B3})
    else:
        arrivals.tend({X: B3} if how == "tend" else {})
    assert end_of(watch) == (B1, B2, "replaced", None, None)
    assert watch.told[0].took_s is watch.told[0].pause_s is None


def test_what_is_under_way_when_the_term_ends_is_left(watch: Watch, arrivals: Arrivals) -> None:
    watch.owned(0.0, B1)
    arrivals.ordered({X: B2})
    arrivals.end()
    arrivals.look()
    assert end_of(watch) == (B1, B2, "left", None, None)
    assert watch.told[0].epoch == 7
