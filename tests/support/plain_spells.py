"""Hand-made records of brokers and clients, on a clock of whole seconds."""

from loadmanager.core.ids import BundleId, Namespace, TopicName, bundle_id
from loadmanager.reference_broker.changes import EndReason, ServingInterval
from tests.testbed.checker.publishes import Acknowledgement, Publish

NAMESPACE = Namespace("t/n")
BOUNDS = (0, 0x40000000, 0x80000000, 0xC0000000, 0xFFFFFFFF)


def quarters(first: int, last: int) -> BundleId:
    """Return the bundle from one bound of the circle's quarters to another, 0 to 4."""
    return bundle_id(NAMESPACE, BOUNDS[first], BOUNDS[last])


WHOLE = quarters(0, 4)
# murmur3 puts it into the third quarter, at 0x9e1df3bc.
TOPIC = str(TopicName("persistent", NAMESPACE, "sales"))


def spell(
    start_s: float,
    end_s: float,
    *,
    by: str = "b1",
    token: int = 1,
    bundle: BundleId = WHOLE,
    let_go: bool = False,
) -> ServingInterval:
    """Return that broker ``by`` served; its incarnation follows from its name."""
    return ServingInterval(
        broker=f"{by}:8080",
        incarnation=f"{by}-life",
        bundle=bundle,
        fencing_token=token,
        start_s=start_s,
        end_s=end_s,
        agent_epoch=1,
        why=EndReason.UNLOADED if let_go else EndReason.LEASE_LOST,
    )


def publish(
    at_s: float, *, by: str = "b1", token: int = 1, bundle: BundleId = WHOLE, topic: str = TOPIC
) -> Publish:
    return Publish(
        topic=topic,
        broker=f"{by}:8080",
        sent_s=at_s - 0.5,
        answered_s=at_s + 0.5,
        status=200,
        acknowledgement=Acknowledgement(
            incarnation=f"{by}-life", bundle=bundle, fencing_token=token, clock_s=at_s
        ),
    )
