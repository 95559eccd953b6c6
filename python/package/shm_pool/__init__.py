"""Messages in shared memory, published once and read in place by other processes.

A publishing process fills a buffer, which is an array without a copy, and sends it:

>>> import numpy as np, shm_pool
>>> provider = shm_pool.Provider(max_bytes=64 << 20)
>>> camera = shm_pool.Publisher(provider, "docs-camera")
>>> subscriber = shm_pool.Subscriber("docs-camera")  # as a rule in another process

>>> with camera.alloc(640 * 480 * 3) as buffer:
...     np.asarray(buffer).reshape(480, 640, 3)[:] = 7
...     camera.send(buffer).receivers
1

A receiving process reads the same memory:

>>> with subscriber.recv(timeout=1) as message:
...     frame = np.asarray(message).reshape(480, 640, 3)
...     int(frame.max())
7

The message stays borrowed, and its memory in use, while an array refers to it: here until ``frame``
is deleted.

>>> del frame
>>> subscriber.close(), camera.close(), provider.close()
(None, None, None)

**Timeouts** are seconds: 0 never waits, and None waits without limit, except that :meth:`Publisher.send` waits for
its ``block_limit``. While a call waits, it holds no GIL, and a signal whose handler raises an exception ends it, as
KeyboardInterrupt does, within a tenth of a second.

**Threads** may share providers and clients. One thread at a time uses an end of a channel.

**Forks**: what a child inherits raises :class:`Forked`, messages too. Create it anew there, or use the start
method ``spawn``. An array that exists already at the fork cannot be guarded: it stays readable, but its memory
is the parent's to reuse, so its content may change at any time.

**Exits**: what is still open when Python exits is closed, also in a child of ``multiprocessing``. What was
sent still arrives. A process that ends by ``os._exit`` calls :func:`finalize` before.
"""

from . import inspect
from ._native import (
    MAX_INLINE,
    Buffer,
    ChannelChange,
    ChannelInfo,
    Client,
    ConnectionChange,
    Message,
    MessageType,
    Missed,
    Namespace,
    Provider,
    Publisher,
    Receiver,
    ReceiverState,
    Reservation,
    Sender,
    Sent,
    Stats,
    Subscriber,
    Swept,
    Watcher,
    __version__,
    finalize,
    wait_any,
)
from .errors import (
    Closed,
    CopyWarning,
    Disconnected,
    Error,
    Evicted,
    Forked,
    Interrupted,
    InUse,
    InvalidArgument,
    MessageLost,
    NameTaken,
    NotFound,
    OtherVersion,
    PoolExhausted,
    Stale,
    SystemCallFailed,
    Timeout,
    TooManyBorrowed,
)
from .options import (
    OnEnd,
    OnFull,
    OnStall,
)

__all__ = [
    "Buffer",
    "ChannelChange",
    "ChannelInfo",
    "Client",
    "Closed",
    "ConnectionChange",
    "CopyWarning",
    "Disconnected",
    "Error",
    "Evicted",
    "Forked",
    "InUse",
    "Interrupted",
    "InvalidArgument",
    "MAX_INLINE",
    "Message",
    "MessageLost",
    "MessageType",
    "Missed",
    "NameTaken",
    "Namespace",
    "NotFound",
    "OnEnd",
    "OnFull",
    "OnStall",
    "OtherVersion",
    "PoolExhausted",
    "Provider",
    "Publisher",
    "Receiver",
    "ReceiverState",
    "Reservation",
    "Sender",
    "Sent",
    "Stale",
    "Stats",
    "Subscriber",
    "Swept",
    "SystemCallFailed",
    "Timeout",
    "TooManyBorrowed",
    "Watcher",
    "__version__",
    "finalize",
    "inspect",
    "wait_any",
]
