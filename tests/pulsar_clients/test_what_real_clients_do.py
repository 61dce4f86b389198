"""What applications do with Pulsar's own client, against one broker.

The client blocks, so each test is a plain function that runs beside the broker's loop.
"""

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest
from fake_sidecar import FakeSidecar

pytestmark = pytest.mark.processes

WAIT_MS = 20_000


async def beside(do: Callable[[Any], object], client: Any) -> None:
    """Run a blocking story on a thread of its own."""
    await asyncio.to_thread(do, client)


def receive(consumer: Any, count: int) -> list[Any]:
    """Return the next messages, acknowledged."""
    messages = [consumer.receive(timeout_millis=WAIT_MS) for _ in range(count)]
    for message in messages:
        consumer.acknowledge(message)
    return messages


def contents(consumer: Any, count: int) -> list[bytes]:
    """Return the contents of the next messages, acknowledged."""
    return [message.data() for message in receive(consumer, count)]


async def test_batches_compressed_or_not_come_back_whole(client: Any, pulsar: Any) -> None:
    def story(client: Any) -> None:
        consumer = client.subscribe("t", "s")
        for kind in ("NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"):
            producer = client.create_producer(
                "t",
                batching_enabled=True,
                batching_max_publish_delay_ms=50,
                compression_type=getattr(pulsar.CompressionType, kind),
            )
            for number in range(100):
                producer.send_async(b"%s %d" % (kind.encode(), number), lambda *_: None)
            producer.flush()
            assert contents(consumer, 100) == [b"%s %d" % (kind.encode(), n) for n in range(100)]

    await beside(story, client)


async def test_keys_properties_and_times_are_the_producers(client: Any) -> None:
    def story(client: Any) -> None:
        consumer = client.subscribe("t", "s")
        producer = client.create_producer("t", producer_name="me")
        producer.send(b"x", properties={"a": "b"}, partition_key="k", event_timestamp=7)
        (message,) = receive(consumer, 1)
        assert (message.properties(), message.partition_key()) == ({"a": "b"}, "k")
        assert (message.event_timestamp(), message.producer_name()) == (7, "me")

    await beside(story, client)


async def test_a_message_of_the_largest_size_and_chunks_beyond_it_arrive(client: Any) -> None:
    def story(client: Any) -> None:
        consumer = client.subscribe("t", "s")
        producer = client.create_producer("t", chunking_enabled=True, batching_enabled=False)
        for size in (5 * 1024 * 1024 - 1000, 12 * 1024 * 1024):
            producer.send(b"x" * size)
            assert len(contents(consumer, 1)[0]) == size

    await beside(story, client)


async def test_a_consumer_seeks_back_and_forth(client: Any, pulsar: Any) -> None:
    def story(client: Any) -> None:
        # Without this the client itself drops the very message it seeks.
        consumer = client.subscribe("t", "s", start_message_id_inclusive=True)
        producer = client.create_producer("t")
        ids = [producer.send(b"%d" % number) for number in range(4)]
        assert contents(consumer, 4) == [b"0", b"1", b"2", b"3"]
        consumer.seek(pulsar.MessageId.earliest)
        assert contents(consumer, 4) == [b"0", b"1", b"2", b"3"]
        consumer.seek(ids[2])
        assert contents(consumer, 2) == [b"2", b"3"]
        consumer.seek(0)
        assert contents(consumer, 1) == [b"0"]
        consumer.seek(pulsar.MessageId.latest)
        producer.send(b"new")
        assert contents(consumer, 1) == [b"new"]

    await beside(story, client)


async def test_a_reader_reads_from_the_start_to_the_end(client: Any, pulsar: Any) -> None:
    def story(client: Any) -> None:
        producer = client.create_producer("t", batching_enabled=True)
        for number in range(5):
            producer.send(b"%d" % number)
        reader = client.create_reader("t", pulsar.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(timeout_millis=WAIT_MS).data())
        assert found == [b"0", b"1", b"2", b"3", b"4"]

    await beside(story, client)


