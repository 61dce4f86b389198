"""One real cluster for each load manager, for all tests of this folder."""

import os
from collections.abc import Iterator

import pytest
from pulsar_processes import NoPulsar
from real_pulsar import CLUSTER, MANAGERS, RealPulsar, real_pulsar

VERSION = os.environ.get("LOADMANAGER_PULSAR_VERSION", "4.0.7")
CHOSEN = os.environ.get("LOADMANAGER_PULSAR_MANAGER") or "modular"


@pytest.fixture(scope="session", params=sorted(MANAGERS) if CHOSEN == "both" else [CHOSEN])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealPulsar]:
    folder = tmp_path_factory.mktemp(f"pulsar-{request.param}")
    try:
        with real_pulsar(folder, version=VERSION, manager=request.param) as made:
            body = f'{{"allowedClusters": ["{CLUSTER}"], "adminRoles": []}}'
            assert made.put("/admin/v2/tenants/trial", body) == 204
            yield made
    except NoPulsar as error:
        pytest.skip(str(error))
