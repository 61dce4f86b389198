import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web

from loadmanager.adapters.http.admission import Admission
from loadmanager.adapters.http.failures import Failures
from loadmanager.adapters.http.fast_path import FastPath
from loadmanager.adapters.http.protocol import HEADER_OVER_URL_BYTES, HttpProtocol

_CHECK_EVERY_S: Final = 1.0


class ConnectionServer(web.Server):
    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        fast_path: FastPath,
        admission: Admission,
        count_failure: Callable[[], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        most_bytes = admission.limits.max_body_bytes

        def request_of(
            message: Any, payload: Any, protocol: Any, writer: Any, task: Any
        ) -> web.BaseRequest:
            if message.chunked:
                # The parser would take the last trailer for the first header of the next request.
                message = message._replace(should_close=True)
            protocol.begun()
            return web.BaseRequest(
                message,
                payload,
                protocol,
                writer,
                task,
                loop,
                client_max_size=most_bytes,
            )

        super().__init__(handler, request_factory=request_of, loop=loop)
        self._fast_path = fast_path
        self._admission = admission
        self._failures = Failures(loop.time, count_failure)
        self._event_loop = loop

    def __call__(self) -> HttpProtocol:
        limits = self._admission.limits
        return HttpProtocol(
            self,
            self._fast_path,
            self._admission,
            self._failures,
            self._event_loop,
            keepalive_timeout=limits.keepalive_s,
            access_log=None,
            max_line_size=limits.max_url_bytes,
            max_field_size=limits.max_url_bytes + HEADER_OVER_URL_BYTES,
            lingering_time=2.0,
        )

    async def watch(self) -> None:
        """Close connections that exceed a timeout; never returns."""
        limits = self._admission.limits
        every_s = min(_CHECK_EVERY_S, limits.head_s / 4, limits.write_s / 4)
        while True:
            await asyncio.sleep(every_s)
            self._admission.check_timeouts(self._event_loop.time())
