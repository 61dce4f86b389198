"""The live page: its files, and the stream of events that keeps it up to date."""

from loadmanager.adapters.http.live.feed import OVERVIEW_PATH, Feed, FeedLimits, OverviewReader
from loadmanager.adapters.http.live.forwarding import Forwarder
from loadmanager.adapters.http.live.page import LivePage, page_routes

__all__ = [
    "OVERVIEW_PATH",
    "Feed",
    "FeedLimits",
    "Forwarder",
    "LivePage",
    "OverviewReader",
    "page_routes",
]
