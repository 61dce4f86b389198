"""`attach --once --as pulsar-admin`: moves and splits as commands that people read and run."""

import shlex
from collections.abc import Iterator

from fake_pulsar import EXTENSIBLE, FakePulsar

from loadmanager.cli.attach_output import commands
from loadmanager.core.bundle_task import AskedBy, task_of
from loadmanager.core.bundle_traffic import BundleTraffic
from loadmanager.core.ids import BrokerId, parse_bundle
from loadmanager.core.plan import Cause, Move
from loadmanager.pulsar.answers import PulsarCluster
from loadmanager.pulsar.observation import Observation
from loadmanager.pulsar.sampling import BrokerSample
from tests.attach.conftest import attach

VERSION = "/admin/v2/brokers/version"


def printed(pulsar: FakePulsar, *options: str) -> list[str]:
    found = attach(pulsar, "--once", "--as", "pulsar-admin", *options)
    assert found.exit_code == 0, found.output
    return found.stdout.splitlines()


def parts(lines: list[str]) -> Iterator[list[list[str]]]:
    """Yield the commands of each line, as a shell reads them."""
    for line in lines:
        words, found = shlex.split(line, comments=True), [[]]  # type: list[str], list[list[str]]
        for word in words:
            if word == "&&":
                found.append([])
            else:
                found[-1].append(word)
        if words:
            yield found


def test_each_move_is_a_command_with_its_reason_and_lands_at_its_target(pulsar: FakePulsar) -> None:
    lines = printed(pulsar)
    moves = list(parts(lines))
    first = pulsar.brokers[0]
    assert len(moves) == 5
    for unload, claim in moves:
        assert unload[:5] == ["pulsar-admin", "namespaces", "unload", "bench/skew", "--bundle"]
        assert f"bench/skew/{unload[5]}" in first.owned
        assert unload[6] == "--destinationBroker"
        assert unload[7] in {one.name for one in pulsar.brokers[1:]}
        url = claim[-1]
        assert claim[0] == "curl"
        assert url.startswith(f"http://{unload[7]}/lookup/v2/topic/persistent/bench/skew/topic-")
        assert url.endswith("?authoritative=true")
    assert (
        f"# 1. {first.name} -> {moves[0][0][7]}: joint takes it off {first.name} (imbalance)"
        in "\n".join(lines)
    )
    assert any("5 moves would bring the fullest broker" in line for line in lines)
    assert any("loadBalancerSheddingEnabled --value false" in line for line in lines)
    assert pulsar.unloads == []


def test_the_extensible_manager_needs_no_claim_and_2_10_no_destination(pulsar: FakePulsar) -> None:
    for one in pulsar.brokers:
        one.tells(VERSION, "2.10.5")
    assert all(len(unload) == 6 for unload, _ in parts(printed(pulsar)))
    for one in pulsar.brokers:
        one.tells(VERSION, "4.0.7")
    pulsar.settings["loadManagerClassName"] = EXTENSIBLE
    assert all(len(unload) == 8 for (unload,) in parts(printed(pulsar)))


def test_a_split_names_its_position_and_moves_of_its_parts_follow_later(pulsar: FakePulsar) -> None:
    first = pulsar.brokers[0]
    whole = "bench/skew/0x00000000_0xffffffff"
    first.owned = [whole]
    lines = printed(pulsar, "--split")
    ((split,),) = parts(lines)
    assert split[:6] == [
        *("pulsar-admin", "namespaces", "split-bundle", "bench/skew"),
        *("--bundle", "0x00000000_0xffffffff"),
    ]
    assert split[6:9] == [
        *("--split-algorithm-name", "specified_positions_divide", "--split-boundaries")
    ]
    assert 0 < int(split[9]) < 2**32 - 1


def test_names_and_reasons_are_no_commands() -> None:
    source, target = BrokerId("a:8080"), BrokerId("b:8080")
    bundle = parse_bundle("t/n/0x00000000_0xffffffff")
    topic = "persistent://t/n/it's; rm -rf $HOME"
    away = Move(bundle, source, target, Cause.IMBALANCE)
    move = task_of(away, AskedBy.BALANCING, reason="line one\nrm -rf /\x1b[2J")
    seen = Observation(
        cluster=PulsarCluster(name="x\nrm", brokers=(source, target), version="4.0.7"),
        samples={
            source: BrokerSample(window_s=1.0, bundles={bundle: BundleTraffic(topic=topic)}),
            target: BrokerSample(window_s=1.0, bundles={}),
        },
        missing={},
        plan=None,
        proposals=(move,),
        staying={},
    )
    lines = [
        one for line in commands(seen, lambda one: f"http://{one}") for one in line.split("\n")
    ]
    assert all(line[:1] in {"", "#"} or line.startswith("pulsar-admin ") for line in lines)
    assert all(line.isprintable() for line in lines)
    ((_, claim),) = parts(lines)
    assert claim[-1].startswith("http://b:8080/lookup/v2/topic/persistent/t/n/it%27s%3B%20rm")
