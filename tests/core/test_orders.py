"""Orders and owned lists, to znode content and back."""

import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.errors import MalformedContent
from loadmanager.core.ids import BrokerId, BundleId, Namespace, bundle_id
from loadmanager.core.orders import (
    OrderChanges,
    Orders,
    OwnedList,
    SplitOrder,
    decode_orders,
    decode_owned,
    encode_orders,
    encode_owned,
    expected_requests,
    largest_orders_bytes,
    next_chunk,
)

B1, B2 = BundleId("t/ns/0x00000000_0x80000000"), BundleId("t/ns/0x80000000_0xffffffff")
WHERE = "/loadbalance/orders/b1:8080"


@st.composite
def bundle_ids(draw: st.DrawFn) -> BundleId:
    lower = draw(st.integers(0, 0xFFFFFFFE))
    upper = draw(st.integers(lower + 1, 0xFFFFFFFF))
    namespace = draw(st.sampled_from(["t/ns", "t/ns-2", "t/ns/".rstrip("/") + "=", "u.x/a:b"]))
    return bundle_id(Namespace(namespace), lower, upper)


positions = st.lists(st.integers(0, 0xFFFFFFFF))
brokers = st.sampled_from([BrokerId("b1:8080"), BrokerId("b-2.example.org:80")])


@given(
    epoch=st.integers(0, 2**40),
    bundles=st.frozensets(bundle_ids(), max_size=40),
    handovers=st.dictionaries(bundle_ids(), brokers, max_size=20),
    splits=st.dictionaries(
        bundle_ids(), st.builds(SplitOrder, st.text(), positions.map(tuple)), max_size=5
    ),
)
def test_orders_come_back_as_they_were_written(
    epoch: int,
    bundles: frozenset[BundleId],
    handovers: dict[BundleId, BrokerId],
    splits: dict[BundleId, SplitOrder],
) -> None:
    orders = Orders(epoch, bundles, handovers, splits)
    assert decode_orders(WHERE, encode_orders(orders)) == orders


owned = st.tuples(st.integers(0, 2**62) | st.none(), st.booleans())


@given(bundles=st.dictionaries(bundle_ids(), owned, max_size=40))
def test_an_owned_list_has_the_commit_as_its_token_and_says_what_is_not_served_yet(
    bundles: dict[BundleId, tuple[int | None, bool]],
) -> None:
    tokens = {bundle: token for bundle, (token, _) in bundles.items()}
    loading = frozenset(bundle for bundle, (_, loads) in bundles.items() if loads)
    found = decode_owned(WHERE, encode_owned(tokens, loading), mzxid=77)
    assert found.tokens == {one: 77 if token is None else token for one, token in tokens.items()}
    assert found.loading == loading


def test_a_list_from_before_it_told_what_is_not_served_yet_says_that_all_is() -> None:
    listed = decode_owned(WHERE, b'{"bundles":{"t/ns":{"0x00000000_0x80000000":5}}}', mzxid=77)
    assert listed == OwnedList({B1: 5}, frozenset())


def test_small_orders_are_plain_json_for_people_to_read() -> None:
    content = json.loads(encode_orders(Orders(3, frozenset({B1, B2}), {B1: BrokerId("b2:80")})))
    assert content == {
        "epoch": 3,
        "bundles": {"t/ns": ["0x00000000_0x80000000", "0x80000000_0xffffffff"]},
        "handovers": {B1: "b2:80"},
        "splits": {},
    }


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "cut off; expected a whole one"),
        (b"\xff\x00", "JSON, plain, zlib or gzip"),
        (zlib.compress(b"{}" * 9000)[:-5], "cut off; expected a whole one"),
        (zlib.compress(b"\0" * (9 * 1024 * 1024)), "expected at most 8388608"),
        (b"{", "a JSON object"),
        (b"{}", "epoch is missing; expected a whole number from 0 to 2^63 - 1"),
        (b'{"epoch":true}', "epoch = True; expected a whole number"),
        (b'{"epoch":-1}', "epoch = -1; expected a whole number"),
        (b'{"epoch":1,"bundles":[]}', "bundles = []; expected an object"),
        (b'{"epoch":1,"bundles":{"t/ns":{}}}', "bundles.t/ns = {}; expected a list of texts"),
        (b'{"epoch":1,"bundles":{"t/ns":["x"]}}', "bundles.'t/ns/x'"),
        (b'{"epoch":1,"handovers":{"nope":"b1:1"}}', "handovers.'nope'"),
        (b'{"epoch":1,"handovers":7}', "handovers = 7; expected an object"),
        (
            b'{"epoch":1,"splits":{"t/ns/0x00000000_0x80000000":{"algorithm":"x","positions":["1"]}}}',
            "positions.0 = '1'; expected a whole number from 0 to 2^32",
        ),
        (b'{"epoch":1,"splits":{"t/ns/0x00000000_0x80000000":[]}}', "= []; expected an object"),
        (b'{"epoch":1,"handovers":{"t/ns/0x00000000_0x80000000":7}}', "= 7; expected text"),
    ],
)
def test_orders_that_are_none_say_where_and_what_was_expected(content: bytes, says: str) -> None:
    with pytest.raises(MalformedContent) as caught:
        decode_orders(WHERE, content)
    assert str(caught.value).startswith(WHERE)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"bundles":{"t/ns":["0x00000000_0x80000000"]}}', "expected an object"),
        (b'{"bundles":{"t/ns":{"0x00000000_0x80000000":"7"}}}', "2.63 - 1, or null"),
        (b'{"bundles":{"t/ns":{"0x00000000_0x80000000":true}}}', "2.63 - 1, or null"),
        (b'{"bundles":{"t/ns":{"0x8_0x9":1}}}', "bundles.'t/ns/0x8_0x9'"),
    ],
)
def test_an_owned_list_that_is_none_says_what_was_expected(content: bytes, says: str) -> None:
    with pytest.raises(MalformedContent, match=says):
        decode_owned(WHERE, content, mzxid=1)


