"""The HTTP server for lookups, admin REST and metrics, and the client of the leader's sidecar."""

from loadmanager.adapters.http.admission import ConnectionLimits
from loadmanager.adapters.http.assign_client import HttpAssignClient
from loadmanager.adapters.http.health_listener import HealthListener, LoopWatch
from loadmanager.adapters.http.http_server import HttpServer, HttpServerSettings
from loadmanager.adapters.http.replies import Refused, json_reply, text_reply
from loadmanager.adapters.http.routes import Handler, Route, Target

__all__ = [
    "ConnectionLimits",
    "Handler",
    "HealthListener",
    "HttpAssignClient",
    "HttpServer",
    "HttpServerSettings",
    "LoopWatch",
    "Refused",
    "Route",
    "Target",
    "json_reply",
    "text_reply",
]
