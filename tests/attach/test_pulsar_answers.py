"""What a Pulsar broker answers about topics, and what is none of its answers."""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from fake_pulsar import FakePulsar, lies_in
from raw_server import raw_server
from tls_files import Files

from loadmanager.core.ids import Namespace, parse_broker, parse_bundle, parse_full_topic
from loadmanager.pulsar.answers import (
    read_boundaries,
    read_lookup,
    read_own_urls,
    read_partitions,
    read_topics,
)
from loadmanager.pulsar.client import (
    Access,
    AnswerRefused,
    NotPulsar,
    PulsarAdmin,
    RequestFailed,
    RightMissing,
    Unanswered,
)

NAMESPACE = Namespace("bench/skew")
TOPIC = parse_full_topic("persistent://bench/skew/topic-0")
PARTITIONS = "/admin/v2/persistent/bench/skew/topic-0/partitions"
BUNDLES = "/admin/v2/namespaces/bench/skew/bundles"


@pytest.fixture
async def admin() -> AsyncIterator[PulsarAdmin]:
    made = PulsarAdmin(Access())
    yield made
    await made.close()


def told(pulsar: FakePulsar, path: str, answer: object, status: int = 200) -> None:
    pulsar.brokers[0].tells(path, json.dumps(answer), status)


async def test_a_lookup_names_where_clients_go(pulsar: FakePulsar, admin: PulsarAdmin) -> None:
    name = pulsar.brokers[0].name
    urls = await read_lookup(admin, pulsar.url, TOPIC)
    assert (urls.http_url, urls.broker_url) == (f"http://{name}", f"pulsar://binary-{name}")
    assert await read_own_urls(admin, pulsar.url, "research", parse_broker(name)) == urls
    # Pulsar 2.10 finds no broker by that.
    told(
        pulsar, f"/lookup/v2/topic/persistent/pulsar/{name}/healthcheck", "Namespace not found", 404
    )
    former = f"/lookup/v2/destination/persistent/pulsar/research/{name}/healthcheck"
    told(pulsar, former, {"httpUrl": "http://x:1", "httpUrlTls": "https://x:2"})
    found = await read_own_urls(admin, pulsar.url, "research", parse_broker(name))
    assert found.http_url_tls == "https://x:2"
    pulsar.brokers[0].refuses(f"/lookup/v2/topic/persistent/pulsar/{name}/healthcheck", 403, "no")
    with pytest.raises(RightMissing, match="403"):
        await read_own_urls(admin, pulsar.url, "research", parse_broker(name))
    told(pulsar, "/lookup/v2/topic/persistent/bench/skew/topic-0", {"brokerUrl": "pulsar://x:1"})
    with pytest.raises(NotPulsar, match="no httpUrl"):
        await read_lookup(admin, pulsar.url, TOPIC)


async def test_partitions_of_a_topic_are_counted(pulsar: FakePulsar, admin: PulsarAdmin) -> None:
    assert await read_partitions(admin, pulsar.url, TOPIC) == 0
    told(pulsar, PARTITIONS, {"partitions": 4})
    assert await read_partitions(admin, pulsar.url, TOPIC) == 4
    told(pulsar, PARTITIONS, {"partitions": True})
    with pytest.raises(NotPulsar, match="expected a number of partitions"):
        await read_partitions(admin, pulsar.url, TOPIC)
    told(pulsar, PARTITIONS, {}, status=500)
    with pytest.raises(AnswerRefused, match="500"):
        await read_partitions(admin, pulsar.url, TOPIC)


async def test_boundaries_are_read_or_refused(pulsar: FakePulsar, admin: PulsarAdmin) -> None:
    found = await read_boundaries(admin, pulsar.url, NAMESPACE)
    assert found is not None
    assert set(found.bundles) == {one for one in pulsar.brokers[0].owned if "skew" in one}
    assert await read_boundaries(admin, pulsar.url, Namespace("bench/none")) is None
    answers: tuple[object, ...] = ({"boundaries": ["0x0", "0xz"]}, {"boundaries": []}, [], {})
    for answer in answers:
        told(pulsar, BUNDLES, answer)
        with pytest.raises(NotPulsar, match="expected the boundaries of bundles"):
            await read_boundaries(admin, pulsar.url, NAMESPACE)
    told(pulsar, BUNDLES, {}, status=500)
    with pytest.raises(AnswerRefused, match="500"):
        await read_boundaries(admin, pulsar.url, NAMESPACE)


async def test_topics_of_a_bundle_lie_in_it(pulsar: FakePulsar, admin: PulsarAdmin) -> None:
    topics = list(pulsar.brokers[0].grows)
    for bundle in [one for one in pulsar.brokers[0].owned if one.startswith(NAMESPACE)]:
        expected = {topic for topic in topics if lies_in(topic, bundle)}
        found = await read_topics(admin, pulsar.url, parse_bundle(bundle))
        assert {str(one) for one in found} == expected
    told(pulsar, "/admin/v2/persistent/bench/skew", ["no topic", 7])
    assert await read_topics(admin, pulsar.url, parse_bundle(bundle)) == ()


ALERT = b"\x15\x03\x03\x00\x02\x02\x50"
HEAD = b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n"
HTML = HEAD % (b"502 Bad Gateway", 15) + b"<html>\x1b[31m</"


@pytest.mark.parametrize(
    ("scheme", "answer", "why"),
    [
        ("https", HEAD % (b"200 OK", 0), "does not answer in TLS; expected the port of webServ"),
        ("http", ALERT, "does not answer in HTTP; on a port with TLS, expected https://"),
        ("http", b"", "closed the connection without an answer; on a port with TLS, expected"),
        ("http", HEAD % (b"200 OK", 9) + b"{}", "the answer ended before it was complete"),
        ("http", HTML, r"answered 502 \(a page of HTML, as a proxy or another service does: name"),
        ("http", HEAD % (b"500 x", 8) + b"a\x1b[31mb\xff", r"answered 500 \(a\?\[31mb.\)$"),
        ("http", HEAD % (b"200 OK", 6) + b"\x1b]0;x\x07", "answered .]0;x.; expected the JSON of"),
    ],
)
async def test_what_is_no_broker_is_named_in_one_line_of_text(
    admin: PulsarAdmin, scheme: str, answer: bytes, why: str
) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(answer)
        await writer.drain()

    async with raw_server(handle) as port:
        with pytest.raises(RequestFailed, match=why) as refused:
            await admin.json(f"{scheme}://127.0.0.1:{port}")
    text = str(refused.value)
    assert text.isprintable()
    assert "object at" not in text


async def test_a_host_that_is_not_found_is_named_with_the_option(admin: PulsarAdmin) -> None:
    with pytest.raises(Unanswered, match="or --address for brokers that are named for the inside"):
        await admin.json("http://broker-0.pulsar.invalid:8080")


async def test_an_address_where_nobody_listens_is_named_in_one_line(admin: PulsarAdmin) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = "http://{}:{}".format(*bound.getsockname())
        with pytest.raises(Unanswered) as refused:
            await admin.json(url)
    why = "cannot connect (Connection refused); expected a broker's web service there"
    assert str(refused.value) == f"{url}: {why}"


async def test_a_certificate_of_a_stranger_is_named(admin: PulsarAdmin, tmp_path: Path) -> None:
    files = Files(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificate, files.key)
    server = TestServer(web.Application())
    await server.start_server(ssl=context)
    try:
        with pytest.raises(Unanswered, match="certificate verify failed"):
            await admin.json(str(server.make_url("/")))
    finally:
        await server.close()
