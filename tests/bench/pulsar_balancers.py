"""Pulsar's own shedders beside ours on real brokers: ``pulsar_balancers.py [NAME ...]``.

Each balancer gets a new cluster of three brokers with half a core each, the same traffic, and all
bundles on the first broker. What was measured is written to FOLDER/NAME.json; the picture and
the table are made of all files that are there. With --slow the last broker has half of the others'
CPU, so that even rates are not even use; those figures are in FOLDER/slow. With --traffic the rates
vary around the same means, with --beside topics are compacted, Readers catch up, or the last broker
restarts; those figures are in FOLDER/TRAFFIC or FOLDER/BESIDE.
"""

import argparse
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil
import pulsar

ROOT: Final = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from attaching import balancing  # noqa: E402 - found through the line above
from balancers_picture import picture, table  # noqa: E402 - the same
from pulsar_traffic import sending, zipf_rates  # noqa: E402 - the same
from pulsar_watch import quantile, watching  # noqa: E402 - the same
from real_pulsar import CLUSTER, RealPulsar, real_pulsar  # noqa: E402 - the same

FOLDER: Final = ROOT / "docs" / "pulsar-balancers"
NAMESPACE: Final = "trial/zipf"
NAMES: Final = [f"persistent://{NAMESPACE}/topic-{number}" for number in range(50)]
RATES: Final = zipf_rates(NAMES, 2500.0, 0.5)
BUNDLES: Final = 32
CORES: Final = (0.5, 0.5, 0.5)
SLOW_CORES: Final = (0.5, 0.5, 0.25)
LAST_S: Final = 60.0
NEAR: Final = 1.10
_SHEDDING: Final = "/admin/v2/brokers/configuration/loadBalancerSheddingEnabled"
_STRATEGY: Final = "loadBalancerLoadSheddingStrategy"
_MODULAR: Final = "org.apache.pulsar.broker.loadbalance.impl"
_EXTENSIBLE: Final = "org.apache.pulsar.broker.loadbalance.extensions.scheduler"
_AVG: Final = {
    _STRATEGY: f"{_MODULAR}.AvgShedder",
    "loadBalancerLoadPlacementStrategy": f"{_MODULAR}.AvgShedder",
}
_TRANSFER: Final = {_STRATEGY: f"{_EXTENSIBLE}.TransferShedder"}


@dataclass(frozen=True, slots=True)
class Balancer:
    manager: str
    settings: Mapping[str, object] = field(default_factory=dict)
    ours: str = ""
    """The strategy of attach, "" where Pulsar balances."""


BALANCERS: Final = {
    "attach": Balancer("modular", ours="joint"),
    "threshold-no-floor": Balancer(
        "modular",
        {
            _STRATEGY: f"{_MODULAR}.ThresholdShedder",
            "loadBalancerBundleUnloadMinThroughputThreshold": 0,
        },
    ),
    "transfer-no-floor": Balancer(
        "extensible",
        {
            **_TRANSFER,
            "loadBalancerBrokerLoadTargetStd": 0.02,
            "loadBalancerSheddingConditionHitCountThreshold": 0,
        },
    ),
    "avg-no-floor": Balancer(
        "modular",
        {
            **_AVG,
            "minUnloadMessage": 1,
            "minUnloadMessageThroughput": 1,
            "loadBalancerAvgShedderLowThreshold": 1,
            "loadBalancerAvgShedderHighThreshold": 2,
        },
    ),
    "threshold": Balancer("modular", {_STRATEGY: f"{_MODULAR}.ThresholdShedder"}),
    "transfer": Balancer("extensible", _TRANSFER),
    "avg": Balancer("modular", _AVG),
    "attach-extensible": Balancer("extensible", ours="joint"),
    "joint": Balancer("modular", ours="joint"),
    "joint-extensible": Balancer("extensible", ours="joint"),
}


def lognormal(topic: int, at_s: float) -> float:
    seed = f"{topic} {at_s // 10.0}"
    return random.Random(seed).lognormvariate(-0.02, 0.2)  # noqa: S311 - chance, no secret


