"""The level of the load if it were divisible like water."""

import numpy as np

from loadmanager.core.scores import FloatArray


def water_level(background: FloatArray, capacity: FloatArray, total: float) -> float:
    """Return the level after ``total`` is poured onto the brokers' backgrounds.

    ``background`` is a fraction of ``capacity``; ``total`` is in the unit of ``capacity``. There
    is at least one broker. A broker whose background is above the level receives nothing.
    """
    order = np.argsort(background, kind="stable")
    floor, width = background[order], capacity[order]
    levels = (total + np.cumsum(floor * width)) / np.cumsum(width)
    # The level with the i lowest brokers; valid if it does not reach the next background.
    reached = levels <= np.append(floor[1:], np.inf)
    return float(levels[int(np.argmax(reached))])
