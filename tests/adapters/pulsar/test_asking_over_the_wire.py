"""Lookups, partitions and names of topics over the binary protocol."""

from collections.abc import Callable

from fake_sidecar import FakeSidecar
from pulsar_wire import BUNDLE, House, Wire

from tests.testbed.pulsar_protocol.fields import Command
from tests.testbed.pulsar_protocol.protocol import ServerError

CONNECT, FAILED = 1, 2


async def lookup(wire: Wire, topic: str) -> tuple[int, str, int]:
    wire.tell(Command.LOOKUP, topic=topic, request_id=1)
    answer = await wire.answer(Command.LOOKUP_RESPONSE)
    return answer.response, answer.broker_url, answer.error


async def test_a_lookup_names_the_owner_that_the_sidecar_names(
    opening: Callable[..., House], sidecar: FakeSidecar
) -> None:
    wire = await opening(sidecar_url=sidecar.url).client()
    assert await lookup(wire, "t") == (FAILED, "", ServerError.SERVICE_NOT_READY)
    sidecar.owners[BUNDLE] = "pulsar://other:6650"
    assert await lookup(wire, "t") == (CONNECT, "pulsar://other:6650", 0)
    assert await lookup(wire, "a/b") == (FAILED, "", ServerError.INVALID_TOPIC_NAME)


async def test_without_a_sidecar_a_broker_names_itself_for_what_it_serves(house: House) -> None:
    wire = await house.client()
    assert await lookup(wire, "t") == (CONNECT, house.url, 0)
    other = await lookup(wire, "persistent://other/ns/t")
    assert other == (FAILED, "", ServerError.SERVICE_NOT_READY)


async def test_partitions_are_those_that_the_sidecar_tells(
    opening: Callable[..., House], sidecar: FakeSidecar
) -> None:
    sidecar.partitions = 4
    wire = await opening(sidecar_url=sidecar.url).client()
    wire.tell(Command.PARTITIONS, topic="t", request_id=1)
    answer = await wire.answer(Command.PARTITIONS_RESPONSE)
    assert (answer.response, answer.partitions) == (0, 4)
    wire.tell(Command.PARTITIONS, topic="://", request_id=2)
    answer = await wire.answer(Command.PARTITIONS_RESPONSE)
    assert (answer.response, answer.error) == (1, ServerError.INVALID_TOPIC_NAME)


async def test_a_sidecar_that_is_gone_is_told_as_something_to_try_again(
    opening: Callable[..., House],
) -> None:
    wire = await opening(sidecar_url="http://127.0.0.1:1").client()
    wire.tell(Command.PARTITIONS, topic="t", request_id=1)
    answer = await wire.answer(Command.PARTITIONS_RESPONSE)
    assert answer.error == ServerError.SERVICE_NOT_READY
    assert await lookup(wire, "t") == (FAILED, "", ServerError.SERVICE_NOT_READY)


async def test_the_topics_of_a_namespace_are_those_that_have_been_opened(house: House) -> None:
    wire = await house.client()
    await wire.create(1, "b/c/d".replace("/", "-"))
    await wire.create(2, "persistent://public/default/a%2Fb")
    wire.tell(Command.TOPICS_OF_NAMESPACE, request_id=1, namespace="public/default")
    names = list((await wire.answer(Command.TOPICS_OF_NAMESPACE_RESPONSE)).topics)
    assert names == ["persistent://public/default/a%2Fb", "persistent://public/default/b-c-d"]
    wire.tell(Command.TOPICS_OF_NAMESPACE, request_id=2, namespace="other/ns")
    assert not (await wire.answer(Command.TOPICS_OF_NAMESPACE_RESPONSE)).topics
    wire.tell(Command.TOPICS_OF_NAMESPACE, request_id=3, namespace="../..")
    assert (await wire.answer(Command.ERROR)).error == ServerError.INVALID_TOPIC_NAME