def drift(topic: int, at_s: float) -> float:
    """Return a wave of traffic that goes through all topics once in twelve minutes."""
    apart = abs((topic / len(NAMES) - at_s / 720.0 + 0.5) % 1.0 - 0.5)
    return 0.5 + 2.0 * max(0.0, 1.0 - apart / 0.25)


def bursts(topic: int, at_s: float) -> float:
    """Return ten for the tenth topic in 20 s of each minute."""
    return 10.0 if topic == 9 and at_s % 60.0 < 20.0 else 1.0


TRAFFIC: Final = {
    "steady": lambda _topic, _at_s: 1.0,
    "lognormal": lognormal,
    "drift": drift,
    "bursts": bursts,
}


def compaction(cluster: RealPulsar) -> None:
    for name in NAMES:
        path = f"/admin/v2/persistent/{NAMESPACE}/{name.rpartition('/')[2]}/compaction"
        assert cluster.put(path) in {204, 409}  # 409 while the last one still runs


def read_from_earliest(service_url: str) -> None:
    client = pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    readers = [client.create_reader(name, pulsar.MessageId.earliest) for name in NAMES[:8]]
    until_s = time.monotonic() + 20.0
    while time.monotonic() < until_s:
        for one in readers:
            if one.has_message_available():
                one.read_next(timeout_millis=10_000)
    client.close()


def catch_up(cluster: RealPulsar) -> None:
    process = multiprocessing.get_context("spawn").Process(
        target=read_from_earliest, args=(cluster.service_url,)
    )
    process.start()
    process.join()


def restart(cluster: RealPulsar) -> None:
    cluster.end(2, signal.SIGTERM)
    cluster.start(2)


BESIDE: Final[Mapping[str, tuple[Callable[[RealPulsar], None], float]]] = {
    "compaction": (compaction, 60.0),
    "readers": (catch_up, 60.0),
    "restart": (restart, 600.0),
}
"""What is done to the cluster besides, at first two minutes after the beginning, and how often."""


@contextmanager
def beside(cluster: RealPulsar, what: str | None) -> Iterator[None]:
    over = threading.Event()

    def repeat() -> None:
        if what and not over.wait(120.0):
            act, every_s = BESIDE[what]
            act(cluster)
            while not over.wait(every_s):
                act(cluster)

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@dataclass(frozen=True)
class Rates(Mapping[str, float]):
    """The rate of each topic at this moment; ``factor`` is of its number and the time."""

    factor: Callable[[int, float], float]
    began_s: float = field(default_factory=time.monotonic)

    def __getitem__(self, topic: str) -> float:
        at_s = time.monotonic() - self.began_s
        return RATES[topic] * self.factor(NAMES.index(topic), at_s)

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)


