"""How a strategy weighs a bundle or a broker, as JSON."""

from loadmanager.adapters.http.operations import Document
from loadmanager.core.joint.weighing import CostSource


class PredictedUseDocument(Document):
    """One resource of a broker, as fractions of its limit."""

    resource: str
    """Its name; `rates` where usage is below its noise."""
    reported: float | None
    """By the last load report; null for rates."""
    predicted: float
    """By costs, for the bundles that it has or that are on their way to it."""
    background: float
    """What is used by anything but bundles."""
    speed: float
    """What work costs here over what it costs on a broker of speed 1."""
    noise: float | None
    """How far reports are from predictions, as a standard deviation; null for rates."""


class BundleCostDocument(Document):
    """What a bundle uses of one resource on a broker of speed 1."""

    resource: str
    """Its name; `rates` where usage is below its noise."""
    usage: float
    """In the unit of load reports; for rates a share of the cluster's traffic."""
    sd: float
    """How uncertain the unit costs leave that, as a standard deviation."""
    source: CostSource
    """Load reports, if they removed at least half of the variance that the cost began with."""
    learned_fraction: float
    """How much of that variance reports removed."""


class WeighingDocument(Document):
    """How the strategy weighs a bundle or a broker."""

    level: float
    """Where all brokers would stand if load were water, of the scarcest resource."""
    lasting: float
    """How much of a change of traffic is taken to last for ten minutes."""
    uses: list[PredictedUseDocument]
    """Of the broker, or of the bundle's owner."""
    costs: list[BundleCostDocument]
    """Of the bundle; empty for a broker and where it was never measured."""


class PaybackDocument(Document):
    """What moving a bundle to a broker would bring and cost."""

    resource: str
    """The one of which the broker would have least left."""
    use: float
    """The predicted use of it now."""
    use_with: float
    """The predicted use with the bundle."""
    saving: float
    """By how much the potential would fall."""
    price: float
    """What it has to fall by."""
