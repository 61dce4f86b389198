"""How `loadmanager attach` reaches brokers: any of them, with TLS where there is TLS, and again."""

import asyncio
import errno
import json
import re
import socket
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from aiohttp import web
from balancers import Told, balanced, balancer_of
from click.testing import CliRunner, Result
from fake_pulsar import CONFIGURATION, EXTENSIBLE, FakeBroker, FakePulsar, running
from tls_files import Files
from waiting import eventually

from loadmanager.cli import main
from loadmanager.core.ids import parse_broker
from loadmanager.pulsar import client, sampling
from loadmanager.pulsar.answers import ClusterReader, addresses, read_dynamic
from loadmanager.pulsar.balancing import Balancer, Stopped
from loadmanager.pulsar.client import Access, PulsarAdmin
from loadmanager.pulsar.moves import BrokerQueries
from loadmanager.pulsar.observation import Rules
from loadmanager.pulsar.sampling import Sampler
from loadmanager.pulsar.sidecar_term import PulsarBroker
from loadmanager.pulsar.state import SWITCHES, StateFile, state_file

RUNTIME = f"{CONFIGURATION}/runtime"
OFF = dict.fromkeys(SWITCHES, "false")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def attach(url: str, *options: str) -> Result:
    asked = ["attach", "--pulsar", url, "--interval", "0.2", "--json", "--state-dir", "state"]
    return CliRunner().invoke(main, [*asked, *options])


def done(url: str, *options: str) -> Result:
    found = attach(url, *options)
    assert found.exit_code == 0, found.output
    return found


def killed(pulsar: FakePulsar, prior: Mapping[str, str | None] | None = None) -> None:
    """Leave what one leaves that found these settings, by default none, and was killed."""
    pulsar.dynamic.update(OFF)
    Path("state").mkdir(exist_ok=True)
    state = {"format": 1, "dynamic": prior or dict.fromkeys(SWITCHES), "effective": {}}
    Path("state/attach-research.json").write_text(json.dumps(state))


@pytest.mark.parametrize("given", ["the first", "both", "another"])
def test_without_the_first_broker_it_starts_and_restores(pulsar: FakePulsar, given: str) -> None:
    first, second, _ = pulsar.brokers
    urls = {"first": pulsar.url, "both": f"{pulsar.url},http://{second.name}/"}
    if given == "the first":
        done(pulsar.url, "--balance", "--once")
    # It was killed later, and its first broker has gone as well.
    prior = {SWITCHES[0]: None, SWITCHES[1]: "true"}
    killed(pulsar, prior)
    first.down = True
    url = {"the first": pulsar.url, "another": f"http://{second.name}"}.get(given, urls["both"])
    started = done(url, "--balance", "--once")
    assert f"{SWITCHES[0]}: not overridden again" in started.stdout
    assert pulsar.dynamic == {SWITCHES[1]: "true"}
    killed(pulsar, prior)
    for option in ("--pause", "--resume", "--restore"):
        done(url, option)
    assert pulsar.dynamic == {SWITCHES[1]: "true"}


def test_a_restore_tries_every_broker_for_every_setting(pulsar: FakePulsar) -> None:
    killed(pulsar)
    for broker in pulsar.brokers:
        broker.refuses(f"{CONFIGURATION}/{SWITCHES[0]}", 500, "metadata\x1b[2J")
    found = attach(pulsar.url, "--restore")
    assert found.exit_code == 1
    told = f"{SWITCHES[0]}: not restored: .*metadata.*; {SWITCHES[1]}: not overridden"
    assert re.search(told, found.stderr)
    assert found.stderr.removesuffix("\n").isprintable()
    assert pulsar.dynamic == {SWITCHES[0]: "false"}
    del pulsar.brokers[2].instead[f"{CONFIGURATION}/{SWITCHES[0]}"]
    assert attach(pulsar.url, "--restore").exit_code == 0
    assert pulsar.dynamic == {}
    assert not Path("state/attach-research.json").exists()


@pytest.mark.parametrize(
    "text",
    ["", "[", "[]", '{"urls": 1}', '{"urls": [1, "x"]}', '{"urls": ["http://[::1", "http:"]}'],
)
async def test_a_damaged_list_of_brokers_stops_nothing(tmp_path: Path, text: str) -> None:
    state = state_file(tmp_path, "research")
    assert await state.brokers() == ()
    (tmp_path / "attach-research.brokers").write_text(text)
    assert await state.brokers() == ()


