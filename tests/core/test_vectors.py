"""Every recorded decision of Pulsar's own classes, decided again.

The files are those in ``tests/vectors`` or in the folder that the environment
variable LOADMANAGER_VECTORS names. ``tests/vectors/count.py`` tells how many they are.
"""

import gzip
import json
import os
import runpy
from pathlib import Path

import pytest
from vector_checks import CHECKS, SUFFIX, Differs, compare

from loadmanager.core.plan import Cause

HERE = Path(__file__).parent.parent / "vectors"
FOLDER = Path(os.environ.get("LOADMANAGER_VECTORS", HERE))
FILES = sorted(path.name for path in FOLDER.glob(f"*{SUFFIX}"))
COMPARING_IN_PART = {"bundle_splitter_task"}
"""Where Pulsar's choice may depend on the order of a hash map."""
LEAVING_OUT = {"avg_shedder"}
"""Where decisions are recorded that a plan by bundle name cannot have."""
DECIDING_OTHERWISE = {"topic_to_bundle"}
"""Where Pulsar fails to answer, and here there is an answer."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", FILES)
def test_every_recorded_decision_is_decided_the_same(name: str) -> None:
    try:
        count = compare(FOLDER / name)
    except Differs as difference:
        pytest.fail(str(difference))
    algorithm = name.removesuffix(SUFFIX)
    assert count.scenarios > 0
    assert count.answers + count.in_part >= count.scenarios
    assert (count.in_part > 0) == (algorithm in COMPARING_IN_PART)
    assert (count.left_out > 0) == (algorithm in LEAVING_OUT)
    assert (count.different > 0) == (algorithm in DECIDING_OTHERWISE)


def test_every_algorithm_has_recorded_decisions() -> None:
    assert {name.removesuffix(SUFFIX) for name in FILES} == CHECKS.keys()


@pytest.mark.parametrize(("right", "status", "equal"), [(True, 0, "yes"), (False, 1, "**no**")])
def test_the_count_compares_and_says_what_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, right: bool, status: int, equal: str
) -> None:
    bounds = ["0x00000000", "0x80000000" if right else "0x80000001", "0xffffffff"]
    one = {"num_bundles": 2, "expected": {"numBundles": 2, "boundaries": bounds}}
    line = json.dumps({"id": "one", "tags": [], "rounds": [one]})
    (tmp_path / f"bundle_boundaries{SUFFIX}").write_bytes(gzip.compress(line.encode()))
    main = runpy.run_path(str(HERE / "count.py"))["main"]
    assert main([str(tmp_path)]) == status
    assert f"| {equal}" in capsys.readouterr().out
    assert main([str(tmp_path / "none")]) == 2


def test_a_cause_has_the_name_that_pulsar_gives_it() -> None:
    assert {Cause.OVERLOADED, Cause.UNDERLOADED} == {"overloaded", "underloaded"}