async def test_what_is_refused_by_the_application_comes_again(client: Any, pulsar: Any) -> None:
    def story(client: Any) -> None:
        consumer = client.subscribe(
            "t",
            "s",
            consumer_type=pulsar.ConsumerType.Shared,
            negative_ack_redelivery_delay_ms=50,
        )
        client.create_producer("t").send(b"x")
        message = consumer.receive(timeout_millis=WAIT_MS)
        assert message.redelivery_count() == 0
        consumer.negative_acknowledge(message)
        again = consumer.receive(timeout_millis=WAIT_MS)
        assert (again.data(), again.redelivery_count()) == (b"x", 1)
        consumer.acknowledge(again)

    await beside(story, client)


async def test_a_second_exclusive_consumer_and_key_shared_are_refused(
    client: Any, pulsar: Any
) -> None:
    def story(client: Any) -> None:
        client.subscribe("t", "s")
        with pytest.raises(pulsar.ConsumerBusy):
            client.subscribe("t", "s")
        with pytest.raises(pulsar.PulsarException, match="NotAllowed"):
            client.subscribe("t", "k", consumer_type=pulsar.ConsumerType.KeyShared)

    await beside(story, client)


async def test_shared_consumers_divide_the_work_and_failover_ones_follow_each_other(
    client: Any, pulsar: Any
) -> None:
    def story(client: Any) -> None:
        shared = [
            client.subscribe("t", "shared", consumer_type=pulsar.ConsumerType.Shared)
            for _ in range(2)
        ]
        failover = [
            client.subscribe("t", "failover", consumer_type=pulsar.ConsumerType.Failover)
            for _ in range(2)
        ]
        producer = client.create_producer("t")
        for number in range(10):
            producer.send(b"%d" % number)
        halves = [contents(one, 5) for one in shared]
        assert sorted(halves[0] + halves[1]) == [b"%d" % number for number in range(10)]
        assert contents(failover[0], 10) == [b"%d" % number for number in range(10)]
        failover[0].close()
        producer.send(b"next")
        assert contents(failover[1], 1) == [b"next"]

    await beside(story, client)


async def test_acknowledgements_are_remembered_and_unsubscribing_forgets(
    client: Any, pulsar: Any
) -> None:
    def story(client: Any) -> None:
        earliest = pulsar.InitialPosition.Earliest
        consumer = client.subscribe("t", "s")
        producer = client.create_producer("t")
        for number in range(3):
            producer.send(b"%d" % number)
        messages = [consumer.receive(timeout_millis=WAIT_MS) for _ in range(3)]
        consumer.acknowledge_cumulative(messages[1])
        consumer.close()
        consumer = client.subscribe("t", "s")
        assert contents(consumer, 1) == [b"2"]
        consumer.unsubscribe()
        consumer = client.subscribe("t", "s", initial_position=earliest)
        assert len(contents(consumer, 3)) == 3

    await beside(story, client)


async def test_a_partitioned_topic_is_produced_and_consumed_as_one(
    client: Any, sidecar: FakeSidecar
) -> None:
    sidecar.partitions = 3

    def story(client: Any) -> None:
        consumer = client.subscribe("parts", "s")
        producer = client.create_producer("parts")
        for number in range(30):
            producer.send(b"%d" % number, partition_key=str(number))
        messages = receive(consumer, 30)
        assert {int(message.data()) for message in messages} == set(range(30))
        assert len({message.topic_name() for message in messages}) == 3

    await beside(story, client)


@pytest.mark.parametrize("client", ["pulsar"], indirect=True)
async def test_a_pattern_finds_the_topics_that_are_there(client: Any) -> None:
    def story(client: Any) -> None:
        producers = [client.create_producer(f"found-{number}") for number in range(3)]
        client.create_producer("other").send(b"not this")
        pattern = re.compile("persistent://public/default/found-.*")
        consumer = client.subscribe(pattern, "s")
        for number, producer in enumerate(producers):
            producer.send(b"%d" % number)
        assert sorted(contents(consumer, 3)) == [b"0", b"1", b"2"]

    await beside(story, client)
