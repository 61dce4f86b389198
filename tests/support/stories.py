"""Tests told as stories: what happens to a cluster in virtual time, and what is true then."""

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import TopicName
from tests.testbed.faults.cluster import Cluster, make_config, play, topic_in

Story = Callable[..., Awaitable[None]]


def story(
    sidecars: int = 3, *, seed: int = 1, checked: bool = True, **sections: Mapping[str, Any]
) -> Callable[[Story], Callable[..., None]]:
    """Make a test of a coroutine that is given a running `Cluster` first.

    ``sections`` change the configuration. ``checked`` False is for stories that break
    by hand what the check at the end is about.
    """

    def decorate(tell: Story) -> Callable[..., None]:
        @functools.wraps(tell)
        def test(**arguments: Any) -> None:
            play(
                lambda cluster: tell(cluster, **arguments),
                sidecars,
                seed=seed,
                checked=checked,
                config=make_config(**sections),
            )

        parameters = list(inspect.signature(tell).parameters.values())
        test.__signature__ = inspect.Signature(parameters[1:])  # type: ignore[attr-defined] # pytest reads it
        return test

    return decorate


async def place_all(cluster: Cluster, boundaries: Boundaries) -> list[TopicName]:
    """Look every bundle up once, wait until all are served; return a topic of each."""
    topics = [topic_in(boundaries, bundle) for bundle in boundaries.bundles]
    asking = cluster.living[0]
    await asyncio.gather(*(asking.look_up(topic) for topic in topics))
    await cluster.settled(boundaries.bundles)
    return topics