@pytest.mark.parametrize(
    ("sizes_bytes", "together"),
    [([], 0), ([10], 1), ([99], 1), ([4, 6, 1], 2), ([4, 7], 1), ([0] * 150, 100)],
)
def test_orders_share_a_commit_as_far_as_they_fit(sizes_bytes: list[int], together: int) -> None:
    contents = {BrokerId(f"b{at}:80"): bytes(size) for at, size in enumerate(sizes_bytes)}
    assert next_chunk(contents, 10) == [*contents][:together]


def test_orders_leave_room_for_what_a_commit_has_beside_them() -> None:
    assert largest_orders_bytes(1000) == 900


def test_orders_cause_requests_of_a_few_others() -> None:
    # Three requests of each broker, two reads of its list by the leader, and by all others.
    cases = {(1, 1): 5, (2, 6): 10 + 5 * 4, (16, 16): 80 + 15 * 32, (4, 100): 20, (100, 100): 500}
    for (changed, brokers), expected in cases.items():
        assert expected_requests(changed, brokers, read_at_once=16) == expected


A, B, C, D = (BundleId(f"t/n/0x{n}0000000_0x{n + 1}0000000") for n in range(4))
ONE, OTHER = BrokerId("b1:8080"), BrokerId("b2:8080")
CUT = SplitOrder("range_equally_divide")


def test_changes_say_whether_they_change_anything() -> None:
    assert not OrderChanges()
    assert all((OrderChanges({A: ONE}), OrderChanges(splits={A: None}), OrderChanges(gone=[A])))


def test_what_is_gone_has_neither_a_broker_nor_a_split() -> None:
    changes = OrderChanges({B: OTHER}, {A: None, C: CUT}, gone=[D])
    assert changes.apply({A: ONE, B: ONE, C: ONE, D: ONE}, {A: CUT, D: CUT}) == (
        {A: ONE, B: OTHER, C: ONE},
        {C: CUT},
    )


def test_a_split_of_a_bundle_without_a_broker_is_not_ordered() -> None:
    assert OrderChanges(splits={A: CUT}).apply({B: ONE}, {}) == ({B: ONE}, {})


def test_of_a_full_broker_half_is_left_and_of_the_others_all() -> None:
    changes = OrderChanges(
        {A: ONE, B: ONE, C: ONE, D: OTHER}, {A: CUT, D: CUT, C: CUT}, gone=[BundleId("t/n/gone")]
    )
    less = changes.less({ONE}, {C: OTHER, BundleId("t/n/gone"): ONE})
    assert less == OrderChanges({A: ONE, D: OTHER}, {D: CUT}, frozenset())
    assert less.less({ONE}, {}).assigned == {D: OTHER}


def test_nothing_is_split_or_taken_back_in_orders_that_are_full() -> None:
    changes = OrderChanges(splits={A: CUT, B: CUT, C: CUT}, gone=[A, B])
    assert changes.less({ONE}, {A: ONE, B: OTHER}) == OrderChanges(
        {}, {B: CUT, C: CUT}, frozenset({B})
    )
