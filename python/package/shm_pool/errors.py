"""The exceptions of shm_pool. All of them are an :class:`Error`, and most also a built-in exception.

Their text says what failed, with the sizes, and what to do.
"""


class Error(Exception):
    """The base of all exceptions of this package."""


class InvalidArgument(Error, ValueError):
    """An option is out of range, a name is empty or too long for a file name, a buffer belongs to another
    provider, or a channel is of another kind or another type of messages."""


class Timeout(Error, TimeoutError):
    """The wait timed out: no message, no room, no memory or no receiver came in time.

    With ``timeout=0``: the call would have had to wait. If no receiver came because one was refused that has
    another version of this package, the text names both versions.
    """


class Disconnected(Error, ConnectionError):
    """The other side has closed or died. A receiver first gets everything that was sent before.

    With :attr:`OnEnd.WAIT`, the default of a :class:`Subscriber`, it waits for the next one instead.
    """


class Evicted(Disconnected):
    """The publisher has disconnected this receiver. What it has received stays readable. Release that and
    close the receiver to open the channel again."""


class TooManyBorrowed(Error):
    """A receiver, or a peer, holds as many buffers or bytes as it may. Release some, and try again."""


class PoolExhausted(Error, MemoryError):
    """The provider's cap is reached, or /dev/shm is full. The text says how much is in use by this
    process, leased by others, and idle. Release buffers and messages, and try again."""


class NotFound(Error, FileNotFoundError):
    """No such channel or provider exists: not yet, or not any more."""


class NameTaken(Error, FileExistsError):
    """A living sender has a channel of this name, or the channel has its receiver."""


class OtherVersion(Error):
    """The channel was created by another version of this package, with another layout. The text names both
    versions of the layout."""


class Stale(Error):
    """The memory was used again before this descriptor was attached to. Grant messages, or keep
    them until they are confirmed."""


class MessageLost(Error):
    """This message cannot be read. The next one may be good."""


class Interrupted(Error):
    """``interrupt()`` ended the wait, and the next one waits again; or ``close_waits()`` ended it and
    all later ones, or the last one that uses a provider's memory was closed."""


class InUse(Error, RuntimeError):
    """Another thread uses this end of a channel, and waits. Create one end for each thread."""


class Closed(Error, ValueError):
    """The object was closed or released."""


class Forked(Error, RuntimeError):
    """The object was created before this process was forked, and belongs to the parent."""


class SystemCallFailed(Error, OSError):
    """The system refused a call, or would refuse it. ``errno`` says why."""


class CopyWarning(UserWarning):
    """What was sent is an array in a buffer of the provider, and was copied to another buffer. Delete the
    array, and send the buffer."""
