import socket
from contextlib import closing

import pytest

from loadmanager.pipeline.runtime import SparkUnavailable, addresses, is_standalone, own_address


def closed_port() -> int:
    """Return a port that nobody listens on: it was free a moment ago."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return int(server.getsockname()[1])


def test_only_addresses_of_standalone_masters_are_taken_for_such() -> None:
    others = ("local[*]", "yarn", "k8s://https://spark.example.org:6443")
    assert [is_standalone(one) for one in ("spark://a:7077", *others)] == [True, *[False] * 3]


def test_several_masters_are_told_apart() -> None:
    found = addresses("spark://spark-1:7077,[fe80::1]:7078")
    assert found == [("spark-1", 7077), ("fe80::1", 7078)]


@pytest.mark.parametrize("master", ["spark://", "spark://a", "spark://a:7077,b", "spark://a:x"])
def test_an_address_of_another_form_is_refused(master: str) -> None:
    with pytest.raises(SparkUnavailable, match=r"expected spark://HOST:PORT\[,HOST:PORT"):
        addresses(master)


def test_the_own_address_is_that_on_the_way_to_a_master_that_answers() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
        assert own_address(f"spark://127.0.0.1:{closed_port()},127.0.0.1:{port}") == "127.0.0.1"


def test_masters_that_do_not_answer_are_told_with_why() -> None:
    master = f"spark://127.0.0.1:{closed_port()}"
    told = rf"no Spark master answers at {master} \(.*Connection refused\); expected one that runs"
    with pytest.raises(SparkUnavailable, match=told):
        own_address(master)
