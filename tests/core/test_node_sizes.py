"""What one broker's nodes need when it has very many bundles, and what is refused as too large."""

import json
import zlib
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from loadmanager.core.errors import MalformedContent
from loadmanager.core.ids import BrokerId, BundleId, Namespace, bundle_id
from loadmanager.core.load import (
    BrokerUrls,
    BundleStats,
    LoadReport,
    Registration,
    ResourceUsage,
    registration_of,
)
from loadmanager.core.orders import (
    Orders,
    decode_orders,
    decode_owned,
    encode_orders,
    encode_owned,
)
from loadmanager.core.wire.registrations import encode_registration
from loadmanager.core.wire.reports import decode_loads, encode_loads
from loadmanager.core.wire.standby import decode_standby

JUTE_MAX_BUFFER = 0xFFFFF
"""The megabyte that ZooKeeper takes in one request."""

REGISTRATION = Registration(
    broker=BrokerId("b1:8080"),
    urls=BrokerUrls(http_url="http://b1:8080"),
    sidecar_url="http://b1:7750",
    started_at_ms=1,
)


def many(count: int) -> list[BundleId]:
    """Return the names of bundles whose ranges compress as badly as any."""
    drawn = np.random.default_rng(1).choice(2**31, count + 1, replace=False)
    bounds = np.sort(2 * drawn).tolist()
    namespace = Namespace("tenant/namespace")
    return [bundle_id(namespace, low, high) for low, high in pairwise(bounds)]


def loaded(bundles: list[BundleId]) -> LoadReport:
    """Return a report in which every bundle has figures of its own."""
    rng = np.random.default_rng(2)

    def stats() -> BundleStats:
        rates = rng.lognormal(5, 3, 4).tolist()
        counts = (int(rng.integers(most)) for most in (300, 300, 300, 10**8))
        return BundleStats(*rates, *counts).rounded()

    return LoadReport(
        broker=REGISTRATION.broker,
        urls=REGISTRATION.urls,
        sidecar_url=REGISTRATION.sidecar_url,
        started_at_ms=REGISTRATION.started_at_ms,
        reported_at_ms=2,
        cpu=ResourceUsage(120.0, 800.0),
        bundles={bundle: stats() for bundle in bundles},
        gains=frozenset(bundles),
    )


def test_the_nodes_of_a_broker_with_20_000_bundles_are_far_below_the_limit() -> None:
    bundles = many(20_000)
    report = loaded(bundles)
    loads = encode_loads(report)
    assert len(loads) < 0.8 * JUTE_MAX_BUFFER
    found = decode_loads("/l", loads, registration_of(report))
    assert found == report
    assert len(encode_registration(report)) < 1000
    tokens = {bundle: 10**10 + number for number, bundle in enumerate(bundles)}
    owned = encode_owned(tokens, bundles)
    assert len(owned) < 0.4 * JUTE_MAX_BUFFER
    assert decode_owned("/o", owned, 1).tokens == tokens
    heirs = {b: BrokerId(f"broker-{n % 30}.example.com:8080") for n, b in enumerate(bundles)}
    orders = Orders(7, frozenset(bundles), heirs)
    assert len(encode_orders(orders)) < 0.5 * JUTE_MAX_BUFFER
    assert decode_orders("/o", encode_orders(orders)) == orders


def _document(**changes: Any) -> bytes:
    found = {**json.loads(zlib_or_plain(encode_loads(loaded(many(2))))), **changes}
    return json.dumps(found).encode()


def zlib_or_plain(data: bytes) -> bytes:
    return data if data.startswith(b"{") else zlib.decompress(data)


def test_unknown_fields_of_loads_are_ignored_and_a_resource_may_have_mean_and_variance() -> None:
    usage = {"usage": 1.0, "limit": 2.0, "mean": 0.4, "variance": 0.01, "new": [1]}
    data = _document(cpu=usage, somethingNew={"a": 1}, msgRateInVariance=[1.0, 2.0])
    assert decode_loads("/l", data, REGISTRATION).cpu == ResourceUsage(1.0, 2.0, 0.4, 0.01)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, "/l: version = 2; expected 1, the version this program reads"),
        ({"version": None}, "/l: version = None; expected a whole number"),
        ({"topics": [1]}, "/l: topics = [1]; expected 2 numbers"),
        ({"msgRateIn": [1.0, "x"]}, "/l: msgRateIn.1 = 'x'; expected a finite number"),
        ({"cacheSize": [1, 2.5]}, "/l: cacheSize.1 = 2.5; expected a whole number"),
        ({"bundles": {"t/n": ["0x2_0x1"]}}, "/l: bundles.'t/n/0x2_0x1'; expected tenant/"),
        ({"lastBundleLosses": {"t/n": 7}}, "/l: lastBundleLosses.t/n = 7; expected a list of"),
    ],
)
def test_loads_that_are_none_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(MalformedContent) as refused:
        decode_loads("/l", _document(**changes), REGISTRATION)
    assert message in str(refused.value)


@pytest.fixture(scope="module")
def bomb() -> bytes:
    """Return a small text that would be half a gigabyte unpacked."""
    packer = zlib.compressobj(9)
    chunk = b" " * 1_000_000
    packed = packer.compress(b'{"version":1,"epoch":1,') + b"".join(
        packer.compress(chunk) for _ in range(500)
    )
    return packed + packer.compress(b'"x":1}') + packer.flush()


@pytest.mark.parametrize(
    "decode",
    [
        lambda data: decode_loads("/x", data, REGISTRATION),
        lambda data: decode_orders("/x", data),
        lambda data: decode_owned("/x", data, 1),
        lambda data: decode_standby("/x", data),
    ],
)
def test_what_would_be_huge_unpacked_is_refused_before_it_is_unpacked(
    decode: Callable[[bytes], object], bomb: bytes
) -> None:
    assert len(bomb) < JUTE_MAX_BUFFER
    with pytest.raises(MalformedContent, match="at most"):
        decode(bomb)
    with pytest.raises(MalformedContent, match="cut off"):
        decode(zlib.compress(b'{"a": 1}')[:-3])