def measure(
    name: str,
    traffic: str,
    version: str,
    *,
    seconds: float,
    cores: Sequence[float],
    besides: str | None,
    kept: Path | None,
) -> dict[str, Any]:
    """Run one balancer on a new cluster and return what was seen.

    Logs of all servers, and what attach told, stay in the folder ``kept``.
    """
    balancer, commit = BALANCERS[name], _commit()
    with ExitStack() as stack:
        folder = kept or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(
            real_pulsar(
                folder,
                version=version,
                manager=balancer.manager,
                settings=balancer.settings,
                cores=cores,
            )
        )
        tenant = f'{{"allowedClusters": ["{CLUSTER}"], "adminRoles": []}}'
        cluster.put("/admin/v2/tenants/trial", tenant)
        cluster.create_namespace(NAMESPACE, BUNDLES)
        sends = stack.enter_context(sending(pulsar, cluster.service_url, Rates(TRAFFIC[traffic])))
        cluster.gather(NAMESPACE, NAMES)
        watch = stack.enter_context(watching(cluster, NAMESPACE))
        time.sleep(12)
        sends.gaps.clear()
        began_s = time.monotonic()
        with at_work(cluster, balancer, folder) as used, beside(cluster, besides):
            time.sleep(max(0.0, seconds - LAST_S))
            before, before_s = cluster.cpu_s(), time.monotonic()
            time.sleep(min(LAST_S, seconds))
            last_s = time.monotonic() - before_s
            cpu = [(now - then) / last_s for then, now in zip(before, cluster.cpu_s(), strict=True)]
            cores_of_ours = used(seconds)
            load_average = os.getloadavg()[0]
        series = [
            (round(at_s - began_s, 1), round(ratio, 3))
            for at_s, ratio in watch.max_over_mean()
            if at_s >= began_s
        ]
        moved = [one for one in watch.moved if one.after_s >= began_s]
        pauses_s = watch.pauses_s(sends)
    return {
        "balancer": name,
        "manager": balancer.manager,
        "version": version,
        "commit": commit,
        "settings": dict(balancer.settings),
        "seconds": seconds,
        "max_over_mean": series,
        "near_after_s": next((at_s for at_s, ratio in series if ratio <= NEAR), None),
        "moves": [round(one.after_s - began_s, 1) for one in moved],
        "most_of_a_bundle": max(Counter(one.bundle for one in moved).values(), default=0),
        "pause_p50_s": quantile(pauses_s, 0.5),
        "pause_p99_s": quantile(pauses_s, 0.99),
        "failed_sends": len(sends.failed),
        "stored": sends.acknowledged,
        "cores_of_ours": cores_of_ours,
        "cores": list(cores),
        "cores_used_at_the_end": [round(one, 3) for one in cpu],
        "load_average": round(load_average, 1),
    }


@contextmanager
def at_work(cluster: RealPulsar, balancer: Balancer, folder: Path) -> Iterator[Any]:
    """Let the balancer begin; yields what tells how many cores ours used, None of Pulsar's."""
    if not balancer.ours:
        assert cluster.put(f"{_SHEDDING}/true", method="POST") == 200
        yield lambda _: None
        return
    with balancing(cluster, folder / "state", "--strategy", balancer.ours) as (process, told):
        ours = psutil.Process(process.pid)

        def used(seconds: float) -> float:
            times = ours.cpu_times()
            return round((times.user + times.system) / seconds, 4)

        yield used
        process.terminate()
        process.wait(60)
    (folder / "told.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in told))


def _commit() -> str:
    git = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(BALANCERS)}; all if none is named")
    parser.add_argument("--seconds", type=float, default=240.0, help="how long each one is watched")
    parser.add_argument("--version", default="4.0.7", help="of Pulsar")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the figures are")
    parser.add_argument("--slow", action="store_true", help="give the last broker half the CPU")
    parser.add_argument("--traffic", choices=TRAFFIC, default="steady")
    parser.add_argument("--beside", choices=BESIDE, help="what is done to the cluster")
    parser.add_argument("--keep", type=Path, help="a folder for logs and for what attach told")
    parser.add_argument("--draw", action="store_true", help="measure nothing")
    options = parser.parse_args()
    if unknown := set(options.names) - BALANCERS.keys():
        parser.error(f"{sorted(unknown)}: expected one of {', '.join(BALANCERS)}")
    varies = options.beside or ("" if options.traffic == "steady" else options.traffic)
    folder = options.folder / ("slow" if options.slow else varies)
    folder.mkdir(parents=True, exist_ok=True)
    cores = SLOW_CORES if options.slow else CORES
    for name in () if options.draw else options.names or BALANCERS:
        kept = options.keep and options.keep / name
        if kept:
            kept.mkdir(parents=True)
        found = measure(
            name,
            options.traffic,
            options.version,
            seconds=options.seconds,
            cores=cores,
            besides=options.beside,
            kept=kept,
        )
        (folder / f"{name}.json").write_text(f"{json.dumps(found)}\n")
    files = [folder / f"{name}.json" for name in BALANCERS]
    runs = [json.loads(file.read_text()) for file in files if file.exists()]
    if folder == options.folder:
        (folder / "max-over-mean.svg").write_text(picture(runs))
    sys.stdout.write(table(runs))


if __name__ == "__main__":
    main()
