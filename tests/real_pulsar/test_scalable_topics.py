"""`loadmanager attach` at brokers of Pulsar's fifth version, whose topics are made of segments."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from attaching import balancing, ended_tasks, even, told_until
from pulsar_processes import jars_of, java
from real_pulsar import RealPulsar, lies_in, marks, trial_cluster

pytestmark = marks(900)
VERSION = "5.0.0-M1"
NAMESPACE = "trial/scalable"
SEGMENTS = 8
PER_SEGMENT_S = 40.0
SENDER = Path(__file__).parent / "SegmentSender.java"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealPulsar]:
    folder = tmp_path_factory.mktemp("five")
    with trial_cluster(folder, "modular", version=VERSION, brokers=2) as made:
        yield made


def segments(topic: str) -> list[str]:
    step = 0x10000 // SEGMENTS
    return [
        f"segment://{NAMESPACE}/{topic}/{place * step:04x}-{(place + 1) * step - 1:04x}-{place}"
        for place in range(SEGMENTS)
    ]


@contextmanager
def sending_to(cluster: RealPulsar, names: Sequence[str]) -> Iterator[None]:
    """Send to segments: no client for Python knows them yet."""
    opened = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.lang", "java.nio")]
    run = [str(java()), "-Xmx128m", *opened, "-cp", f"{jars_of(VERSION)}/*", str(SENDER)]
    process = subprocess.Popen(
        [*run, cluster.service_url, f"{PER_SEGMENT_S:g}", *names],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        said = []
        for line in process.stdout:
            said.append(line)
            if line == "sending\n":
                break
        else:
            pytest.fail("".join(said))
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_segments_are_counted_and_their_bundles_moved(cluster: RealPulsar, tmp_path: Path) -> None:
    cluster.create_namespace(NAMESPACE, 8)
    path = f"/admin/v2/scalable/{NAMESPACE}/orders?numInitialSegments={SEGMENTS}"
    assert cluster.put(path) == 204
    names = segments("orders")
    with sending_to(cluster, names):
        cluster.gather(NAMESPACE, [f"persistent://{NAMESPACE}/{one}" for one in range(200)])
        with balancing(cluster, tmp_path, "--interval", "4") as (process, told):
            spread = told_until(told, lambda line: even(line, at_most=1.3))
            process.terminate()
            assert process.wait(60) == 0
    rate = sum(one["msgsInPerS"] for one in spread["brokers"])
    assert rate == pytest.approx(SEGMENTS * PER_SEGMENT_S, rel=0.2)
    moved = ended_tasks(told)
    assert moved
    assert {one["state"] for one in moved} == {"serving"}
    assert all(any(lies_in(name, one["bundle"]) for name in names) for one in moved)
