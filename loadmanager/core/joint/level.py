"""How high the load would stand if it were water."""

import numpy as np

from loadmanager.core.scores import FloatArray


def water_level(background: FloatArray, capacity: FloatArray, total: float) -> float:
    """Return the level of ``total`` poured onto brokers that stand on their backgrounds.

    ``background`` is a fraction of ``capacity``, ``total`` is in its unit; there is at least
    one broker. What stands above the level gets nothing.
    """
    order = np.argsort(background, kind="stable")
    floor, width = background[order], capacity[order]
    levels = (total + np.cumsum(floor * width)) / np.cumsum(width)
    # With the i lowest brokers; right where it does not reach the next one.
    reached = levels <= np.append(floor[1:], np.inf)
    return float(levels[int(np.argmax(reached))])
