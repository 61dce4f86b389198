"""What brokers answer that nobody expects: it makes a broker unknown, and stops nothing else."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_pulsar import FakeBroker, FakePulsar, running

from loadmanager.core.ids import BrokerId
from loadmanager.pulsar import client
from loadmanager.pulsar.answers import ClusterReader, ask_each, read_isolation, read_load_report
from loadmanager.pulsar.client import Access, NotPulsar, PulsarAdmin
from loadmanager.pulsar.state import SWITCHES, PulsarBalancer, state_file
from tests.attach.conftest import attach, seen

OWNED = "/admin/v2/brokers/research/{}/ownedNamespaces"
REPORT = "/admin/v2/broker-stats/load-report"
POLICIES = "/admin/v2/clusters/c/namespaceIsolationPolicies"


def http_reply(body: bytes, *headers: bytes, status: bytes = b"200 OK") -> bytes:
    length = b"Content-Length: %d" % len(body)
    return b"\r\n".join([b"HTTP/1.1 " + status, *(headers or (length,)), b"", body])


def redirect(location: bytes) -> bytes:
    return http_reply(b"", b"Content-Length: 0", b"Location: " + location, status=b"307 Odd")


HUGE = b"9" * 5_000
RAW = {
    "redirect without the end of an address": redirect(b"http://[::1/"),
    "redirect to a port out of range": redirect(b"http://h:99999/"),
    "redirect to no port": redirect(b"http://h:x/"),
    "redirect to no host": redirect(b"//"),
    "redirect to half a character": redirect(b"http://\xed\xa0\x80:80/"),
    "redirect to a future address": redirect(b"http://[v1.x]/"),
    "redirect to a name too long": redirect(b"http://" + b"a" * 70 + b".com/"),
    "redirect to an escape": redirect(b"http://\x1b[2J/"),
    "redirect nowhere": http_reply(b"", b"Content-Length: 0", status=b"302 Odd"),
    "bad gzip": http_reply(b"\x1f\x8bxx", b"Content-Encoding: gzip", b"Content-Length: 4"),
    "bad deflate": http_reply(b"junk", b"Content-Encoding: deflate", b"Content-Length: 4"),
    "a body that ends early": http_reply(b"[", b"Content-Length: 90"),
    "a negative length": http_reply(b"[]", b"Content-Length: -1"),
    "a length of 5,000 digits": http_reply(b"[]", b"Content-Length: " + HUGE),
    "two lengths": http_reply(b"[]", b"Content-Length: 1", b"Content-Length: 2"),
    "a chunk of no size": http_reply(b"zz\r\n", b"Transfer-Encoding: chunked"),
    "a charset that is none": http_reply(
        b"\xff\xfe", b"Content-Type: text/plain; charset=\xff", b"Content-Length: 2"
    ),
    "a cookie that is none": http_reply(b"[]", b"Set-Cookie: \x01=;=;;=\x7f", b"Content-Length: 2"),
    "headers of 1 MB": http_reply(b"[]", b"A: " + b"a" * 1_000_000, b"Content-Length: 2"),
    "no status": b"HTTP/1.1 \r\n\r\n",
    "a status out of range": http_reply(b"[]", status=b"99999 Odd"),
    "another protocol": b"SSH-2.0-odd\r\n",
    "NaN": http_reply(b"NaN"),
    "5,000 digits": http_reply(HUGE),
    "nested too deep": http_reply(b"[" * 100_000),
    "half a character": http_reply(b'{"clusterName": "\\ud800"}'),
    "an escape sequence": http_reply(b'"\\u001b[2J\x1b[2J"'),
    "null": http_reply(b"null"),
    "not UTF-8": http_reply(b"\xff\xfe{}"),
    "nothing": http_reply(b""),
}
DEEP = "[" * 190 + "]" * 190
SETTINGS = {
    "loadBalancerHostUsageCheckIntervalMinutes": "9" * 400,
    "webServicePortTls": "9" * 400,
    "metricsBufferResponse": "\x1b[2J",
}
FIELDS: dict[str, dict[str, str]] = {
    "usages of 400 digits": {
        REPORT: f'{{"cpu": {{"usage": {"9" * 400}, "limit": 1e999}}, "memory": [], "x": {DEEP}}}'
    },
    "bundles that are none": {OWNED: f'{{"\\u001b[2J": {DEEP}, "a/b/0x1_0x0": 7, "": null}}'},
    "a manager that is a list": {REPORT: '{"loadReportType": ["LoadReport"]}'},
}


@pytest.fixture
def hostile() -> Iterator[FakePulsar]:
    """Run two good brokers and one for each odd answer; the first has odd settings, too."""
    bundles = [f"a/b/0x{n}0000000_0x{n + 1}0000000" for n in range(4)]
    usual: dict[str, object] = {"cpu": {"usage": 10.0, "limit": 100.0}}
    first = FakeBroker(owned=bundles, settings=SETTINGS, load_report=usual)
    good = [first, FakeBroker(load_report=usual)]
    odd = [FakeBroker(host="127.0.0.2", raw=raw) for raw in RAW.values()]
    partly = [FakeBroker(host="127.0.0.3") for _ in FIELDS]
    with running(FakePulsar([*good, *odd, *partly])) as cluster:
        for broker, answers in zip(partly, FIELDS.values(), strict=True):
            for path, text in answers.items():
                broker.tells(path.format(broker.name), text)
        yield cluster


@pytest.mark.parametrize("more", [(), ("--balance",), ("--balance", "--strategy", "avg")])
def test_odd_answers_make_their_brokers_unknown_and_stop_nothing(
    hostile: FakePulsar, tmp_path: Path, more: tuple[str, ...]
) -> None:
    found = attach(hostile, "--json", "--once", "--state-dir", str(tmp_path), *more)
    assert found.exit_code == 0, found.output
    seen = next(one for one in map(json.loads, found.stdout.splitlines()) if "missing" in one)
    names = {broker.name: what for what, broker in zip(RAW, hostile.brokers[2:], strict=False)}
    said = {names[broker]: why for broker, why in seen["missing"].items() if broker in names}
    assert (said.keys(), seen["whole"]) == (RAW.keys(), False)
    assert all(why.isprintable() for why in seen["missing"].values())
    assert {one["broker"] for one in seen["brokers"]} >= {one.name for one in hostile.brokers[:2]}
    assert hostile.dynamic == {}


@pytest.mark.parametrize("raw", RAW.values(), ids=RAW)
async def test_restore_asks_the_next_broker(pulsar: FakePulsar, tmp_path: Path, raw: bytes) -> None:
    admin = PulsarAdmin(Access())
    reader = ClusterReader(admin, tuple(f"http://{one.name}" for one in pulsar.brokers))
    balancer = PulsarBalancer(state_file(tmp_path, "research"), settle_s=5.0)
    try:
        await balancer.begin(reader, await reader.read(), take_over=False)
        assert pulsar.dynamic == dict.fromkeys(SWITCHES, "false")
        pulsar.brokers[0].raw = pulsar.brokers[1].raw = raw
        assert len(await balancer.restore(reader)) == len(SWITCHES)
    finally:
        await admin.close()
    assert pulsar.dynamic == {}


async def test_whatever_a_function_of_one_answer_raises_is_an_error_of_that_answer() -> None:
    async def odd(_: object) -> object:
        raise kind("\x1b[2J")

    names = BrokerId("b:1"), BrokerId("c:1")
    for kind in (ValueError, TypeError, KeyError, RecursionError, OverflowError, ZeroDivisionError):
        answers, failed = await ask_each(names, odd)
        assert not answers
        assert failed.keys() == set(names)
        assert all(kind.__name__ in why and why.isprintable() for why in failed.values())
        with pytest.raises(NotPulsar, match=kind.__name__):
            await ClusterReader(PulsarAdmin(Access()), ("http://b:1", "http://c:1")).at_any(odd)


@pytest.mark.parametrize("tiny", ["[]", "{}", '""', "0", '{"a":{}}'])
async def test_an_answer_of_millions_of_tiny_values_is_not_parsed(
    pulsar: FakePulsar, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three million of them would take the loop for seconds."""
    monkeypatch.setattr(client, "MOST_VALUES", 1_000)
    monkeypatch.setattr(client, "from_json", lambda *_, **__: pytest.fail("it was parsed"))
    broker, admin = pulsar.brokers[0], PulsarAdmin(Access())
    for path in (REPORT, POLICIES):
        broker.tells(path, f"[{','.join([tiny] * 1_002)}]")
    try:
        for read in (read_load_report(admin, pulsar.url), read_isolation(admin, pulsar.url, "c")):
            with pytest.raises(NotPulsar, match="over 1,000 values"):
                await read
    finally:
        await admin.close()


def test_a_line_of_metrics_that_does_not_end_is_not_kept(pulsar: FakePulsar) -> None:
    pulsar.brokers[1].tells("/metrics/", "a" * 2_000_000)
    (why,) = seen(pulsar)["missing"].values()
    assert why.endswith("/metrics/: a line has over 1,048,576 bytes")
