"""Topic names and message ids as the protocol has them."""

from typing import Any, Final

from loadmanager.core.errors import InvalidName
from loadmanager.core.ids import TopicName, parse_topic
from loadmanager.testbed.pulsar_protocol.clients import Refused
from loadmanager.testbed.pulsar_protocol.protocol import ServerError
from loadmanager.testbed.pulsar_protocol.topic_log import Position

_SIGN: Final = 2**63


def topic_of(text: str) -> TopicName:
    """Return the topic that a client names.

    Raises:
        Refused: it is no topic's name, or of a domain that is not spoken here.
    """
    try:
        topic = parse_topic(text)
    except InvalidName as error:
        raise Refused(ServerError.INVALID_TOPIC_NAME, str(error)) from None
    if topic.domain == "topic":
        raise Refused(ServerError.NOT_ALLOWED, f"{topic}: scalable topics are not supported")
    return topic


def position_of(message_id: Any) -> Position:
    """Return a message id; clients say -1 for "the earliest", in an unsigned field."""
    return Position(_signed(message_id.ledger_id), _signed(message_id.entry_id))


def message_id_of(position: Position) -> dict[str, int]:
    """Return a position as the fields of a message id."""
    return {
        "ledger_id": position.ledger % (2 * _SIGN),
        "entry_id": position.entry % (2 * _SIGN),
    }


def _signed(number: int) -> int:
    return number - 2 * _SIGN if number >= _SIGN else number
