"""Which command of a client is obeyed how."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final

from loadmanager.testbed.pulsar_protocol.asking import Asking
from loadmanager.testbed.pulsar_protocol.clients import Line, Refused
from loadmanager.testbed.pulsar_protocol.consuming import Consuming
from loadmanager.testbed.pulsar_protocol.fields import Command
from loadmanager.testbed.pulsar_protocol.frames import Frame
from loadmanager.testbed.pulsar_protocol.producing import Producing
from loadmanager.testbed.pulsar_protocol.protocol import ProtocolBroken, ServerError, decode, encode
from loadmanager.testbed.pulsar_protocol.segments import Fenced

MAX_WAITING: Final = 2_000
"""Commands of one connection that may wait for a bundle or the sidecar."""

_PONG: Final = encode(Command.PONG)


class ClientSession:
    """The commands of one connection.

    Those that wait for something run beside the others, so that one topic that is not here
    yet delays no other command; all others are done in the order they came.
    """

    def __init__(
        self, line: Line, producing: Producing, consuming: Consuming, asking: Asking
    ) -> None:
        self._line = line
        self._producing = producing
        self._consuming = consuming
        self._waiting: set[asyncio.Task[None]] = set()
        self._at_once: Mapping[Command, Callable[[Any], None]] = {
            Command.FLOW: consuming.flow,
            Command.ACK: consuming.ack,
            Command.REDELIVER: consuming.redeliver,
            Command.SEEK: consuming.seek,
            Command.UNSUBSCRIBE: consuming.unsubscribe,
            Command.LAST_MESSAGE_ID: consuming.last_message_id,
            Command.CLOSE_CONSUMER: consuming.close,
            Command.CLOSE_PRODUCER: producing.close,
            Command.PING: lambda _: line.send(_PONG),
            Command.PONG: lambda _: None,
        }
        self._beside: Mapping[Command, Callable[[Any], Coroutine[Any, Any, None]]] = {
            Command.PRODUCER: producing.create,
            Command.SUBSCRIBE: consuming.subscribe,
            Command.LOOKUP: asking.lookup,
            Command.PARTITIONS: asking.partitions,
            Command.TOPICS_OF_NAMESPACE: asking.topics_of_namespace,
        }

    async def obey(self, frame: Frame) -> None:
        """See `Session`."""
        command, fields = decode(frame.command)
        if command is Command.SEND:
            await self._producing.publish(fields, frame.payload)
        elif command in self._at_once:
            self._do(self._at_once[command], fields)
        elif command in self._beside:
            self._begin(self._beside[command], fields)
        else:
            raise ProtocolBroken(f"command {command.name} is not one that clients send")

    def drop_producer(self, producer_id: int) -> None:
        """See `Session`."""
        self._producing.drop(producer_id)

    def drop_consumer(self, consumer_id: int) -> None:
        """See `Session`."""
        self._consuming.drop(consumer_id)

    def catch_up(self) -> None:
        """See `Session`."""
        self._consuming.catch_up()

    async def end(self) -> None:
        """See `Session`."""
        for task in [*self._waiting]:
            task.cancel()
        await asyncio.gather(*self._waiting, return_exceptions=True)
        self._producing.end()
        self._consuming.end()

    def _do(self, act: Callable[[Any], None], fields: Any) -> None:
        try:
            act(fields)
        except Refused as refused:
            self._refuse(fields.request_id, refused)

    def _begin(self, act: Callable[[Any], Coroutine[Any, Any, None]], fields: Any) -> None:
        if len(self._waiting) >= MAX_WAITING:
            text = f"{len(self._waiting)} commands are waiting already"
            self._refuse(fields.request_id, Refused(ServerError.TOO_MANY_REQUESTS, text))
            return
        try:
            doing = act(fields)
        except Refused as refused:
            self._refuse(fields.request_id, refused)
            return
        task = asyncio.get_running_loop().create_task(doing)
        self._waiting.add(task)
        task.add_done_callback(partial(self._ended, fields.request_id))

    def _ended(self, request_id: int, task: asyncio.Task[None]) -> None:
        self._waiting.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, OSError | Fenced):
            error = Refused(ServerError.PERSISTENCE, str(error))
        if isinstance(error, Refused):
            self._refuse(request_id, error)
        elif error is not None:
            raise error

    def _refuse(self, request_id: int, refused: Refused) -> None:
        reply = {"error": refused.error, "message": str(refused)}
        self._line.send(encode(Command.ERROR, request_id=request_id, **reply))
