"""Hand-made records of brokers and clients, on a clock of whole seconds."""

from dataclasses import dataclass

from loadmanager.core.ids import BundleId, Namespace, TopicName, bundle_id
from loadmanager.testbed.checker.publishing import Acknowledgement, Publish

NAMESPACE = Namespace("t/n")
BOUNDS = (0, 0x40000000, 0x80000000, 0xC0000000, 0xFFFFFFFF)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainSpell:
    """A spell of serving and nothing else."""

    broker: str
    incarnation: str
    bundle: BundleId
    fencing_token: int
    start_s: float
    end_s: float
    ended_by_command: bool = False


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
) -> PlainSpell:
    """Return that broker ``by`` served; its incarnation follows from its name."""
    return PlainSpell(
        broker=f"{by}:8080",
        incarnation=f"{by}-life",
        bundle=bundle,
        fencing_token=token,
        start_s=start_s,
        end_s=end_s,
        ended_by_command=let_go,
    )


def publish(
    at_s: float, *, by: str = "b1", token: int = 1, bundle: BundleId = WHOLE, topic: str = TOPIC
) -> Publish:
    """Return a message that broker ``by`` took at ``at_s``, half a second on each way."""
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
