"""A broker process whose health answers are bad: emptied in order, and taken back."""

from pathlib import Path

import pytest
from broker_ahead import ahead_of
from cluster_processes import process_cluster
from waiting import eventually

from loadmanager.reference_broker.changes import overlaps

pytestmark = [pytest.mark.processes, pytest.mark.thorough, pytest.mark.timeout(300)]

BUNDLES = 8


async def test_a_broker_whose_health_answers_500_is_emptied_as_it_serves(tmp_path: Path) -> None:
    async with process_cluster(tmp_path, brokers=2, bundles=BUNDLES) as processes:
        member, other = processes.cluster.members
        async with ahead_of(processes, member) as ahead:
            await processes.start()
            await processes.look_up_every_bundle()
            await eventually(lambda: bool(processes.served_now([member])))
            ahead.health_status = 500
            await eventually(lambda: len(processes.served_now([other])) == BUNDLES)
            assert processes.served_now([member]) == {}
            broker, sidecar = member.processes
            assert broker.running
            assert sidecar.running
            _, metrics = await processes.cluster._ask(f"{member.sidecar_url}/metrics")
            assert "loadmanager_broker_healthy 0.0" in metrics
            assert 'loadmanager_session_changes_total{session="lost"} 0.0' in metrics
            ahead.health_status = None
            asked = ahead.asked
            await eventually(lambda: ahead.asked >= asked + 4)
            _, metrics = await processes.cluster._ask(f"{member.sidecar_url}/metrics")
            assert "loadmanager_broker_healthy 1.0" in metrics
            assert overlaps(processes.intervals()) == []
