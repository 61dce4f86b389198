from collections.abc import AsyncIterator

import pytest

from loadmanager.core.bundle_traffic import Flow, TopicCounters
from loadmanager.pulsar.answers import Exposition, read_exposition

TOPIC = "persistent://t/n/a"
LABELS = f'cluster="c",namespace="t/n",topic="{TOPIC}"'


async def read(*blocks: str) -> Exposition:
    async def given() -> AsyncIterator[bytes]:
        for block in blocks:
            yield block.encode()

    return await read_exposition(given())


async def test_each_subscription_has_its_counters_and_no_consumer_has() -> None:
    found = await read(
        f"pulsar_in_messages_total{{{LABELS}}} 10\npulsar_in_bytes_total{{{LABELS}}} 1000\n",
        f'pulsar_out_messages_total{{{LABELS},subscription="x"}} 3\n'
        f'pulsar_out_messages_total{{{LABELS},subscription="y"}} 4\n'
        f'pulsar_out_messages_total{{{LABELS},subscription="y",consumer_name="z"}} 4\n'
        f'pulsar_out_bytes_total{{{LABELS},subscription="y"}} 40 1795364930954\n',
        # While a bundle is split, its topics may be listed twice.
        f'pulsar_out_messages_total{{{LABELS},subscription="x"}} 3\n'
        f"pulsar_out_bytes_total{{{LABELS}}} 50\n",
    )
    out: dict[str, Flow] = {"x": (3, 0), "y": (4, 40), "": (0, 50)}
    assert found.topics == {TOPIC: TopicCounters(10, 1000, out)}


async def test_replication_and_the_brokers_own_totals_are_read() -> None:
    found = await read(
        f'pulsar_replication_rate_in{{{LABELS},remote_cluster="east"}} 7\n'
        f'pulsar_replication_rate_out{{{LABELS},remote_cluster="east"}} 2.5\n'
        f'pulsar_replication_throughput_out{{{LABELS},remote_cluster="east"}} 250.0\n'
        'pulsar_replication_rate_out{cluster="c",namespace="t/n",remote_cluster="east"} 9\n'
        'pulsar_broker_in_bytes_total{cluster="c",system_topic="false"} 100\n'
        'pulsar_broker_in_bytes_total{cluster="c",system_topic="true"} 10\n'
        'pulsar_broker_out_bytes_total{cluster="c",system_subscription="false"} 3\n'
        'pulsar_broker_rate_in{cluster="c"} 5.0\n'
    )
    assert found.topics == {TOPIC: TopicCounters(replicated={"east": (2.5, 250.0)})}
    assert found.totals == (110.0, 3.0)


async def test_names_of_topics_are_read_with_partitions_wherever_they_stand_and_quotes() -> None:
    labels = 'namespace="t/n",topic="persistent://t/n/a"'
    found = await read(
        f'pulsar_in_messages_total{{{labels},partition="3"}} 1\n'
        f'pulsar_in_messages_total{{{labels},partition="-1"}} 2\n'
        'pulsar_in_messages_total{topic="persistent://t/n/b-partition-0"} 3\n'
        'pulsar_in_messages_total{cluster="c",namespace="t/n"} 5\n'
        'pulsar_in_messages_total{topic="persistent://t/n/a\\"b\\\\c"} 1\n'
    )
    assert {topic: one.msgs_in for topic, one in found.topics.items()} == {
        "persistent://t/n/a-partition-3": 1,
        "persistent://t/n/a": 2,
        "persistent://t/n/b-partition-0": 3,
        'persistent://t/n/a"b\\c': 1,
    }


async def test_the_brokers_own_figures_are_read() -> None:
    found = await read(
        'process_cpu_seconds_total{cluster="research"} 11.74\n'
        'process_start_time_seconds{cluster="research"} 1.763900000123E9\n'
        'pulsar_lb_cpu_usage{cluster="c", broker="127.0.0.1", metric="loadBalancing"} 12.5\n'
    )
    assert (found.cpu_seconds, found.usages) == (11.74, {"cpu": 12.5})
    assert found.started_s == 1763900000.123


@pytest.mark.parametrize("value", ["NaN", "-1", "+Inf", "1e300", "many"])
async def test_a_figure_that_is_none_is_left_out(value: str) -> None:
    found = await read(f"pulsar_in_messages_total{{{LABELS}}} {value}\n")
    assert found.topics == {}
