"""`loadmanager attach --balance` while somebody deletes and splits what it is moving."""

import time
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from attaching import PATIENCE_S, balancing, ended_tasks, even, first, told_until
from pulsar_traffic import sending, zipf_rates
from real_pulsar import RealPulsar, marks

pulsar = pytest.importorskip("pulsar", reason="needs pulsar-client: pip install pulsar-client")

pytestmark = marks(600)
KEPT, DELETED = "trial/kept", "trial/deleted"
TOPICS = {
    name: [f"persistent://{name}/topic-{number}" for number in range(16)]
    for name in (KEPT, DELETED)
}


def test_a_namespace_deleted_and_one_split_amid_moves(cluster: RealPulsar, tmp_path: Path) -> None:
    for name in TOPICS:
        cluster.create_namespace(name, 8)
    with (
        sending(pulsar, cluster.service_url, zipf_rates(TOPICS[KEPT], 400.0, 0.0)) as sends,
        # Its clients cannot go on.
        sending(
            pulsar, cluster.service_url, zipf_rates(TOPICS[DELETED], 400.0, 0.0), 2.0, ends=False
        ),
    ):
        for name, topics in TOPICS.items():
            cluster.gather(name, topics)
        limits = ("--interval", "4", "--moves-at-once", "1")
        with balancing(cluster, tmp_path, *limits) as (process, told):
            first(told, "state", "ordered")
            waiting = sorted(one for one in cluster.owned(0) if one.startswith(f"{KEPT}/"))
            # One after the other: two at once can block a modular broker.
            cut = [cluster.put(f"/admin/v2/namespaces/{one}/split") for one in waiting[-2:]]
            gone = deleted(cluster)
            window = told_until(told, even, since=len(told))
            told_until(told, lambda line: "verdict" in line, since=len(told))
            process.terminate()
            assert process.wait(60) == 0
    assert (cut, gone) == ([204, 204], 204)
    assert ended_tasks(told)
    assert sends.failed == []
    # A client's lookup amid the deletion may leave a bundle of it owned: nothing moves that.
    later = [line["task"]["bundle"] for line in told[told.index(window) :] if "task" in line]
    assert not [bundle for bundle in later if bundle.startswith(f"{DELETED}/")]


def deleted(cluster: RealPulsar) -> int:
    """Delete the namespace; Pulsar answers 412 while a bundle of it goes to another broker."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        gone = cluster.put(f"/admin/v2/namespaces/{DELETED}?force=true", method="DELETE")
        if gone != HTTPStatus.PRECONDITION_FAILED or time.monotonic() >= deadline_s:
            return gone
        time.sleep(1)


def test_a_new_namespace_is_spread_before_any_lookup(cluster: RealPulsar, tmp_path: Path) -> None:
    name = "trial/placed"

    def placed() -> list[dict[str, Any]]:
        return [one["task"] for one in told if one.get("task", {}).get("kind") == "place"]

    def rounds() -> int:
        return sum("verdict" in line for line in told)

    with balancing(cluster, tmp_path, "--interval", "1", "--place-new") as (process, told):
        told_until(told, lambda line: "verdict" in line)
        cluster.create_namespace(name, 16)
        seen = rounds()
        if cluster.manager == "modular":
            told_until(told, lambda _: sum(one["state"] != "ordered" for one in placed()) == 16)
        else:
            told_until(told, lambda _: rounds() >= seen + 3)
        process.terminate()
        assert process.wait(60) == 0
    served = [
        sum(one.startswith(f"{name}/") for one in cluster.owned(number)) for number in range(3)
    ]
    if cluster.manager == "modular":
        assert [one for one in placed() if one["state"] not in {"ordered", "serving"}] == []
        assert sorted(served) == [5, 5, 6]
        # Asking where a topic is makes none.
        assert cluster.json(f"/admin/v2/persistent/{name}") == []
    else:
        # Its brokers serve what clients look up, wherever an outside controller would have it.
        assert (served, placed()) == ([0, 0, 0], [])
