"""Pulsar's own balancer is off while another one acts, and as it was afterwards."""

import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from fake_pulsar import CONFIGURATION, FakePulsar, refused

from loadmanager.pulsar.answers import ClusterReader
from loadmanager.pulsar.client import Access, PulsarAdmin
from loadmanager.pulsar.state import (
    SHEDDING,
    SWITCHES,
    BalancerNotOff,
    Part,
    PriorSettings,
    PulsarBalancer,
    StateFile,
    StateUnusable,
    locked_state,
)

SPLITS = "loadBalancerAutoBundleSplitEnabled"


@pytest.fixture
def state(tmp_path: Path) -> StateFile:
    return StateFile(tmp_path / "attach-research.json")


@pytest.fixture
def balancer(state: StateFile) -> PulsarBalancer:
    return PulsarBalancer(state, settle_s=0.5)


@pytest.fixture
async def reader(pulsar: FakePulsar) -> AsyncIterator[ClusterReader]:
    admin = PulsarAdmin(Access())
    yield ClusterReader(admin, (pulsar.url,))
    await admin.close()


async def begin(
    balancer: PulsarBalancer, reader: ClusterReader, *, take_over: bool = False
) -> None:
    await balancer.begin(reader, await reader.read(), take_over=take_over)


@pytest.mark.parametrize("prior", [{}, {SHEDDING: "true"}, {SPLITS: "false"}, {SPLITS: "true"}])
@pytest.mark.parametrize("older", [False, True])
async def test_exactly_what_was_set_before_is_restored(
    pulsar: FakePulsar,
    balancer: PulsarBalancer,
    prior: dict[str, str],
    older: bool,
    reader: ClusterReader,
) -> None:
    pulsar.dynamic.update(prior)
    pulsar.older = older
    before = [pulsar.runtime(one) for one in pulsar.brokers]
    await begin(balancer, reader)
    assert pulsar.dynamic == dict.fromkeys(SWITCHES, "false")
    await balancer.restore(reader)
    assert pulsar.dynamic == prior
    assert [pulsar.runtime(one) for one in pulsar.brokers] == before
    assert await balancer.state.read() is None


async def test_the_prior_values_are_on_disk_before_anything_is_changed(
    pulsar: FakePulsar, balancer: PulsarBalancer, reader: ClusterReader
) -> None:
    kept: list[PriorSettings | None] = []

    async def look(_: web.Request) -> web.Response:
        kept.append(await balancer.state.read())
        return refused(500, "boom")

    for broker in pulsar.brokers:
        broker.instead[f"{CONFIGURATION}/{SHEDDING}/false"] = look
    with pytest.raises(Exception, match="boom"):
        await begin(balancer, reader)
    prior = kept[0]
    assert prior is not None
    assert kept == [prior] * len(pulsar.brokers)
    assert prior.dynamic == dict.fromkeys(SWITCHES)
    assert prior.effective == dict.fromkeys(SWITCHES, "true")
    assert pulsar.dynamic == {}


async def test_the_first_prior_values_count(
    pulsar: FakePulsar, balancer: PulsarBalancer, reader: ClusterReader
) -> None:
    await begin(balancer, reader)
    # The controller was killed; the next one finds its own settings.
    await begin(balancer, reader)
    said = await balancer.restore(reader)
    assert pulsar.dynamic == {}
    assert said == (f"{SHEDDING}: not overridden again", f"{SPLITS}: not overridden again")
    assert await balancer.restore(reader) == (
        f"nothing to restore: {balancer.state.where()} does not exist",
    )


async def test_a_crash_before_the_first_change_leaves_nothing_to_undo(
    pulsar: FakePulsar, balancer: PulsarBalancer, reader: ClusterReader
) -> None:
    await balancer.state.write(
        PriorSettings(
            format=1, dynamic=dict.fromkeys(SWITCHES), effective=dict.fromkeys(SWITCHES, "true")
        )
    )
    assert await balancer.restore(reader) == tuple(
        f"{key}: not overridden, as before" for key in SWITCHES
    )
    assert pulsar.dynamic == {}


async def test_a_broker_that_does_not_act_on_the_setting_is_named(
    pulsar: FakePulsar, balancer: PulsarBalancer, reader: ClusterReader
) -> None:
    deaf = pulsar.brokers[1]

    async def tell(_: web.Request) -> web.Response:
        return web.json_response({**pulsar.runtime(deaf), SHEDDING: "true"})

    deaf.instead[f"{CONFIGURATION}/runtime"] = tell
    with pytest.raises(BalancerNotOff, match=f"{SHEDDING} is true on {deaf.name}"):
        await begin(balancer, reader)


async def test_a_state_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with (
        pytest.raises(StateUnusable, match="expected a folder that can be written"),
        locked_state(file / "below", "research"),
    ):
        pass
    with pytest.raises(StateUnusable, match=r"gone.*expected a folder that can be written"):
        await StateFile(tmp_path / "gone" / "state.json").write(
            PriorSettings(format=1, dynamic={}, effective={})
        )
    with pytest.raises(StateUnusable, match="expected a folder"):
        await StateFile(tmp_path / "gone" / "state.json").keep(Part.PRIOR, None)


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "{}", '{"format": 1}', '{"dynamic": {}, "effective": {}}'),
        '{"format": 2, "dynamic": {}, "effective": {}}',
        '{"format": 1, "dynamic": {"a": 1}, "effective": {}}',
    ],
)
async def test_a_damaged_state_is_named_and_not_taken_for_none(state: StateFile, text: str) -> None:
    state.path.write_text(text, encoding="utf-8")
    with pytest.raises(StateUnusable, match="expected the settings that attach --balance found"):
        await state.read()


async def test_nothing_of_the_state_is_synced_to_the_disk_on_the_event_loop(
    state: StateFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[threading.Thread] = []
    monkeypatch.setattr(os, "fsync", lambda _: synced.append(threading.current_thread()))
    await state.pause("maintenance")
    assert await state.paused() == "maintenance"
    await state.resume()
    assert len(synced) == 3
    assert threading.current_thread() not in synced
