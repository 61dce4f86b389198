"""`loadmanager attach --balance`: what it moves, what it says, and what it leaves behind."""

import asyncio
import itertools
import json
import re
import signal
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from attach_process import AttachProcess, attached
from click.testing import CliRunner, Result
from fake_pulsar import FakeBroker, FakePulsar, answer, metrics, running

from loadmanager.cli import main
from loadmanager.core.bundle_traffic import BundleTraffic
from loadmanager.core.bundles import Boundaries
from loadmanager.core.hashing import position
from loadmanager.core.ids import BundleId, Namespace, parse_broker, parse_full_topic
from loadmanager.core.rates import Rates
from loadmanager.pulsar.orders import ACTIVE_WINDOWS, SampledOwners
from loadmanager.pulsar.sampling import BrokerSample
from loadmanager.pulsar.state import SHEDDING, SWITCHES

OFF = dict.fromkeys(SWITCHES, "false")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def options(pulsar: FakePulsar, *more: str) -> list[str]:
    return [
        *("attach", "--pulsar", pulsar.url, "--interval", "0.3", "--json"),
        *("--state-dir", "state", *more),
    ]


def once(pulsar: FakePulsar, *more: str) -> Result:
    return CliRunner().invoke(main, options(pulsar, "--balance", "--once", *more))


def balanced_once(pulsar: FakePulsar, *more: str) -> Result:
    found = once(pulsar, *more)
    assert found.exit_code == 0, found.output
    return found


