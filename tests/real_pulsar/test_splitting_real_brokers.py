"""`loadmanager attach --balance --split` at real Pulsar brokers with real clients."""

import time
from pathlib import Path

import pytest
from attaching import balancing
from pulsar_traffic import sending, zipf_rates
from real_pulsar import RealPulsar

pulsar = pytest.importorskip("pulsar", reason="needs pulsar-client: pip install pulsar-client")

pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(300)]


def test_one_bundle_with_all_traffic_is_cut_and_spread(cluster: RealPulsar, tmp_path: Path) -> None:
    cluster.create_namespace("trial/hot", 1)
    names = [f"persistent://trial/hot/topic-{number}" for number in range(12)]
    with (
        sending(pulsar, cluster.service_url, zipf_rates(names, 600.0, 0.0)) as sends,
        balancing(cluster, tmp_path, "--interval", "5", "--split") as (process, told),
    ):
        deadline_s = time.monotonic() + 90
        while not any((line.get("maxOverMean") or 9) <= 1.25 for line in list(told)):
            assert time.monotonic() < deadline_s, told
            time.sleep(0.2)
        process.terminate()
        assert process.wait(30) == 0
    tasks = [line["task"] for line in told if "task" in line]
    splits = [one for one in tasks if one["kind"] == "split" and one["state"] != "ordered"]
    assert {one["state"] for one in splits} == {"serving"}
    assert sends.failed == []
