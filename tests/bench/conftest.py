import logging
from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def only_errors_are_logged() -> Iterator[None]:
    """Keep the product's own log lines out of the figures."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    yield
    structlog.reset_defaults()