def lines(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def tasks(output: str, state: str) -> list[dict[str, Any]]:
    found = (line["task"] for line in lines(output) if "task" in line)
    return [task for task in found if task["state"] == state]


def events(output: str) -> list[str]:
    return [line["event"] for line in lines(output) if "event" in line]


def balancing(pulsar: FakePulsar, *more: str) -> AbstractContextManager[AttachProcess]:
    return attached(*options(pulsar, "--balance", *more)[1:])


def test_one_round_moves_what_is_proposed_and_restores_the_settings(pulsar: FakePulsar) -> None:
    found = balanced_once(pulsar)
    assert len(tasks(found.stdout, "ordered")) == len(tasks(found.stdout, "serving")) == 5
    counts = [sum("bench" in name for name in one.owned) for one in pulsar.brokers]
    assert counts in ([3, 3, 2], [3, 2, 3])
    assert pulsar.dynamic == {}
    assert events(found.stdout)[-1] == f"{SWITCHES[1]}: not overridden again"
    assert not list(Path("state").glob("*.json"))
    (task, *_) = tasks(found.stdout, "serving")
    assert (task["cause"], task["askedBy"]) == ("imbalance", "balancing")
    assert "joint takes it off" in task["why"]
    assert task["attempts"] == 1


def test_bundles_of_segments_alone_are_moved_although_no_segment_can_be_looked_up() -> None:
    """Nor has one of them `stats`, by which a topic is followed through a move."""
    namespace, segments = Boundaries.even(Namespace("bench/five"), 8), dict[BundleId, str]()
    for number in itertools.takewhile(lambda _: len(segments) < 8, itertools.count()):
        name = f"segment://bench/five/orders/0000-ffff-{number}"
        segments.setdefault(namespace.at(position(parse_full_topic(name), "crc32")), name)
    first = FakeBroker(
        owned=list(segments),
        topics={name: [1000.0, 0.0, 100_000.0, 0.0] for name in segments.values()},
        grows=dict.fromkeys(segments.values(), (50.0, 100.0, 5_000.0, 10_000.0)),
    )
    with running(FakePulsar([first, FakeBroker(), FakeBroker()])) as cluster:
        found = once(cluster)
    assert len(tasks(found.stdout, "serving")) == 5, found.output
    rates = dict.fromkeys(segments.values(), Rates(5.0, 5.0, 500.0, 500.0))
    broker = parse_broker(first.name)
    bundles = dict.fromkeys(segments, BundleTraffic())
    samples = {broker: BrokerSample(window_s=1.0, bundles=bundles, topics=rates)}
    owners = SampledOwners()
    for _ in range(ACTIVE_WINDOWS):
        owners.window(samples)
    owners.sampled([broker], samples)
    assert [owners.active_topics(one) for one in segments] == [()] * 8


def test_what_clients_of_moved_bundles_catch_up_moves_nothing(pulsar: FakePulsar) -> None:
    """Between the first two pages with it at its broker each topic gets six times as much more."""
    looks, first_counts = dict[str, int](), dict[str, list[float]]()
    for number, broker in enumerate(pulsar.brokers[1:]):
        stays = f"persistent://bench/stays-{number}/topic"
        broker.owned.append(f"bench/stays-{number}/0x00000000_0xffffffff")
        broker.topics[stays], broker.grows[stays] = [0.0] * 4, (50.0, 100.0, 5_000.0, 10_000.0)
        looks[stays] = 2

        async def look(_: web.Request, broker: FakeBroker = broker) -> web.StreamResponse:
            broker.count()
            for topic, counted in broker.topics.items():
                looks[topic] = looks.get(topic, 0) + 1
                if looks[topic] == 1:
                    first_counts[topic] = counted
                elif looks[topic] == 2:
                    former = first_counts[topic]
                    broker.topics[topic] = [
                        now + 6 * (now - then) for now, then in zip(counted, former, strict=True)
                    ]
            return metrics(broker)

        broker.instead["/metrics/"] = look
    with balancing(pulsar, "--interval", "1") as process:
        process.until("no move that is allowed is worth its price", times=2)
        process.end()
    moved = [one["bundle"] for one in tasks("\n".join(process.lines), "serving")]
    assert len(moved) == len(set(moved)) == 4
    assert sorted(len(one.topics) for one in pulsar.brokers) == [3, 3, 4]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_every_signal_restores_the_settings(pulsar: FakePulsar, number: signal.Signals) -> None:
    pulsar.dynamic[SHEDDING] = "true"
    with balancing(pulsar) as process:
        process.until("are off")
        assert pulsar.dynamic == OFF
        process.send_signal(number)
        assert process.wait() == 0
    assert pulsar.dynamic == {SHEDDING: "true"}


def test_a_signal_amid_moves_leaves_no_order_without_its_end(pulsar: FakePulsar) -> None:
    first, asked_to_stop = pulsar.brokers[0], threading.Event()

    async def slow(request: web.Request) -> web.Response:
        await asyncio.to_thread(asked_to_stop.wait, 60)
        del first.instead[request.path]
        return await answer(pulsar, first, request)

    for name in first.owned:
        first.instead[f"/admin/v2/namespaces/{name}/unload"] = slow
    with balancing(pulsar, "--moves-at-once", "2") as process:
        process.until('"state": "ordered"', times=2)
        process.terminate()
        asked_to_stop.set()
        assert process.wait() == 0
    output = "".join(process.lines)
    ordered = {task["bundle"] for task in tasks(output, "ordered")}
    assert ordered == {task["bundle"] for task in tasks(output, "serving")}
    assert len(ordered) == 2
    assert {task["reason"] for task in tasks(output, "superseded")} == {"held: asked to stop"}
    assert pulsar.dynamic == {}


def test_after_a_kill_restore_sets_exactly_what_was_there(pulsar: FakePulsar) -> None:
    pulsar.dynamic[SWITCHES[1]] = "true"
    with balancing(pulsar) as process:
        process.until('"state": "ordered"')
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert pulsar.dynamic == OFF
    found = CliRunner().invoke(main, options(pulsar, "--restore"))
    assert found.exit_code == 0, found.output
    assert events(found.stdout) == [
        f"{SHEDDING}: not overridden again",
        f"{SWITCHES[1]}: overridden with true again",
    ]
    assert pulsar.dynamic == {SWITCHES[1]: "true"}


def test_shedding_that_somebody_switches_on_stops_it(pulsar: FakePulsar) -> None:
    with balancing(pulsar) as process:
        process.until('"verdict"')
        pulsar.dynamic[SHEDDING] = "true"
        assert process.wait() == 1
    names = ", ".join(sorted(one.name for one in pulsar.brokers))
    assert f"{SHEDDING} was switched on by others (true on {names})" in process.lines[-1]
    left = f"{SHEDDING}: overridden with true, as set by others; left unchanged"
    assert left in events("".join(process.lines))
    assert pulsar.dynamic == {SHEDDING: "true"}


def test_a_second_controller_of_the_same_state_is_refused(pulsar: FakePulsar) -> None:
    with balancing(pulsar) as process:
        process.until("are off")
        second = once(pulsar)
        restore = CliRunner().invoke(main, options(pulsar, "--restore"))
    assert [second.exit_code, restore.exit_code] == [1, 1]
    assert "another loadmanager attach acts on research" in second.stderr
    assert "another loadmanager attach acts on research" in restore.stderr


def test_a_controller_of_another_state_is_refused_unless_it_takes_over(pulsar: FakePulsar) -> None:
    pulsar.dynamic[SHEDDING] = "false"
    found = once(pulsar)
    assert found.exit_code == 1
    assert "end it, or give --take-over" in found.stderr
    assert pulsar.unloads == []
    assert not list(Path("state").glob("*.json"))
    assert once(pulsar, "--take-over").exit_code == 0
    assert pulsar.unloads != []
    assert pulsar.dynamic == {SHEDDING: "false"}


def test_a_state_folder_that_cannot_be_written_changes_nothing(pulsar: FakePulsar) -> None:
    Path("state").touch()
    found = once(pulsar)
    assert found.exit_code in {1, 2}
    assert pulsar.dynamic == {}
    assert pulsar.unloads == []


def closed_now() -> str:
    hour = (time.localtime().tm_hour + 12) % 24
    return f"{hour:02}:00-{hour:02}:30"


@pytest.mark.parametrize(
    ("option", "moved", "said"),
    [
        (("--moves-per-minute", "2"), 2, "held: 2 moves a minute"),
        (("--moves-per-hour", "3"), 3, "held: 3 moves an hour"),
        (("--moves-per-namespace", "1"), 1, "held: 1 moves a minute of bench/skew"),
        (("--exclude", "bench/*"), 0, "no move that is allowed is worth its price"),
        (("--most-moves", "2"), 2, ""),
        (("--window", closed_now()), 0, f'"held": "outside {closed_now()}"'),
    ],
)
def test_limits_hold(pulsar: FakePulsar, option: tuple[str, ...], moved: int, said: str) -> None:
    found = balanced_once(pulsar, *option)
    assert len(pulsar.unloads) == moved
    assert said in found.stdout


def test_a_missing_right_stops_it_and_says_which(pulsar: FakePulsar) -> None:
    for name in list(pulsar.brokers[0].owned):
        pulsar.brokers[0].refuses(f"/admin/v2/namespaces/{name}/unload", 401, "token expired")
    found = once(pulsar)
    assert found.exit_code == 1
    assert "the right to change it" in found.stderr.splitlines()[-1]
    assert pulsar.dynamic == {}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ((), "a broker joined, left or restarted less than 120 s ago"),
        (("--settle", "0"), "the sample began before a broker joined, left or restarted"),
    ],
)
def test_nothing_moves_for_a_while_after_a_broker_left(
    pulsar: FakePulsar, options: tuple[str, ...], why: str
) -> None:
    with balancing(pulsar, "--most-moves", "1", *options) as process:
        process.until('"serving"')
        pulsar.brokers.pop()
        process.until(why)
        if not options:
            count = len(pulsar.unloads)
            process.until(why, times=3)
            assert len(pulsar.unloads) == count
        process.end()


