from collections.abc import Mapping

from loadmanager.core.averages import Average, BundleAverages, Running
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BrokerId, BundleId, Namespace
from loadmanager.core.load import BrokerUrls, BundleStats, LoadReport, ResourceUsage
from loadmanager.core.memory import Memory, RoundMemory
from loadmanager.core.planner import Planner
from loadmanager.core.policies import IsolationPolicy, Policies
from loadmanager.core.rates import Rates
from loadmanager.core.snapshot.codec import in_force
from loadmanager.core.snapshot.document import Snapshot

B1, B2 = BrokerId("b1:8080"), BrokerId("b2:8080")
NS = Namespace("t/ns")
LOW, HIGH = Boundaries.even(NS, 2).bundles


def report(broker: BrokerId, cpu: float, bundles: Mapping[BundleId, float]) -> LoadReport:
    return LoadReport(
        broker=broker,
        urls=BrokerUrls(http_url=f"http://{broker}"),
        sidecar_url="",
        reported_at_ms=1000,
        started_at_ms=7,
        cpu=ResourceUsage(cpu * 800, 800.0),
        bundles={
            name: BundleStats(bytes_in_per_s=size, msgs_in_per_s=size / 1000)
            for name, size in bundles.items()
        },
    )


def average(size: float) -> BundleAverages:
    rates = Rates(size / 1000, 0.0, size, 0.0)
    return BundleAverages(Average(10, 10, rates), Average(1000, 60, rates), 2)


def whole_snapshot() -> Snapshot:
    return Snapshot(
        reports={B1: report(B1, 0.9, {LOW: 30e6, HIGH: 20e6}), B2: report(B2, 0.1, {})},
        taken_at_ms=1_700_000_000_000,
        cluster="east",
        epoch=4,
        age_s={B1: 2.5, B2: 0.25},
        averages={LOW: average(30e6), HIGH: average(20e6)},
        running={B1: Running(0.9, 50e6), B2: Running(0.1, 0.0)},
        boundaries={NS: Boundaries.even(NS, 2)},
        owners={LOW: B1},
        in_flight={LOW: B2},
        unowned=(HIGH,),
        policies=Policies(
            isolation={
                "p": IsolationPolicy(
                    namespaces=("t/.*",),
                    primary=("b1",),
                    secondary=("b2",),
                    min_limit=2,
                    usage_threshold=0.8,
                )
            },
            anti_affinity={NS: "g"},
            domains={B1: "east", B2: "west"},
            staying=frozenset({HIGH}),
        ),
        memory=RoundMemory(
            shedder=Memory(usage={B1: 0.8}),
            moved_at_s={LOW: 1_699_999_990.0},
            started_at_ms={B1: 7},
        ),
        membership_changed_ago_s=100.0,
        departed_ago_s=(3.5,),
        in_force=in_force(Planner()),
    )


def hot_and_idle() -> Snapshot:
    bundles = Boundaries.even(NS, 8).bundles
    idle = (BrokerId("b2:8080"), BrokerId("b3:8080"))
    return Snapshot(
        reports={
            B1: report(B1, 0.8, dict.fromkeys(bundles, 20e6)),
            **{name: report(name, 0.0, {}) for name in idle},
        }
    )
