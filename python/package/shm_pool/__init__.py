"""Messages in shared memory, published once and read in place by other processes.

A publishing process fills a buffer, which is an array without a copy, and sends it:

>>> import numpy as np, shm_pool
>>> provider = shm_pool.Provider(max_bytes=64 << 20)
>>> camera = shm_pool.Publisher(provider, "docs-camera")
>>> subscriber = shm_pool.Subscriber("docs-camera")  # as a rule in another process

>>> with provider.alloc(640 * 480 * 3) as buffer:
...     np.asarray(buffer).reshape(480, 640, 3)[:] = 7
...     camera.send(buffer).receivers
1

A receiving process reads the same memory:

>>> with subscriber.recv(timeout=1) as message:
...     frame = np.frombuffer(message, np.uint8).reshape(480, 640, 3)
...     int(frame.max())
7

The message stays borrowed, and its memory in use, while an array refers to it: here until ``frame``
is deleted.

>>> del frame
>>> subscriber.close(), camera.close(), provider.close()
(None, None, None)

**Timeouts** are seconds: 0 never waits, and None waits without limit. While a call waits, it holds
no GIL, and a signal whose handler raises an exception ends it, as KeyboardInterrupt does, within
a tenth of a second.

**Threads** may share providers and clients. One thread at a time uses an end of a channel.

**Forks**: what a child inherits raises :class:`Forked`. Create it anew there, or use the start method
``spawn``. Arrays that exist already at the fork stay readable, but their memory is the parent's to reuse.

**Exits**: what is still open when Python exits is closed, also in a child of ``multiprocessing``. What was
sent still arrives. A process that ends by ``os._exit`` calls :func:`finalize` before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

from . import _native
from ._native import (
    MAX_INLINE,
    Buffer,
    Client,
    Message,
    OnEnd,
    OnFull,
    Provider,
    Publisher,
    ReceiverState,
    Reservation,
    Sender,
    Sent,
    Stats,
    __version__,
    finalize,
)
from .errors import (
    Closed,
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
    PoolExhausted,
    Stale,
    SystemCallFailed,
    Timeout,
    TooManyBorrowed,
)

if TYPE_CHECKING:
    from types import TracebackType

__all__ = [
    "MAX_INLINE",
    "Buffer",
    "Client",
    "Closed",
    "Disconnected",
    "Error",
    "Evicted",
    "Forked",
    "InUse",
    "Interrupted",
    "InvalidArgument",
    "Message",
    "MessageLost",
    "NameTaken",
    "NotFound",
    "OnEnd",
    "OnFull",
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
    "SystemCallFailed",
    "Timeout",
    "TooManyBorrowed",
    "__version__",
    "finalize",
]


class _Receiving(_native._ReceivingEnd):
    """What a :class:`Receiver` and a :class:`Subscriber` have in common under asyncio, and as iterators."""

    _waiting: tuple[asyncio.AbstractEventLoop, int, asyncio.Future[None]] | None = None

    async def recv_async(self) -> _native.Message:
        """Receives the next message without blocking the event loop of asyncio.

        Cancelling loses no message. One task at a time; another one gets :class:`InUse`.

        >>> async def main():
        ...     with Provider() as provider, Sender(provider, "docs-async") as sender, Receiver("docs-async") as receiver:
        ...         sender.send(b"a sample")
        ...         return bytes(await receiver.recv_async())
        >>> asyncio.run(main())
        b'a sample'

        Raises as :meth:`recv`, except :class:`Timeout` and :class:`Interrupted`.
        """
        while (message := self.try_recv()) is None:
            if self._waiting is not None:
                raise InUse("another task waits for this receiver")
            loop = asyncio.get_running_loop()
            descriptor, woken = self.fileno(), loop.create_future()
            self._waiting = waiting = loop, descriptor, woken
            # Readable once before it is known that nothing has arrived.
            loop.add_reader(descriptor, _wake, woken)
            try:
                await woken
            finally:
                # After `close`, the number may be another file's.
                if self._waiting is waiting:
                    self._waiting = None
                    loop.remove_reader(descriptor)
        return message

    def close(self) -> None:
        """Closes this end. Messages that were received stay valid. A call that waits in another thread,
        or in another task of the same event loop, raises :class:`Closed`."""
        if self._waiting is not None:
            loop, descriptor, woken = self._waiting
            self._waiting = None
            loop.remove_reader(descriptor)
            # The task finds it closed.
            _wake(woken)
        super().close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[_native.Message]:
        return self

    def __next__(self) -> _native.Message:
        try:
            return self.recv()
        except Disconnected:
            raise StopIteration from None

    def __aiter__(self) -> AsyncIterator[_native.Message]:
        return self

    async def __anext__(self) -> _native.Message:
        try:
            return await self.recv_async()
        except Disconnected:
            raise StopAsyncIteration from None


class Receiver(_native.Receiver, _Receiving):
    """Receiver(name, client=None, *, timeout=0, on_end=None, spin=None)

    Receives the messages of a :class:`Sender`.

    Opens the channel ``name``, waiting at most ``timeout`` for it to exist. Its provider has the name
    prefix and directory of ``client``, by default the defaults. With ``on_end``, by default
    :attr:`OnEnd.RETURN`, it may wait for the next sender when one has ended, and be made before there is
    one. A wait spins for ``spin`` seconds before it sleeps, by default for up to 20 µs, where that pays.

    A receiver is an iterator, and an asynchronous iterator under asyncio, that ends when the sender has
    closed or died:

    >>> provider = Provider()
    >>> sender = Sender(provider, "docs-receiver")
    >>> receiver = Receiver("docs-receiver")
    >>> sender.send(b"first"), sender.send(b"second"), sender.close()
    (None, None, None)
    >>> [bytes(message) for message in receiver]
    [b'first', b'second']

    Raises :class:`NotFound`, :class:`NameTaken`, :class:`InvalidArgument` (also for the channel of a
    publisher), :class:`SystemCallFailed`.
    """


class Subscriber(_native.Subscriber, _Receiving):
    """Subscriber(name, client=None, *, timeout=0, capacity=None, max_borrowed=None, on_full=None,
    on_end=None, spin=None)

    Receives the messages of a :class:`Publisher`, and by default of each later one of that name.

    Without a ``timeout``, there need not be a publisher yet: the subscriber joins it while it receives.
    With one, it waits at most so long for a publisher. ``capacity``, ``max_borrowed`` and ``on_full`` are how
    many messages it may be behind, how many buffers it may hold, and what happens when it falls behind;
    by default as the publisher says. When a publisher has ended, it waits for the next one; with
    :attr:`OnEnd.RETURN` it raises :class:`Disconnected`, and iterators end. ``client`` and ``spin`` are those
    of a :class:`Receiver`.

    >>> subscriber = Subscriber("docs-subscriber")
    >>> subscriber.try_recv()
    >>> provider = Provider()
    >>> publisher = Publisher(provider, "docs-subscriber", history=1)
    >>> publisher.send(b"a sample").receivers
    0
    >>> subscriber.try_recv()
    >>> publisher.wait_for_receivers()
    >>> bytes(subscriber.recv())
    b'a sample'

    Raises :class:`NotFound`, :class:`InvalidArgument` (also for the channel of a sender),
    :class:`SystemCallFailed`.
    """


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
