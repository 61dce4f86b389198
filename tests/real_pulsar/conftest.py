"""One real cluster for each load manager, for all tests of this folder."""

from collections.abc import Iterator

import pytest
from real_pulsar import CHOSEN, VERSION, RealPulsar, trial_cluster

# Their version is another one: once is enough where all versions are tested.
collect_ignore = [] if VERSION == "4.0.7" else ["test_scalable_topics.py"]


@pytest.fixture(scope="session", params=CHOSEN)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealPulsar]:
    folder = tmp_path_factory.mktemp(f"pulsar-{request.param}")
    with trial_cluster(folder, request.param) as made:
        yield made