@pytest.fixture
def files(tmp_path: Path) -> Files:
    (tmp_path / "token").write_text("secret")
    return Files(tmp_path)


@pytest.fixture
def encrypted(pulsar: FakePulsar, files: Files) -> Iterator[FakePulsar]:
    """Run brokers as the official chart makes them: ids name the plain port, and there is TLS."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificate, files.key)
    first = pulsar.brokers[0]
    brokers = [FakeBroker(owned=first.owned, topics=first.topics, grows=first.grows)]
    with running(FakePulsar([*brokers, FakeBroker(), FakeBroker()]), context) as cluster:
        yield cluster


SECRET = ("--token-file", "token", "--ca-file", "authorities.pem")


@pytest.mark.parametrize("scheme", ["https", "http"])
@pytest.mark.parametrize("redirects", [False, True])
def test_tokens_go_to_tls_alone(encrypted: FakePulsar, scheme: str, redirects: bool) -> None:
    first, second, _ = encrypted.brokers
    if redirects:

        async def lead(_: web.Request) -> web.Response:
            raise web.HTTPTemporaryRedirect(f"https://{first.tls_name}{CONFIGURATION}/values")

        second.instead[RUNTIME] = lead
    name = first.tls_name if scheme == "https" else first.name
    done(f"{scheme}://{name}", "--balance", "--once", *SECRET)
    assert encrypted.unloads
    assert encrypted.dynamic == {}
    # Of the address that is given without TLS it is not known before that there is one with it.
    assert first.plain == ([] if scheme == "https" else [RUNTIME])
    assert [one.plain for one in encrypted.brokers[1:]] == [[], []]
    assert {"Bearer secret"} == {a for one in encrypted.brokers for a in one.authorizations}


@pytest.mark.parametrize(
    "told",
    [
        {"httpUrlTls": "http://127.0.0.1:{port}"},
        {"httpUrlTls": "", "httpUrl": "http://127.0.0.1:{port}"},
        {"httpUrlTls": "https://[::1"},
    ],
)
@pytest.mark.parametrize("scheme", ["https", "http"])
def test_no_tls_gets_no_token(encrypted: FakePulsar, told: dict[str, str], scheme: str) -> None:
    first, second, _ = encrypted.brokers
    port = second.name.rpartition(":")[2]
    second.told_urls = {key: value.format(port=port) for key, value in told.items()}
    name = first.tls_name if scheme == "https" else first.name
    found = done(f"{scheme}://{name}", "--once", *SECRET)
    seen = json.loads(found.stdout)
    assert list(seen["missing"]) == [second.name]
    assert second.plain == []


async def test_a_sidecar_asks_its_own_broker_on_this_host_and_others_with_tls(
    encrypted: FakePulsar, files: Files, tmp_path: Path
) -> None:
    first, second, third = (parse_broker(one.name) for one in encrypted.brokers)
    encrypted.brokers[2].told_urls = {"httpUrlTls": ""}
    tls = ssl.create_default_context(cafile=str(files.authorities))
    # As `make_pulsar_broker` names an address of this host.
    own = {str(first): str(first)}
    admin = PulsarAdmin(Access(token_file=tmp_path / "token", tls=tls, addresses=own))
    broker = PulsarBroker(admin, encrypted.url, first, Rules().why_stays)
    assert await broker.owned()
    queries = BrokerQueries(admin, broker.address, "research", lambda: (first, second, third))
    assert await queries.why_not_ready(second) == ""
    assert "no port with TLS is known" in await queries.why_not_ready(third)
    assert await queries.why_not_ready(first) == ""
    await broker.close()
    assert [bool(one.plain) for one in encrypted.brokers] == [True, False, False]


def test_without_tls_the_token_goes_in_plain_and_the_doctor_warns_once(pulsar: FakePulsar) -> None:
    Path("token").write_text("secret")
    found = done(pulsar.url, "--doctor", "--token-file", "token")
    assert found.output.count("plain HTTP") == 1
    assert all(one.plain for one in pulsar.brokers)


def test_the_doctor_has_nothing_to_say_of_tls(encrypted: FakePulsar) -> None:
    found = done(f"https://{encrypted.brokers[0].tls_name}", "--doctor", *SECRET)
    assert "plain HTTP" not in found.output


@pytest.mark.parametrize("by", ["option", "lookup"])
def test_brokers_named_for_the_inside_are_reached(pulsar: FakePulsar, by: str) -> None:
    url, options = pulsar.url, list[str]()
    for number, broker in enumerate(pulsar.brokers):
        reachable, broker.name = broker.name, f"broker-{number}.inside.invalid:8080"
        if by == "option":
            options += ["--address", f"{broker.name}={reachable}"]
        else:
            broker.told_urls = {"httpUrl": f"http://{reachable}"}
    done(url, "--balance", "--once", *options)
    assert sorted(sum("bench" in b for b in one.owned) for one in pulsar.brokers) == [2, 3, 3]


@pytest.fixture
async def balancer(pulsar: FakePulsar, tmp_path: Path) -> AsyncIterator[Balancer]:
    admin = PulsarAdmin(Access(token_file=tmp_path / "token"))
    (tmp_path / "token").write_text("good")
    state = StateFile(tmp_path / "attach-research.json")
    yield balancer_of(pulsar, admin, state, interval_s=0.1)
    await admin.close()


async def test_a_right_that_is_missing_for_a_while_holds_rounds(
    pulsar: FakePulsar, balancer: Balancer, tmp_path: Path
) -> None:
    """A token expires, its file is gone while it is rotated, and then there is another."""
    refused = 0

    async def rotate(request: web.Request) -> web.Response:
        nonlocal refused
        refused += 1
        if refused == 2 * len(pulsar.brokers):
            (tmp_path / "token").unlink()
            asyncio.get_running_loop().call_later(0.3, (tmp_path / "token").write_text, "new")
        right = request.headers.get("Authorization") == "Bearer new"
        names = [one.name for one in pulsar.brokers]
        return web.json_response(names, status=200 if right else 401)

    task = asyncio.create_task(balanced(balancer))
    log = balancer.log
    assert isinstance(log, Told)
    await eventually(lambda: log.held)
    for broker in pulsar.brokers:
        broker.instead["/admin/v2/brokers/research"] = rotate
    await eventually(lambda: log.events and "No such file" in log.events[-1])
    count = len(log.held)
    await eventually(lambda: len(log.held) > count)
    balancer.stopping.set()
    await task
    held = [one for one in log.events if "nothing moves in this round" in one]
    assert any("answered 401" in one for one in held)
    assert any("No such file" in one for one in held)
    assert pulsar.dynamic == {}


@pytest.mark.parametrize("restores", [True, False])
async def test_a_right_that_stays_missing_ends_it_after_what_can_be_restored(
    pulsar: FakePulsar, balancer: Balancer, monkeypatch: pytest.MonkeyPatch, restores: bool
) -> None:
    monkeypatch.setattr("loadmanager.pulsar.balancing._RESTORE_PAUSE_S", 0.01)
    balancer.refused_s = 0.3
    cluster = await balancer.reader.read()
    log = balancer.log
    assert isinstance(log, Told)
    task = asyncio.create_task(balancer.run(cluster, None, take_over=False))
    await eventually(lambda: pulsar.dynamic == OFF and len(log.held) > 0)
    for broker in pulsar.brokers:
        broker.refuses("/admin/v2/brokers/research", 401, "token expired")
        if not restores:
            broker.refuses(f"{CONFIGURATION}/values", 401, "token expired")
    with pytest.raises(Exception, match="token expired") as ended:
        await task
    assert isinstance(ended.value, Stopped) is restores
    assert pulsar.dynamic == ({} if restores else OFF)
    assert any("loadmanager attach --restore" in one for one in log.events) != restores


async def test_settings_are_read_once_a_minute(pulsar: FakePulsar, balancer: Balancer) -> None:
    def asked() -> list[int]:
        return [one.asked.count(RUNTIME) for one in pulsar.brokers]

    await balancer.reader.read()
    first = asked()
    for _ in range(5):
        await balancer.reader.read()
    assert asked() == first == [2, 1, 1]
    pulsar.dynamic["loadBalancerSheddingEnabled"] = "true"
    await balancer.reader.read()
    assert asked() == [3, 2, 2]
    left = pulsar.brokers.pop()
    await balancer.reader.read()
    pulsar.brokers.append(left)
    assert asked() == [4, 3, 2]
    assert {one.asked.count("/admin/v2/broker-stats/load-report") for one in pulsar.brokers} == {1}


async def test_nothing_moves_between_different_load_managers_and_then_by_the_new_one(
    pulsar: FakePulsar, balancer: Balancer
) -> None:
    pulsar.brokers[1].settings["loadManagerClassName"] = EXTENSIBLE
    log = await balanced(balancer, 1)
    assert "extensible: 127.0.0.1" in log.held[0]
    assert pulsar.unloads == []
    for broker in pulsar.brokers:
        broker.settings["loadManagerClassName"] = EXTENSIBLE
    balancer.reader.forget()
    await balanced(balancer, 1)
    assert pulsar.unloads != []
    assert not any("authoritative" in path for one in pulsar.brokers for path in one.asked)


@pytest.mark.parametrize("name", ["\ud800", "\x1b[31m", ""])
async def test_a_nameless_cluster_fails(pulsar: FakePulsar, balancer: Balancer, name: str) -> None:
    pulsar.brokers[0].tells(RUNTIME, json.dumps({"clusterName": name}))
    with pytest.raises(Exception, match="clusterName"):
        await balancer.reader.read()


def follow(pulsar: FakePulsar, remedy: str) -> None:
    match remedy.split():
        case [
            "pulsar-admin",
            "brokers",
            "update-dynamic-config",
            "--config",
            key,
            "--value",
            value,
        ]:
            pulsar.dynamic[key] = value
        case ["pulsar-admin", "brokers", "delete-dynamic-config", "--config", key]:
            del pulsar.dynamic[key]
        case ["loadmanager", *arguments]:
            assert CliRunner().invoke(main, arguments).exit_code == 0
        case ["set", "webServicePortTls", *_]:
            assert remedy.endswith("and give https:// in --pulsar")
        case ["set", key, "to", value, *rest]:
            assert " ".join(rest) == "in broker.conf and restart the brokers one by one"
            for broker in pulsar.brokers:
                broker.settings[key] = value
        case _:
            raise AssertionError(remedy)


def differing(key: str, value: str) -> Callable[[FakePulsar], None]:
    return lambda pulsar: pulsar.brokers[1].settings.update({key: value})


@pytest.mark.parametrize(
    ("set_up", "remedies"),
    [
        (lambda _: None, 0),
        (lambda pulsar: pulsar.settings.update(OFF), 0),
        (lambda pulsar: pulsar.dynamic.update(OFF), 1),
        (killed, 1),
        (differing("loadBalancerSheddingEnabled", "false"), 1),
        (differing("loadBalancerAutoBundleSplitEnabled", "false"), 1),
        (differing("loadBalancerEnabled", "false"), 1),
        (differing("loadBalancerLoadSheddingStrategy", "org.example.Other"), 1),
        (lambda p: p.settings.update({"exposeTopicLevelMetricsInPrometheus": "false"}), 1),
    ],
)
def test_each_remedy_of_the_doctor_works_and_then_balance_starts(
    pulsar: FakePulsar, set_up: Callable[[FakePulsar], None], remedies: int
) -> None:
    pulsar.settings["loadBalancerLoadSheddingStrategy"] = "org.example.Usual"
    set_up(pulsar)
    found = attach(pulsar.url, "--doctor")
    told = [line.partition("-> ")[2] for line in found.output.splitlines() if "-> " in line]
    assert len(told) == remedies + 1  # That TLS is missing is said each time.
    for remedy in told:
        follow(pulsar, remedy)
    before = dict(pulsar.dynamic)
    assert attach(pulsar.url, "--doctor").exit_code == 0
    done(pulsar.url, "--balance", "--once")
    assert pulsar.unloads
    assert pulsar.dynamic == before


def test_the_doctor_names_a_manager_that_is_not_the_configured_one(pulsar: FakePulsar) -> None:
    pulsar.brokers[1].load_report = {"loadReportType": "LoadReport"}
    found = attach(pulsar.url, "--doctor")
    assert found.exit_code == 1
    name = pulsar.brokers[1].name
    assert f"{name} is configured to run the modular one and runs the simple one" in found.output
    assert "nothing moves until all run the same one" in found.output


# --- addresses that nothing answers at ------------------------------------------------------


@pytest.fixture
def silent() -> Iterator[int]:
    """Yield a port at which connections to 127.* are neither made nor refused."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("0.0.0.0", 0))  # noqa: S104 - for 127.*
        server.listen(0)
        port = server.getsockname()[1]
        for _ in range(4):  # They fill its queue; the kernel drops what comes then.
            filling = stack.enter_context(socket.socket())
            filling.settimeout(0.0)
            filling.connect_ex(("127.0.0.1", port))
        yield port


