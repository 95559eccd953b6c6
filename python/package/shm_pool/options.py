"""The choices of options. Each is an enum of strings: ``on_full=OnFull.BLOCK`` and ``on_full="block"`` are the same."""

from ._enum import StrEnum


class OnFull(StrEnum):
    """What happens when a message is sent to a receiver that is behind by its capacity.
    :attr:`Message.missed` counts the messages missed."""

    BLOCK = "block"
    """The publisher waits for it."""
    DROP_NEWEST = "drop_newest"
    """It misses the new message."""
    DROP_OLDEST = "drop_oldest"
    """It misses the oldest message that it has not received."""


class OnStall(StrEnum):
    """What happens to a receiver with :attr:`OnFull.BLOCK` that makes no room within the publisher's
    ``block_limit``."""

    SKIP = "skip"
    """Messages are skipped for it until it has room again."""
    DISCONNECT = "disconnect"
    """It is disconnected, as by :meth:`Publisher.disconnect`, and raises :class:`Evicted`."""


class OnEnd(StrEnum):
    """What a receiver does when the other side has closed or died, and all its messages were received."""

    WAIT = "wait"
    """It waits for the next one of that name."""
    RETURN = "return"
    """It raises :class:`Disconnected`, and iterations end."""
