"""`loadmanager attach --balance --split` at real Pulsar brokers with real clients."""

from pathlib import Path

import pytest
from attaching import balancing, told_until
from pulsar_traffic import sending, zipf_rates
from real_pulsar import VERSION, RealPulsar, marks

pulsar = pytest.importorskip("pulsar", reason="needs pulsar-client: pip install pulsar-client")

pytestmark = marks(600)
SPLITS = not VERSION.startswith("2.")  # It is asked for a cut between two topics.


def test_one_bundle_with_all_traffic_is_cut_and_spread(cluster: RealPulsar, tmp_path: Path) -> None:
    namespace = f"trial/{tmp_path.name}"  # Another one if it is tried again.
    cluster.create_namespace(namespace, 1)
    names = [f"persistent://{namespace}/topic-{number}" for number in range(12)]
    with (
        sending(pulsar, cluster.service_url, zipf_rates(names, 600.0, 0.0)) as sends,
        balancing(cluster, tmp_path, "--interval", "5", "--split") as (process, told),
    ):
        if SPLITS:
            told_until(told, lambda line: (line.get("maxOverMean") or 9) <= 1.25)
        else:
            told_until(told, lambda line: line.get("task", {}).get("state") == "failed")
        process.terminate()
        assert process.wait(60) == 0
    tasks = [line["task"] for line in told if "task" in line]
    splits = [one for one in tasks if one["kind"] == "split" and one["state"] != "ordered"]
    # A split that waits for another one, or for budgets, may be decided anew.
    states = {one["state"] for one in splits} - {"superseded"}
    assert states == {"serving" if SPLITS else "failed"}
    assert sends.failed == []