async def test_thousands_of_dead_brokers_are_tried_at_once_and_remembered(
    pulsar: FakePulsar, silent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here 32 at once of 320; 512 at once are tried of all."""
    monkeypatch.setattr(client, "_PROBED_AT_ONCE", 32)
    tried: list[str] = []
    connect = asyncio.open_connection

    async def counted(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        tried.append(f"{host}:{port}")
        return await connect(host, port)

    monkeypatch.setattr(asyncio, "open_connection", counted)
    dead = [f"127.9.{n // 250}.{n % 250 + 1}:{silent}" for n in range(320)]
    alive = [one.name for one in pulsar.brokers]
    for one in pulsar.brokers:
        one.tells("/admin/v2/brokers/research", json.dumps(dead + alive))
    admin = PulsarAdmin(Access(connect_timeout_s=0.3))
    reader = ClusterReader(admin, (pulsar.url,))
    sampler = Sampler(admin, addresses(pulsar.url))
    for _ in range(12):
        cluster = await reader.read()
        _, missing = await sampler.sample(cluster)
    assert cluster.settings.keys() == set(alive)
    assert missing.keys() == set(dead)
    assert all("cannot connect (no answer)" in why for why in missing.values())
    every = Counter(tried)
    assert every.keys() >= set(dead)
    # By turns, and those that failed before after those that were not tried yet.
    assert max(every.values()) <= 2
    assert len(tried) <= 12 * 32
    await admin.close()


@pytest.mark.parametrize("settings_too", [False, True])
async def test_brokers_that_freeze_are_waited_for_once_and_left_alone(
    settings_too: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They accept connections and never answer; beside them all others are sampled."""
    monkeypatch.setattr(sampling, "_PARALLEL", 2)
    admin = PulsarAdmin(Access(timeout_s=3.0, metrics_timeout_s=4.0))
    with running(FakePulsar([FakeBroker() for _ in range(12)])) as cluster:
        reader = ClusterReader(admin, (cluster.url,))
        sampler = Sampler(admin, addresses(cluster.url))
        frozen = cluster.brokers[1:9]

        async def missing() -> set[str]:
            for one in frozen:
                one.asked.clear()
            _, found = await sampler.sample(await reader.read())
            return {one for one, why in found.items() if "second reading" not in why}

        def asked(path: str) -> int:
            return sum(one.asked.count(path) for one in frozen)

        assert await missing() == set()
        for one in frozen:
            one.frozen = True
        if settings_too:
            reader.forget()
        assert await missing() == {one.name for one in frozen}
        # Two are waited for at once, and then all are known.
        assert asked("/metrics/") == (0 if settings_too else 2)
        assert asked(RUNTIME) == (8 if settings_too else 0)
        for _ in range(3):
            assert await missing() == {one.name for one in frozen}
            assert asked("/metrics/") == asked(RUNTIME) == 0
        for one in frozen:
            one.frozen = False
        await admin.probe((f"http://{one.name}" for one in cluster.brokers), every=True)
        assert await missing() == set()
    await admin.close()


async def test_addresses_are_tried_again_at_once_when_there_are_descriptors_again(
    pulsar: FakePulsar, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0

    async def none_left(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(client, "monotonic", lambda: now_s)
    admin = PulsarAdmin(Access())
    with monkeypatch.context() as full:
        full.setattr(asyncio, "open_connection", none_left)
        await admin.probe([pulsar.url])
        now_s = 1000.0
        await admin.probe([pulsar.url])
    await admin.probe([pulsar.url])
    assert await read_dynamic(admin, pulsar.url) == pulsar.dynamic
    await admin.close()


async def test_a_sidecars_own_broker_is_asked_again_though_a_leader_found_it_down(
    pulsar: FakePulsar, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: object) -> None:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "")

    name = parse_broker(pulsar.brokers[0].name)
    broker = PulsarBroker(PulsarAdmin(Access()), pulsar.url, name, lambda *_: "")
    with monkeypatch.context() as down:
        down.setattr(asyncio, "open_connection", refused)
        await broker.admin.probe(f"http://{one.name}" for one in pulsar.brokers)
    await broker.health(10.0)  # It leads no more, and probes nobody.
    await broker.close()


async def test_a_restore_finds_the_one_of_a_thousand_stored_brokers_that_answers(
    pulsar: FakePulsar, silent: int
) -> None:
    dead = [f"http://127.9.{n // 250}.{n % 250 + 1}:{silent}" for n in range(1_000)]
    admin = PulsarAdmin(Access(connect_timeout_s=2.0))
    reader = ClusterReader(admin, (*dead, pulsar.url))
    began_s = time.monotonic()
    try:
        assert await reader.at_any(partial(read_dynamic, admin)) == pulsar.dynamic
    finally:
        await admin.close()
    # One after the other they would take over half an hour.
    assert time.monotonic() - began_s < 600.0
