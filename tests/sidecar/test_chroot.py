import pytest
from waiting import eventually

from loadmanager.adapters.clock import SystemClock
from loadmanager.common.chroot import ChrootRefused
from loadmanager.common.cluster_conditions import OF_ATTACH, ClusterDisagrees, Conditions, agree
from loadmanager.config.model import chroot_of
from loadmanager.core import znodes
from loadmanager.core.errors import MalformedContent
from loadmanager.core.hashing import HashName
from loadmanager.core.ids import BrokerId
from loadmanager.core.wire.records import LeaderRecord, encode_leader
from loadmanager.ports.coordination import Connection
from loadmanager.wiring.sidecar import conditions_of
from tests.testbed.faults.cluster import make_config
from tests.testbed.memory import MemoryCoordination, MemoryService

DEFAULT = "/loadmanager/standalone"
RECORD = b'{"hash":"murmur3"}'


async def connected(service: MemoryService, chroot: str = "") -> MemoryCoordination:
    session = MemoryCoordination(service, chroot=chroot)
    await session.start()
    await eventually(lambda: session.session.connection is Connection.CONNECTED)
    return session


async def start(nodes: dict[str, bytes], chroot: str, conditions: Conditions) -> HashName:
    """Have a sidecar agree with what somebody else has left in ZooKeeper."""
    service = MemoryService()
    hand = await connected(service)
    for path, content in nodes.items():
        await hand.create(path, content)
    return await agree(await connected(service, chroot), SystemClock(), conditions)


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        ({"/managed-ledgers/public": b""}, "/managed-ledgers exists in it"),
        (
            {znodes.LEADER: b'{"serviceUrl":"http://b:8080"}'},
            "/loadbalance/leader in it was written by a Pulsar broker",
        ),
        (
            {znodes.LEADER: b'{"brokerId":"b:8080","serviceUrl":"http://b:8080"}'},
            "/loadbalance/leader in it was written by a Pulsar broker",
        ),
    ],
)
@pytest.mark.parametrize("chroot", ["/", "/pulsar"])
async def test_a_chroot_of_pulsar_is_refused(
    nodes: dict[str, bytes], why: str, chroot: str
) -> None:
    below = "" if chroot == "/" else chroot
    placed = {below + path: content for path, content in nodes.items()}
    with pytest.raises(ChrootRefused) as refused:
        await start(placed, chroot, Conditions())
    assert why in str(refused.value)
    assert "[zookeeper] chroot" in str(refused.value)


OF_PULSAR = b'{"serviceUrl":"http://b:8080"}'
OURS = LeaderRecord(broker=BrokerId("b:8080"), service_url="http://b:8080", epoch=3)
AT_DEFAULT = (DEFAULT, Conditions(default_chroot=DEFAULT))


@pytest.mark.parametrize(
    ("nodes", "chroot", "conditions", "found"),
    [
        ({"/managed-ledgers": b"", znodes.LEADER: OF_PULSAR}, *AT_DEFAULT, "crc32"),
        ({znodes.LEADER: encode_leader(OURS)}, "/", Conditions(), "crc32"),
        ({znodes.LEADER: b"\xff"}, "/", Conditions(), "crc32"),
        ({znodes.LEADER: b"{}"}, "/", Conditions(), "crc32"),
        # The two ways out of a cluster of version 0.1, and what is left of it then.
        ({znodes.CLUSTER: b'{"format":2,"hash":"murmur3"}'}, "/", Conditions(), "murmur3"),
        ({znodes.CLUSTER: RECORD}, DEFAULT, Conditions(), "crc32"),
        (
            {znodes.CLUSTER: RECORD, DEFAULT + znodes.CLUSTER: b'{"format":2,"hash":"crc32"}'},
            *AT_DEFAULT,
            "crc32",
        ),
        ({znodes.CLUSTER: b"\xff"}, *AT_DEFAULT, "crc32"),
        ({znodes.CLUSTER: b""}, *AT_DEFAULT, "crc32"),
        ({znodes.CLUSTER: b'{"name":"x"}'}, *AT_DEFAULT, "crc32"),
    ],
)
async def test_nodes_that_are_no_hindrance(
    nodes: dict[str, bytes], chroot: str, conditions: Conditions, found: HashName
) -> None:
    assert await start(nodes, chroot, conditions) == found


async def test_a_cluster_of_version_0_1_at_the_root_is_recognised_and_both_ways_out_are_named() -> (
    None
):
    with pytest.raises(ChrootRefused) as refused:
        await start({znodes.CLUSTER: RECORD}, DEFAULT, Conditions(default_chroot=DEFAULT))
    assert "version 0.1" in str(refused.value)
    assert 'chroot = "/"' in str(refused.value)
    assert f'chroot = "{DEFAULT}"' in str(refused.value)


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (RECORD, "are of version 0.1, which recorded no format; expected format 2"),
        (RECORD, "docs/upgrade.md"),
        (b'{"format":1,"hash":"crc32"}', "format 1; this version reads and writes format 2"),
        (b'{"format":3,"hash":"crc32"}', "format 3; this version reads and writes format 2"),
    ],
)
async def test_nodes_of_another_format_are_refused_by_name(record: bytes, says: str) -> None:
    for chroot in ("/", DEFAULT):
        below = "" if chroot == "/" else chroot
        with pytest.raises(ClusterDisagrees) as refused:
            await start({below + znodes.CLUSTER: record}, chroot, Conditions())
        assert znodes.CLUSTER in str(refused.value)
        assert says in str(refused.value)


async def test_a_format_that_is_none_is_malformed() -> None:
    with pytest.raises(MalformedContent, match="format = 'x'; expected a whole number"):
        await start({znodes.CLUSTER: b'{"format":"x","hash":"crc32"}'}, "/", Conditions())


def test_the_chroot_is_named_after_the_cluster_unless_it_is_set() -> None:
    unset = make_config(cluster={"name": "east"})
    assert chroot_of(unset) == "/loadmanager/east"
    assert conditions_of(unset).default_chroot == "/loadmanager/east"
    for chosen in ("/", "/mine"):
        config = make_config(zookeeper={"chroot": chosen})
        assert chroot_of(config) == chosen
        assert conditions_of(config).default_chroot == ""


@pytest.mark.parametrize("first", ["contract", "pulsar", OF_ATTACH])
@pytest.mark.parametrize("second", ["contract", "pulsar", OF_ATTACH])
async def test_only_one_kind_of_sidecar_may_use_a_chroot(first: str, second: str) -> None:
    """Both would be elected by one node, and count one epoch."""
    service = MemoryService()
    await agree(await connected(service), SystemClock(), Conditions("crc32", kind=first))
    joining = agree(await connected(service), SystemClock(), Conditions("crc32", kind=second))
    if first == second:
        assert await joining == "crc32"
    else:
        with pytest.raises(ClusterDisagrees, match=f"kind = {first!r}, and this is of kind"):
            await joining
