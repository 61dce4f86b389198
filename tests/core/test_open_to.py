from loadmanager.core.ids import BrokerId
from loadmanager.core.policies import NO_POLICIES, IsolationPolicy, Policies, open_to

BROKERS = (BrokerId("a:8080"), BrokerId("b:8080"), BrokerId("c:8080"))
POLICY = IsolationPolicy(namespaces=("t/.*",), primary=("a",), secondary=("b",))


def test_without_policies_every_broker_is_open() -> None:
    assert list(open_to(NO_POLICIES, None, BROKERS)) == [True, True, True]


def test_a_policy_opens_its_primary_brokers_alone() -> None:
    assert list(open_to(Policies(isolation={"p": POLICY}), POLICY, BROKERS)) == [True, False, False]


def test_without_a_policy_brokers_that_are_primary_in_none_are_open() -> None:
    assert list(open_to(Policies(isolation={"p": POLICY}), None, BROKERS)) == [False, True, True]
