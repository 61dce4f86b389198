from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.hashing import FULL_RANGE_END, HASH_FUNCTIONS, crc32, murmur3, position
from loadmanager.core.ids import parse_topic


def test_crc32_is_that_of_pulsar() -> None:
    assert crc32("123456789") == 0xCBF43926


def test_murmur3_is_the_x86_one_with_seed_zero() -> None:
    assert murmur3("") == 0
    assert murmur3("hello") == 0x248BFA47


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_every_hash_lies_on_the_circle(text: str) -> None:
    assert all(0 <= hash_of(text) <= FULL_RANGE_END for hash_of in HASH_FUNCTIONS.values())


def test_the_domain_is_part_of_what_is_hashed() -> None:
    one, other = parse_topic("persistent://t/n/x"), parse_topic("non-persistent://t/n/x")
    assert position(one, "crc32") != position(other, "crc32")
    assert position(one, "crc32") == crc32("persistent://t/n/x")
