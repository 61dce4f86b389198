import pytest

from loadmanager.adapters.zookeeper.embedded import EmbeddedZooKeeperError, find_java


@pytest.fixture(scope="session", autouse=True)
def java() -> None:
    try:
        find_java()
    except EmbeddedZooKeeperError as error:
        pytest.skip(str(error))
