"""The quantiles that intervals are made of, against the tables."""

import pytest

from loadmanager.pipeline.confidence import NORMAL_95, student_95

TABLE = {
    1: 6.3138, 2: 2.9200, 3: 2.3534, 4: 2.1318, 5: 2.0150, 6: 1.9432, 7: 1.8946, 8: 1.8595,
    9: 1.8331, 10: 1.8125, 15: 1.7531, 20: 1.7247, 30: 1.6973, 60: 1.6706, 120: 1.6577,
}  # fmt: skip
"""The 95th percentiles of Student's t by degrees of freedom, as any book of tables has them."""


def test_quantiles_are_those_of_the_tables() -> None:
    assert pytest.approx(1.644854, abs=1e-6) == NORMAL_95
    assert {one: student_95(one) for one in TABLE} == pytest.approx(TABLE, rel=5e-4)


def test_students_quantiles_fall_to_the_normal_one() -> None:
    found = [student_95(freedom) for freedom in range(1, 1000)]
    assert found == sorted(found, reverse=True)
    assert found[-1] > NORMAL_95
    assert student_95(10**9) == pytest.approx(NORMAL_95)
    with pytest.raises(ValueError, match="degrees of freedom: 0; expected 1 or more"):
        student_95(0)
