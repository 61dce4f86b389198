"""Maps the name of a topic to its position on the 32-bit hash circle.

All members of a cluster must use the same function, so it is recorded in ZooKeeper and checked
at startup. crc32 is the default, as in Pulsar; murmur3 spreads short, similar names better.
"""

import zlib
from collections.abc import Callable, Mapping
from typing import Final, Literal

import mmh3

from loadmanager.core.ids import BundleId, TopicName, range_of

HashName = Literal["murmur3", "crc32"]
HashFunction = Callable[[str], int]

DEFAULT_HASH: Final[HashName] = "crc32"
"""The default hash function of a cluster."""

FULL_RANGE_END: Final = 0xFFFFFFFF


def murmur3(text: str) -> int:
    """Return the unsigned 32-bit murmur3 hash (x86 variant, seed 0) of the UTF-8 bytes."""
    return mmh3.hash(text, 0, signed=False)


def crc32(text: str) -> int:
    """Return the unsigned CRC-32 (zlib polynomial) of the UTF-8 bytes, as Pulsar does."""
    return zlib.crc32(text.encode())


HASH_FUNCTIONS: Final[Mapping[HashName, HashFunction]] = {"murmur3": murmur3, "crc32": crc32}


def position(topic: TopicName, hash_name: HashName) -> int:
    return HASH_FUNCTIONS[hash_name](str(topic))


def lies_in(at: int, bundle: BundleId) -> bool:
    return in_range(at, *range_of(bundle))


def in_range(at: int, lower: int, upper: int) -> bool:
    """Return whether a position lies in the range of a bundle.

    A range holds its lower bound and not its upper one, except the last range of a namespace,
    which holds 0xffffffff too.
    """
    return lower <= at < upper or at == upper == FULL_RANGE_END
