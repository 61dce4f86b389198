import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.scores import FloatArray
from loadmanager.pipeline.cost_model.regression import NonNegative


def problem(seed: int, terms: int) -> tuple[FloatArray, FloatArray]:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((terms + 3, terms))
    return rows.T @ rows + 1e-3 * np.eye(terms), rng.standard_normal((4, terms))


@given(seed=st.integers(0, 2**32 - 1), terms=st.integers(1, 6))
def test_no_step_that_stays_non_negative_leads_lower(seed: int, terms: int) -> None:
    gram, targets = problem(seed, terms)
    lowest = NonNegative(gram)
    for target in targets:
        point, low = lowest.least(target)
        slope = gram @ point - target
        assert (point >= 0.0).all()
        assert (slope >= -1e-7).all()  # where it is 0, only upwards
        assert abs(slope @ point) < 1e-7  # elsewhere, level
        assert abs(point @ gram @ point / 2 - target @ point - low) < 1e-7


def test_without_need_of_the_bound_it_is_the_solution_of_the_equations() -> None:
    gram = np.array([[2.0, 0.5], [0.5, 1.0]])
    found, _ = NonNegative(gram).least(gram @ [3.0, 4.0])
    np.testing.assert_allclose(found, [3.0, 4.0])
