import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.history.files import FileName, hour_of, hour_of_partition, partition
from loadmanager.core.history.records import Origin
from loadmanager.core.history.schema import Stream
from loadmanager.core.ids import BrokerId

NAME = "rounds-b1_8080-5f2a90c1d07be344-000000000731.jsonl.gz"


def test_a_moment_lies_in_the_folder_of_its_hour() -> None:
    assert partition(hour_of(1_795_262_399_999)) == "date=2026-11-21/hour=11"
    assert partition(hour_of(1_795_262_400_000)) == "date=2026-11-21/hour=12"


@given(hour=st.integers(0, 24 * 365 * 200))
def test_a_folder_says_its_hour(hour: int) -> None:
    assert hour_of_partition(partition(hour)) == hour


@pytest.mark.parametrize(
    "folder",
    ["date=2026-02-30/hour=01", "date=2026-01-01/hour=24", "date=2026-01-01", "x/hour=01", ""],
)
def test_other_folders_are_no_partition(folder: str) -> None:
    assert hour_of_partition(folder) is None


@pytest.mark.parametrize("writer", ["b1:8080", "[::1]:8080", "b-1.example.com:8080"])
@pytest.mark.parametrize("is_open", [False, True])
def test_a_file_name_says_whose_it_is(writer: str, is_open: bool) -> None:
    whole = FileName.of(Stream.REPORTS, Origin("c", BrokerId(writer), "ab12"), 7)
    name = FileName(whole.stream, whole.writer, whole.instance, whole.first_seq, is_open=is_open)
    assert FileName.parse(str(name)) == name
    assert str(name).startswith("_") is is_open
    assert not set(str(name)) & set("/:[] ")


def test_the_document_s_example_is_a_name() -> None:
    name = FileName(Stream.ROUNDS, "b1_8080", "5f2a90c1d07be344", 731)
    assert (str(name), FileName.parse(f"_{NAME}")) == (
        NAME,
        FileName(Stream.ROUNDS, "b1_8080", "5f2a90c1d07be344", 731, is_open=True),
    )


@pytest.mark.parametrize(
    "name", ["", "part-0000.jsonl.gz", NAME.replace("rounds", "gossip"), NAME.removesuffix(".gz")]
)
def test_foreign_files_are_told_by_their_names(name: str) -> None:
    assert FileName.parse(name) is None
