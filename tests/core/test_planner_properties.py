"""What holds for every plan, whatever the cluster; `planner_promises` says what that is."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planner_promises import PROMISES, Cluster, Promise, clusters, shedders

from loadmanager.core.shedding import Shedder

MANY = int(os.environ.get("HYPOTHESIS_EXAMPLES", "2000"))
"""Examples of a thorough look at one promise; otherwise those of all core tests."""
each_promise = pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)


@each_promise
@given(cluster=clusters, shedder=shedders, data=st.data())
def test_the_planner(
    promise: Promise, cluster: Cluster, shedder: Shedder, data: st.DataObject
) -> None:
    promise(cluster, shedder, data)


@pytest.mark.thorough
@pytest.mark.timeout(600)
@each_promise
@settings(max_examples=MANY)
@given(cluster=clusters, shedder=shedders, data=st.data())
def test_looked_at_thoroughly_the_planner(
    promise: Promise, cluster: Cluster, shedder: Shedder, data: st.DataObject
) -> None:
    promise(cluster, shedder, data)