def test_it_tells_people_in_sentences(pulsar: FakePulsar) -> None:
    arguments = [one for one in options(pulsar, "--balance", "--once") if one != "--json"]
    found = CliRunner().invoke(main, [*arguments, "--moves-per-hour", "1"])
    assert found.exit_code == 0, found.output
    assert "Pulsar's own shedding and automatic splits are off" in found.output
    lines = found.output.splitlines()
    (moved,) = (line for line in lines if "  serving  bench/skew/" in line)
    assert re.fullmatch(r"\S+Z  serving  bench/skew/\S+: \S+ -> \S+, [\d,]+ msg/s.*", moved)
    assert ": held: 1 moves an hour" in found.output
    assert "  ordered  " not in found.output
    assert "  1. bench/skew/" not in found.output
    assert max(len(line) for line in lines if " -> " in line) <= 120
    found = CliRunner().invoke(main, [*arguments, "--verbose"])
    for text in ("  1. bench/skew/", "  ordered  bench/skew/", "  serving  bench/skew/"):
        assert text in found.output
    found = CliRunner().invoke(main, [*arguments, "--window", closed_now()])
    assert f"nothing moves in this round: outside {closed_now()}" in found.output


def test_each_window_ends_with_what_moved_in_the_last_hour(pulsar: FakePulsar) -> None:
    arguments = [one for one in options(pulsar, "--balance", "--interval", "1") if one != "--json"]
    with attached(*arguments[1:]) as process:
        process.until("last hour: ")
        process.end()
    line = next(line for line in process.lines if line.startswith("last hour: "))
    said = r"last hour: \d moves \(\d serving\), [\d,]+ msg/s and [\d.]+ MB/s moved"
    assert re.fullmatch(said, line.strip())
