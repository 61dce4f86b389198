"""The metrics that the program has, and those that an expression of Prometheus names."""

import re
from itertools import product

from prometheus_client import CollectorRegistry

from loadmanager.telemetry.metrics import AttachMetrics, HistoryMetrics, Metrics

BY_PATTERN = re.compile(r'__name__=~"(?P<before>\w*)\((?P<middle>[\w|]+)\)(?P<after>\w*)"')
BY_NAME = re.compile(r"\b(?:loadmanager|pulsar)_\w+")
RECORDED = re.compile(r"\b\w+:\w+:\w+")
ENDINGS = ("", "_total", "_bucket", "_sum", "_count")


def existing_series() -> set[str]:
    registry = CollectorRegistry()
    AttachMetrics(registry)
    Metrics(registry)
    HistoryMetrics(registry)
    return {f"{m.name}{end}" for (m, end) in product(registry.collect(), ENDINGS)}


def metrics_in(expression: str) -> set[str]:
    spelled_out = {
        f"{found['before']}{one}{found['after']}"
        for found in BY_PATTERN.finditer(expression)
        for one in found["middle"].split("|")
    }
    recorded = set(RECORDED.findall(expression))
    rest = RECORDED.sub("", BY_PATTERN.sub("", expression))
    return spelled_out | recorded | set(BY_NAME.findall(rest))
