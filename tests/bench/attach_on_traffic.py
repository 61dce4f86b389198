"""`attach --balance` with its defaults on real brokers whose traffic is not steady.

``attach_on_traffic.py [KIND-MANAGER-NUMBER ...]``, such as ``lognormal-modular-1``. Each run has a
new cluster of three brokers with half a core each, and all bundles on the first one. What it did
is written to FOLDER/RUN.json; a run whose file is there is not made again. Prints a table of all.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pulsar

ROOT: Final = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from attaching import balancing  # noqa: E402 - found through the line above
from pulsar_traffic import sending, zipf_rates  # noqa: E402 - the same
from pulsar_watch import Watch, watching  # noqa: E402 - the same
from real_pulsar import CLUSTER, RealPulsar, real_pulsar  # noqa: E402 - the same

NAMESPACE: Final = "trial/traffic"
NAMES: Final = [f"persistent://{NAMESPACE}/topic-{number}" for number in range(40)]
MEAN: Final = zipf_rates(NAMES, 900.0, 0.5)
BUNDLES: Final = 32
WINDOW_S: Final = 10.0
SETTLED_S: Final = 120.0
EVERY_S: Final = 60.0
NEAR: Final = 1.10

Factor = Callable[[int, float], float]


@dataclass(frozen=True)
class Rates(Mapping[str, float]):
    """The rate of each topic at this moment."""

    factor: Factor
    began_s: float

    def __getitem__(self, topic: str) -> float:
        factor = self.factor(NAMES.index(topic), time.monotonic() - self.began_s)
        return max(MEAN[topic] * factor, 0.1)

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)


def lognormal(topic: int, at_s: float) -> float:
    seed = f"{topic} {at_s // WINDOW_S}"
    return random.Random(seed).lognormvariate(-0.02, 0.2)  # noqa: S311 - chance, no secret


def drift(topic: int, at_s: float) -> float:
    """A wave of traffic that goes once through all topics in twelve minutes."""
    apart = abs((topic / len(NAMES) - at_s / 720.0 + 0.5) % 1.0 - 0.5)
    return 0.5 + 2.0 * max(0.0, 1.0 - apart / 0.25)


def bursts(topic: int, at_s: float) -> float:
    """The tenth topic is ten times as busy for 20 s of each minute."""
    return 10.0 if topic == 9 and at_s % 60.0 < 20.0 else 1.0


def compaction(cluster: RealPulsar) -> None:
    for name in NAMES[:12]:
        cluster.put(f"/admin/v2/persistent/{NAMESPACE}/{name.rpartition('/')[2]}/compaction")


def readers(cluster: RealPulsar) -> None:
    """Eight readers read the same topic from its first message on."""
    client = pulsar.Client(
        cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    every = [client.create_reader(NAMES[0], pulsar.MessageId.earliest) for _ in range(8)]
    for reader in every:
        for _ in range(20_000):
            try:
                reader.read_next(timeout_millis=1_000)
            except pulsar.Timeout:
                break
    client.close()


@dataclass(frozen=True)
class Kind:
    seconds: float
    factor: Factor = lambda _topic, _at_s: 1.0
    each_minute: Callable[[RealPulsar], None] | None = None
    cores: tuple[float, ...] = (0.5, 0.5, 0.5)


KINDS: Final = {
    "steady": Kind(120.0),
    "lognormal": Kind(1200.0, lognormal),
    "drift": Kind(720.0, drift),
    "bursts": Kind(480.0, bursts),
    "compaction": Kind(480.0, each_minute=compaction),
    "readers": Kind(480.0, each_minute=readers),
    "half": Kind(240.0, cores=(0.5, 0.5, 0.25)),
}


def disturb(cluster: RealPulsar, kind: Kind, over: threading.Event) -> None:
    while kind.each_minute and not over.wait(EVERY_S):
        with suppress(OSError, pulsar.PulsarException):
            kind.each_minute(cluster)


def measure(kind: Kind, manager: str, version: str) -> dict[str, Any]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(
            real_pulsar(folder, version=version, manager=manager, cores=kind.cores)
        )
        tenant = f'{{"allowedClusters": ["{CLUSTER}"], "adminRoles": []}}'
        cluster.put("/admin/v2/tenants/trial", tenant)
        cluster.create_namespace(NAMESPACE, BUNDLES)
        rates = Rates(kind.factor, time.monotonic())
        sends = stack.enter_context(sending(pulsar, cluster.service_url, rates))
        cluster.gather(NAMESPACE, NAMES)
        watch = stack.enter_context(watching(cluster, NAMESPACE))
        time.sleep(12)
        began_s, over = time.monotonic(), threading.Event()
        with balancing(cluster, folder / "state") as (process, told):
            beside = threading.Thread(target=disturb, args=(cluster, kind, over))
            beside.start()
            time.sleep(kind.seconds - EVERY_S)
            before = cluster.cpu_s()
            time.sleep(EVERY_S)
            used = [
                (now - then) / EVERY_S for then, now in zip(before, cluster.cpu_s(), strict=True)
            ]
            over.set()
            process.terminate()
            process.wait(60)
            beside.join()
        return {**figures(watch, began_s), "failed_sends": len(sends.failed)} | {
            "cpu_of_limit": [
                round(one / limit, 3) for one, limit in zip(used, kind.cores, strict=True)
            ],
            "version": version,
            "commit": _commit(),
            "told": list(told),
        }


def figures(watch: Watch, began_s: float) -> dict[str, Any]:
    moved = [one for one in watch.moved if one.after_s >= began_s]
    first_s = moved[0].before_s if moved else began_s
    series = [(at_s, ratio) for at_s, ratio in watch.max_over_mean() if at_s >= began_s]
    late = [ratio for at_s, ratio in series if at_s >= began_s + SETTLED_S]
    near = (at_s - first_s for at_s, ratio in series if ratio <= NEAR and at_s > first_s)
    often = Counter(one.bundle for one in moved)
    return {
        "near_after_s": next((round(one, 1) for one in near), None),
        "moves": len(moved),
        "moves_after_two_minutes": sum(one.after_s > began_s + SETTLED_S for one in moved),
        "most_of_one_bundle": max(often.values(), default=0),
        "late_mean": round(sum(late) / len(late), 3) if late else None,
        "late_max": round(max(late), 3) if late else None,
        "max_over_mean": [(round(at_s - began_s, 1), round(ratio, 3)) for at_s, ratio in series],
        "moved_at_s": [round(one.after_s - began_s, 1) for one in moved],
    }


def _commit() -> str:
    git = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="*")
    parser.add_argument("--version", default="4.0.7", help="of Pulsar")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "attach-on-traffic")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for run in options.runs:
        kind, manager, _ = run.split("-")
        file = options.folder / f"{run}.json"
        if not file.exists():
            found = measure(KINDS[kind], manager, options.version)
            file.write_text(f"{json.dumps(found)}\n")
    shown = ["near_after_s", "moves", "moves_after_two_minutes", "most_of_one_bundle", "late_mean"]
    shown += ["late_max", "cpu_of_limit", "failed_sends"]
    for file in sorted(options.folder.glob("*.json")):
        found = json.loads(file.read_text())
        sys.stdout.write(f"{file.stem}: {', '.join(f'{key} {found[key]}' for key in shown)}\n")


if __name__ == "__main__":
    main()
