"""How the core's tests run."""

import os

import pytest
from hypothesis import settings

# Their assertions tell what differs, as those of test files do.
pytest.register_assert_rewrite("vector_checks", "planner_promises")

# HYPOTHESIS_EXAMPLES=5000 looks harder.
_EXAMPLES = int(os.environ.get("HYPOTHESIS_EXAMPLES", "25"))
settings.register_profile("core", max_examples=_EXAMPLES)
settings.load_profile("core")
