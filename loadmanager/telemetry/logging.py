"""Logging: one line an event, the same form for our events and for those of libraries."""

import logging
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, Final, TextIO

import structlog

_HIDDEN: Final = "********"

# Ends of field names whose values are never logged. A fencing token is no secret.
_SECRET_ENDS: Final = ("password", "secret", "authorization", "credentials", "private_key")

# The least level each library may log at, whatever ours is. kazoo prints each request
# at debug, and the one that logs in has the password in it.
_LIBRARY_LEVELS: Final[Mapping[str, int]] = {
    "kazoo": logging.INFO,
    "aiohttp.access": logging.WARNING,
    "asyncio": logging.INFO,
}


class _OurHandler(logging.StreamHandler[TextIO]):
    """Marks the handler as installed here, so that a second call replaces it."""


def configure_logging(format: str, level: str, stream: TextIO) -> None:  # noqa: A002 - the key's name
    """Log from now on to ``stream``, one event a line.

    Times are ISO 8601 in UTC. Tracebacks are plain text without the values of local
    variables: those would carry passwords.

    Args:
        format: ``json``, ``console``, or ``auto``: console if ``stream`` is a terminal.
        level: ``debug``, ``info``, ``warning`` or ``error``.
        stream: usually standard error.
    """
    console = format == "console" or (format == "auto" and stream.isatty())
    least = logging.getLevelNamesMapping()[level.upper()]
    shared = _shared_processors()
    rendering = _rendering_processors(console=console, colors=console and stream.isatty())
    structlog.configure(
        processors=[*shared, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=structlog.WriteLoggerFactory(stream),
        # Loggers are made when modules are imported, before this is called.
        cache_logger_on_first_use=False,
    )
    handler = _OurHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    _install(handler, least)


def _install(handler: _OurHandler, least: int) -> None:
    root = logging.getLogger()
    for old in [h for h in root.handlers if isinstance(h, _OurHandler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(least)
    for name, library_least in _LIBRARY_LEVELS.items():
        logging.getLogger(name).setLevel(max(least, library_least))
    logging.captureWarnings(capture=True)


def _shared_processors() -> list[structlog.typing.Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        hide_secrets,
    ]


def _rendering_processors(*, console: bool, colors: bool) -> Sequence[structlog.typing.Processor]:
    if console:
        # The renderer's own choice, where `rich` is installed, prints local variables.
        plain = structlog.dev.plain_traceback
        return [structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain)]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]


def hide_secrets(
    logger: Any, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Replace the value of each field that by its name is a secret, at any depth."""
    del logger, method
    for key, value in event.items():
        if key.lower().endswith(_SECRET_ENDS):
            event[key] = _HIDDEN
        elif isinstance(value, Mapping):
            event[key] = hide_secrets(None, "", dict(value))
    return event
