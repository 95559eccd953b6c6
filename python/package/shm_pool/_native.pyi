from collections.abc import Sequence
from os import PathLike
from types import EllipsisType, TracebackType
from typing import Any, Literal, Protocol, SupportsIndex, TypeAlias, TypeVar, final, overload

from typing_extensions import Buffer as _Buffer
from typing_extensions import CapsuleType, Self, disjoint_base

from .errors import Error
from .inspect import Report
from .options import OnEnd, OnFull, OnStall

__all__ = [
    "MAX_INLINE",
    "Buffer",
    "ChannelChange",
    "ChannelInfo",
    "Client",
    "ConnectionChange",
    "Inspector",
    "Message",
    "MessageType",
    "Missed",
    "Namespace",
    "Provider",
    "Publisher",
    "Receiver",
    "ReceiverState",
    "Reservation",
    "Sender",
    "Sent",
    "Stats",
    "Subscriber",
    "Swept",
    "Watcher",
    "_Pending",
    "_ReceivingEnd",
    "_SendingEnd",
    "__version__",
    "finalize",
    "wait_any",
]

MAX_INLINE: int
__version__: str

# Before Python 3.12, the types of numpy do not show the buffer protocol.
class _Array(Protocol):
    @property
    def __array_interface__(self) -> dict[str, Any]: ...

_BytesLike: TypeAlias = _Buffer | _Array
_In: TypeAlias = Namespace | str
_OnFull: TypeAlias = OnFull | Literal["block", "drop_newest", "drop_oldest"]
_OnStall: TypeAlias = OnStall | Literal["skip", "disconnect"]
_OnEnd: TypeAlias = OnEnd | Literal["wait", "return"]
_End = TypeVar("_End", bound=_ReceivingEnd)

def finalize() -> None:
    """Closes what this process has opened, and removes what ended owners have left to it.

    Python does so at exit, and a child of ``multiprocessing`` when its target has returned. Call it in a
    process that ends by ``os._exit``, such as one that ``os.fork`` has made. What was sent still arrives, and
    a forked child closes nothing of its parent. Messages and arrays stay valid.
    """
def wait_any(receivers: Sequence[_End], *, timeout: float | None = None) -> _End:
    """Waits until one of several receivers and subscribers has a message, and returns that one. Then its
    :meth:`Receiver.try_recv` returns the message, unless that is withdrawn meanwhile. One that is to raise an
    error counts as ready, too. If several have messages, the one is returned that was returned least
    recently. Waits at most ``timeout`` seconds, by default without limit.

    >>> import shm_pool
    >>> provider = shm_pool.Provider()
    >>> frames, samples = shm_pool.Sender(provider, "docs-frames"), shm_pool.Sender(provider, "docs-samples")
    >>> receivers = [shm_pool.Receiver("docs-frames"), shm_pool.Receiver("docs-samples")]
    >>> samples.send(b"a sample")
    >>> ready = shm_pool.wait_any(receivers, timeout=1)
    >>> ready.name, bytes(ready.recv())
    ('docs-samples', b'a sample')

    Under asyncio, await a task for each of them.

    Raises :class:`Timeout`, :class:`InvalidArgument` if there is none or one twice, :class:`Interrupted`,
    :class:`InUse`, :class:`SystemCallFailed`.
    """

@final
class Buffer:
    """Memory of a provider, to be filled and sent. Made by :meth:`Provider.alloc`.

    It supports the buffer protocol, so arrays refer to it without a copy:

    >>> import numpy as np, shm_pool
    >>> provider = shm_pool.Provider()
    >>> with provider.alloc(12) as buffer:
    ...     np.asarray(buffer)[:] = 7  # uint8
    ...     np.frombuffer(buffer, np.float32)[1] = 0.5
    ...     bytes(buffer)
    b'\\x07\\x07\\x07\\x07\\x00\\x00\\x00?\\x07\\x07\\x07\\x07'

    Sending freezes it: from then on it is read-only. That fails with BufferError while an array or
    a memoryview refers to it, which could still write what was sent: ``del`` it before.

    A frozen buffer may be sent again, and by several channels. Its memory is used again once the
    buffer is released and all receivers have released the message. Leaving a ``with`` block
    releases it: at once, or with the last array that refers to it.
    """
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...
    def __len__(self) -> int: ...
    def __array__(self, dtype: Any = None, *, copy: bool | None = None) -> Any: ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    @overload
    def __getitem__(self, key: SupportsIndex, /) -> int: ...
    @overload
    def __getitem__(self, key: slice | EllipsisType, /) -> bytes: ...
    @overload
    def __setitem__(self, key: SupportsIndex, value: int, /) -> None: ...
    @overload
    def __setitem__(self, key: slice | EllipsisType, value: _BytesLike, /) -> None: ...
    @property
    def capacity(self) -> int:
        """The longest length that :meth:`resize` accepts, in bytes."""
    @property
    def is_leased(self) -> bool:
        """``True`` if a receiver reads the message, or has not received it yet."""
    @property
    def readonly(self) -> bool:
        """``True`` if the buffer is frozen."""
    def descriptor(self) -> bytes:
        """Freezes the buffer, and returns its 32-byte descriptor, to be sent by any transport.

        A descriptor holds nothing: keep the buffer until the receivers confirm that they have
        attached.

        >>> import shm_pool
        >>> provider, client = shm_pool.Provider(), shm_pool.Client()
        >>> buffer = provider.alloc(4, zeroed=True)
        >>> bytes(client.attach(buffer.descriptor()))
        b'\\x00\\x00\\x00\\x00'

        Raises BufferError as :meth:`freeze`, and :class:`Error` if too many buffers are shared.
        """
    def freeze(self) -> None:
        """Makes the buffer read-only, as sending does.

        Raises BufferError while arrays or memoryviews refer to it.
        """
    def grant(self, peer: bytes) -> bytes:
        """Freezes the buffer, and returns a descriptor for one peer, which may attach to it once. The
        buffer may be released at once. ``peer`` is what the peer got from :meth:`Client.connect`.

        Raises :class:`Disconnected` if the peer has closed or died, :class:`InvalidArgument` if the
        bytes are no peer of this provider, and as :meth:`descriptor`.
        """
    def release(self) -> None:
        """Releases the memory now.

        Raises BufferError while arrays or memoryviews refer to it. Leaving a ``with`` block does
        not.
        """
    def resize(self, len: int) -> None:
        """Sets the length in bytes, for messages whose length is known only at the end.

        Raises :class:`InvalidArgument` above the capacity, BufferError while arrays or memoryviews
        refer to the buffer, and :class:`Error` if it is frozen.
        """
    def revoke(self, peer: bytes) -> bool:
        """Takes back a grant that could not be delivered. Returns ``False`` if none is left."""

@final
class Message:
    """A received message: read-only memory of the sender's process, which supports the buffer
    protocol.

    ``np.frombuffer(message, dtype)`` and ``memoryview(message)`` copy nothing, and ``bytes(message)``
    copies. The message stays borrowed, and the sender cannot use its memory again, until it is
    released or deleted, and so is every array that refers to it. A ``with`` block ends it: at once,
    or with the last array.

    >>> import numpy as np, shm_pool
    >>> provider = shm_pool.Provider()
    >>> sender = shm_pool.Sender(provider, "docs-message")
    >>> receiver = shm_pool.Receiver("docs-message")
    >>> sender.send(np.arange(3.0))
    >>> message = receiver.recv()
    >>> np.frombuffer(message, np.float64)
    array([0., 1., 2.])
    >>> sender.send(b"with a tag", tag=b"frame 0000000007")
    >>> receiver.recv().tag
    b'frame 0000000007'

    The memory outlives its sender, even if that was killed.
    """
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...
    def __len__(self) -> int: ...
    def __array__(self, dtype: Any = None, *, copy: bool | None = None) -> Any: ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    @overload
    def __getitem__(self, key: SupportsIndex, /) -> int: ...
    @overload
    def __getitem__(self, key: slice | EllipsisType, /) -> bytes: ...
    @property
    def missed(self) -> int:
        """How many messages this receiver missed before this one. Always 0 after
        :meth:`Client.attach`.
        """
    @property
    def tag(self) -> bytes | None:
        """The 16 bytes that were sent with it, ``send(message, tag=...)``, or ``None``."""
    def release(self) -> None:
        """Returns the message to its sender now.

        Raises BufferError while arrays or memoryviews refer to it. Leaving a ``with`` block does
        not.
        """

@final
class Provider:
    """Allocates messages in shared memory.

    ``max_bytes`` is the cap in bytes (default 1 GiB; memory is taken when it is first needed). ``room_for`` adds
    what messages take to the cap, by default to nothing: it is a list of pairs, of a length and of how many
    messages of that length there are at a time. ``max_alloc`` is the largest buffer, ``max_bytes_per_peer`` how
    much one :class:`Client` may hold, ``namespace`` where its names are (a :class:`Namespace`, or its prefix), and
    ``mode`` the permission bits (default 0o600). ``lock_memory=True`` keeps its memory from being swapped out,
    ``max_idle_per_class`` is how many idle buffers of one size are kept, and ``max_shared`` how many buffers may be
    shared at a time.

    >>> import shm_pool
    >>> with shm_pool.Provider(max_bytes=64 << 20) as provider:
    ...     buffer = provider.alloc(640 * 480)
    ...     len(buffer)
    307200
    >>> with shm_pool.Provider(room_for=[(640 * 480, 8), (10_000, 16)]) as provider:
    ...     frames = [provider.alloc(640 * 480) for _ in range(8)]
    ...     scans = [provider.alloc(10_000) for _ in range(16)]

    Its senders and publishers use its memory, too. When it and all of them are closed, idle memory returns to the
    system. Buffers stay valid. Memory of a provider that was killed is removed by its last reader, or when the next
    one is made.

    >>> with shm_pool.Provider() as provider:
    ...     publisher = shm_pool.Publisher(provider, "docs-outlives")
    >>> len(publisher.alloc(1000))
    1000
    >>> provider.alloc(1000)
    Traceback (most recent call last):
        ...
    shm_pool.errors.Closed: this provider was closed

    Raises :class:`InvalidArgument`, and :class:`SystemCallFailed`: with EPERM if it may not lock so much memory, and
    with ENOMEM if it finds none for its lists.
    """
    def __new__(
        cls,
        *,
        max_bytes: int | None = None,
        room_for: Sequence[tuple[int, int]] | None = None,
        max_alloc: int | None = None,
        max_bytes_per_peer: int | None = None,
        namespace: _In | None = None,
        mode: int | None = None,
        lock_memory: bool | None = None,
        max_idle_per_class: int | None = None,
        max_shared: int | None = None,
    ) -> Self: ...
    @staticmethod
    def chunk_size(len: int) -> int:
        """Returns how many bytes of ``max_bytes`` a message of ``len`` bytes takes.

        >>> import shm_pool
        >>> shm_pool.Provider.chunk_size(100)
        128
        """
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...
    @property
    def id(self) -> int:
        """The number by which clients connect."""
    def alloc(self, len: int, *, zeroed: bool = False, timeout: float | None = 0.0) -> Buffer:
        """Allocates a buffer of ``len`` bytes, aligned to 64, with any content or zeroed.

        At the cap it waits at most ``timeout`` seconds for memory, by default not at all. In the main
        thread, a wait that lasts is renewed ten times a second, behind the requests of other threads.

        Raises :class:`PoolExhausted` at the cap and :class:`Timeout` after a wait, :class:`InvalidArgument`
        if it can never fit, :class:`Interrupted`, :class:`SystemCallFailed`.
        """
    async def alloc_async(self, len: int, *, zeroed: bool = False) -> Buffer:
        """Allocates as :meth:`alloc`, and waits for memory without blocking the event loop of asyncio. When it is
        cancelled, nothing is allocated. Any number of tasks may wait.

        Raises :class:`InvalidArgument` if it can never fit, :class:`Interrupted`, :class:`SystemCallFailed`.
        """
    def close(self) -> None:
        """Closes the provider. Its senders and publishers keep its memory, and allocate and send as before. When they
        are closed, too, a call that waits for memory in another thread raises :class:`Interrupted`.
        """
    def disconnect(self, peer: bytes) -> bool:
        """Refuses a client of this id from now on. It may keep what it has. Returns ``False`` if it is not
        connected.
        """
    def close_waits(self) -> None:
        """Ends all current and future waits for memory with :class:`Interrupted`, also those of senders and publishers."""
    def reclaim(self) -> int:
        """Takes back what dead peers held, as :meth:`alloc` does at the cap. Returns how many messages."""
    def reserve(self, len: int, count: int) -> Reservation:
        """Makes ``count`` buffers of ``len`` bytes in advance, until the reservation is closed: the first
        message then costs no more than later ones.

        Raises as :meth:`alloc`, also :class:`InvalidArgument` above ``max_idle_per_class``, and :class:`Error` if too
        many buffers are shared.
        """
    def stats(self) -> Stats:
        """Returns how much memory is held, in use and leased."""
    def trim_to(self, bytes: int) -> int:
        """Returns idle memory to the system until ``bytes_held`` of :meth:`stats` is at most ``bytes``, as far as
        possible. Reserved buffers stay. Returns the number of bytes.

        >>> import shm_pool
        >>> provider = shm_pool.Provider()
        >>> provider.alloc(4 << 20).release()
        >>> provider.trim_to(1 << 20) > 0, provider.stats().bytes_held <= 1 << 20
        (True, True)
        """
    def trim(self) -> int:
        """Returns all idle memory to the system, and the number of its bytes."""

@final
class Reservation:
    """Buffers made in advance, until it is closed. Made by :meth:`Provider.reserve`."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...
    @property
    def count(self) -> int:
        """The number of buffers."""
    def close(self) -> None:
        """Ends the reservation: its idle buffers are like others from now on."""

@final
class Stats:
    """A snapshot of a provider's memory, in bytes. Made by :meth:`Provider.stats`."""
    @property
    def bytes_held(self) -> int: ...
    @property
    def bytes_in_use(self) -> int: ...
    @property
    def bytes_leased(self) -> int: ...
    @property
    def bytes_mapped(self) -> int: ...
    @property
    def hits(self) -> int: ...
    @property
    def max_bytes(self) -> int: ...
    @property
    def misses(self) -> int: ...
    @property
    def peak_bytes_held(self) -> int: ...
    @property
    def segments(self) -> int: ...

@final
class Client:
    """Reads messages of other processes by their descriptors. One for each process is enough.

    The providers are in its ``namespace``, by default the default one.

    >>> import shm_pool
    >>> client = shm_pool.Client()
    >>> provider = shm_pool.Provider()
    >>> peer = client.connect(provider.id)  # 24 bytes, for the provider's process
    >>> with provider.alloc(2, zeroed=True) as buffer:
    ...     descriptor = buffer.grant(peer)
    >>> bytes(client.attach(descriptor))
    b'\\x00\\x00'
    """
    def __new__(cls, namespace: _In | None = None) -> Self: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...
    def attach(self, descriptor: bytes) -> Message:
        """Returns the message that the 32 bytes of a descriptor name.

        Raises :class:`Stale` if its memory was used again, :class:`NotFound` and :class:`Disconnected` if
        its provider has closed or died, :class:`TooManyBorrowed` if this client holds as much as it may,
        :class:`InvalidArgument` if the bytes are no descriptor.
        """
    def close(self) -> None:
        """Closes the client. Messages stay valid, and keep its place at their providers."""
    def connect(self, provider: int) -> bytes:
        """Connects to a provider, by its id, and returns the 24 bytes for :meth:`Buffer.grant`."""
    def warm(self, provider: int) -> int:
        """Maps all memory of a provider now, so that the first message costs no page fault. Returns its bytes."""

@final
class Namespace:
    """Where channels are and whose they are: the prefix of their names, a directory, and a user.

    Programs with different prefixes do not see each other. By default it is the prefix ``"shm_pool"``, the
    ``directory`` /dev/shm, and the user of this process; ``uid`` is another user, whose channels are to be
    received. Wherever a namespace is an argument, a prefix is one, too.

    >>> import shm_pool
    >>> robot7 = shm_pool.Namespace("docs-robot7")
    >>> provider = shm_pool.Provider(namespace=robot7)
    >>> camera = shm_pool.Publisher(provider, "camera")
    >>> robot7.channels()
    [ChannelInfo('camera', is_publisher=True)]
    >>> shm_pool.Subscriber("camera", namespace="docs-robot7", timeout=1).name
    'camera'

    Raises :class:`InvalidArgument`.
    """
    def __new__(
        cls, prefix: str | None = None, *, directory: str | PathLike[str] | None = None, uid: int | None = None
    ) -> Self: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    @property
    def directory(self) -> str:
        """Where its files are."""
    @property
    def prefix(self) -> str:
        """What the names of its files begin with."""
    @property
    def uid(self) -> int:
        """The user to whom they belong."""
    def channels(self) -> list[ChannelInfo]:
        """Returns the channels whose senders and publishers are alive, by name. See :class:`Watcher` to wait
        for them.

        Raises :class:`SystemCallFailed`.
        """
    def sweep(self) -> Swept:
        """Removes what killed providers left in its directory. :class:`Provider` does so, too, when it is made.

        >>> import shm_pool
        >>> shm_pool.Namespace("docs-sweep").sweep()
        Swept(objects=0, bytes=0)

        Raises :class:`SystemCallFailed`.
        """

@final
class Swept:
    """What :meth:`Namespace.sweep` has removed: the number of ``objects`` and of their ``bytes``."""
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    @property
    def bytes(self) -> int: ...
    @property
    def objects(self) -> int: ...

@final
class ChannelInfo:
    """A channel whose sender or publisher is alive. Made by :meth:`Namespace.channels` and :class:`Watcher`."""
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    @property
    def is_publisher(self) -> bool:
        """Whether it has a :class:`Publisher`, and not a :class:`Sender`."""
    @property
    def name(self) -> str:
        """Its name."""
    @property
    def provider(self) -> int:
        """The number of its provider, as :attr:`Provider.id`."""

@final
class ChannelChange:
    """What a :class:`Watcher` reports: a ``channel`` was created, or, if ``is_closed``, its sender or publisher
    has closed or died.
    """
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    @property
    def channel(self) -> ChannelInfo: ...
    @property
    def is_closed(self) -> bool: ...

@final
class Watcher:
    """Reports the channels of a namespace that exist, and then each one that is created or ends. A restart is
    reported as an end and a creation. A channel that ends before the watcher has looked at it is not
    reported.

    >>> import shm_pool
    >>> watcher = shm_pool.Watcher("docs-watcher")
    >>> provider = shm_pool.Provider(namespace="docs-watcher")
    >>> camera = shm_pool.Publisher(provider, "camera")
    >>> watcher.recv(timeout=1)
    ChannelChange(ChannelInfo('camera', is_publisher=True), is_closed=False)
    >>> camera.close()
    >>> watcher.recv(timeout=1).is_closed
    True

    It is an iterator, and under asyncio an asynchronous iterator, that never ends.

    Raises :class:`InvalidArgument`.
    """
    def __new__(cls, namespace: _In | None = None) -> Self: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> ChannelChange: ...
    def __aiter__(self) -> Self: ...
    async def __anext__(self) -> ChannelChange: ...
    def close(self) -> None:
        """Closes the watcher. A call that waits in another thread, or a task that awaits, raises
        :class:`Closed`.
        """
    def fileno(self) -> int:
        """Returns a descriptor for ``select``, ``selectors`` and other event loops. It is readable
        whenever there may be a change: then call :meth:`try_recv` until it returns ``None``.
        """
    def interrupt(self) -> None:
        """Ends the current wait, or the next one, with :class:`Interrupted`. For other threads."""
    def recv(self, *, timeout: float | None = None) -> ChannelChange:
        """Returns the next change, waiting at most ``timeout`` seconds, by default without limit.

        Raises :class:`Timeout`, :class:`Interrupted`, :class:`SystemCallFailed`.
        """
    async def recv_async(self) -> ChannelChange:
        """Returns the next change without blocking the event loop of asyncio. Cancelling loses no change. One
        task at a time; another one gets :class:`InUse`.

        Raises :class:`SystemCallFailed`.
        """
    def try_recv(self) -> ChannelChange | None:
        """Returns the next change, or ``None`` if there is none. Raises as :meth:`recv`."""

@final
class Inspector:
    """Shows the providers, clients and channels of this user's processes, and what dead ones have left, as
    ``shm-pool ls`` and ``shm-pool who`` do: those of one ``namespace``, or by default of all in /dev/shm.

    >>> import shm_pool
    >>> from shm_pool.inspect import Inspector
    >>> provider = shm_pool.Provider(namespace="docs-inspect")
    >>> camera = shm_pool.Publisher(provider, "camera")
    >>> report = Inspector("docs-inspect").report()
    >>> [channel.name for channel in report.channels]
    ['camera']
    >>> report.channels[0].provider == report.providers[0].id == provider.id
    True

    Looking changes nothing, and works while a process is stopped or dead. Processes in another PID namespace are not
    shown.
    """
    def __new__(cls, namespace: _In | None = None) -> Self: ...
    def report(self) -> Report:
        """Looks once. The inspector remembers which messages it has seen, for :attr:`PeerReport.oldest_lease` and
        :attr:`ReceiverReport.oldest_borrowed`.

        Raises :class:`SystemCallFailed` if the directory or /proc cannot be read. An object that cannot be read is
        listed with the ``problem``.
        """

@final
class MessageType:
    """The type of a channel's messages, which both sides declare: a name of 1 to 96 bytes, a version, and the
    size of a message in bytes.

    ``version`` is any number that changes when the meaning of the bytes does. A message of a variable length
    has ``size`` bytes, followed by any number of elements of ``element_size`` bytes each. ``align`` is the
    alignment in bytes, as in Rust.

    A receiver that expects a type opens no channel of another one. Neither side checks a message.

    >>> import shm_pool
    >>> pose = shm_pool.MessageType("robot.Pose", version=1, size=24, align=8)
    >>> provider = shm_pool.Provider()
    >>> publisher = shm_pool.Publisher(provider, "docs-typed", message_type=pose)
    >>> shm_pool.Subscriber("docs-typed", message_type=pose).message_type == pose
    True
    >>> newer = shm_pool.MessageType("robot.Pose", version=2, size=24, align=8)
    >>> shm_pool.Subscriber("docs-typed", message_type=newer, timeout=0.01)
    Traceback (most recent call last):
        ...
    shm_pool.errors.InvalidArgument: ...

    Raises :class:`InvalidArgument` if ``align`` is no power of two, or the size too large.
    """
    def __new__(cls, name: str, version: int, size: int, *, align: int = 1, element_size: int = 0) -> Self: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __getnewargs_ex__(self) -> tuple[tuple[str, int, int], dict[str, int]]: ...
    @property
    def align(self) -> int:
        """The alignment in bytes."""
    @property
    def element_size(self) -> int:
        """The bytes of an element, or 0 if there are none."""
    @property
    def name(self) -> str:
        """Its name."""
    @property
    def size(self) -> int:
        """The bytes of a message without its elements."""
    @property
    def version(self) -> int:
        """Its version."""

@final
class _Pending:
    def close(self) -> None: ...
    def fileno(self) -> int: ...
    def poll(self) -> tuple[Any] | None: ...

@disjoint_base
class _SendingEnd:
    """What a sender and a publisher have in common. Each uses the memory of its provider until it is closed itself,
    also when the provider was closed before.
    """
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...
    @property
    def capacity(self) -> int:
        """How many messages may wait to be received."""
    @property
    def max_borrowed(self) -> int:
        """How many buffers a receiver may hold, received or not."""
    @property
    def name(self) -> str:
        """The channel's name."""
    def alloc(self, len: int, *, zeroed: bool = False, timeout: float | None = 0.0) -> Buffer:
        """Allocates a buffer of the provider, as :meth:`Provider.alloc`, also when the provider was closed."""
    def close(self) -> None:
        """Closes this end. A call that waits in another thread, or a task that awaits, raises :class:`Closed`. One that
        waits for memory continues, unless the provider and all other ends of it are closed: then it raises
        :class:`Interrupted`.
        """
    def interrupt(self) -> None:
        """Ends the current wait, or the next one, with :class:`Interrupted`. For other threads."""
    def wait_until_received(self, *, timeout: float | None = None) -> None:
        """Waits until the receivers have received everything. What was sent arrives even without this call.

        Raises :class:`Timeout`, :class:`Disconnected`.
        """
    async def wait_until_received_async(self) -> None:
        """Waits as :meth:`wait_until_received`, without blocking the event loop of asyncio. Meanwhile, other calls
        raise :class:`InUse`.
        """

@final
class Sender(_SendingEnd):
    """Sends messages to one :class:`Receiver`, in this or another process, and loses none of them.

    Creates the channel ``name``: any text without a NUL, such as ``/front/image_raw``; if another one has it,
    waits at most ``timeout`` seconds, by default not at all. It holds ``capacity`` messages that were not
    received (default 256), and the receiver may hold ``max_borrowed`` buffers (2048). ``mode`` is the permission
    bits of the channel (default 0o600). A wait for room spins for ``spin`` seconds before it sleeps, by
    default for up to 20 µs, where that pays. ``message_type`` declares the type of the messages.

    >>> import shm_pool
    >>> provider = shm_pool.Provider()
    >>> sender = shm_pool.Sender(provider, "docs-sender")
    >>> receiver = shm_pool.Receiver("docs-sender")
    >>> sender.send(b"any object with the buffer protocol is copied once")
    >>> buffer = sender.alloc(1 << 20)
    >>> sender.send(buffer)  # a buffer is not
    >>> [len(receiver.recv()) for _ in range(2)]
    [50, 1048576]

    Raises :class:`NameTaken`, :class:`InvalidArgument`, :class:`SystemCallFailed`.
    """
    def __new__(
        cls,
        provider: Provider,
        name: str,
        *,
        timeout: float | None = 0.0,
        capacity: int | None = None,
        max_borrowed: int | None = None,
        mode: int | None = None,
        spin: float | None = None,
        message_type: MessageType | None = None,
    ) -> Self: ...
    @staticmethod
    async def create_async(
        provider: Provider,
        name: str,
        *,
        capacity: int | None = None,
        max_borrowed: int | None = None,
        mode: int | None = None,
        spin: float | None = None,
        message_type: MessageType | None = None,
    ) -> Sender:
        """Creates a sender, waiting until no other one has the name, without blocking the event loop of asyncio. When
        it is cancelled, nothing was created. ``asyncio.wait_for`` limits the wait.

        Raises as :class:`Sender`, except :class:`NameTaken`.
        """
    def send(self, message: _BytesLike, *, tag: bytes | bytearray | None = None, timeout: float | None = None) -> None:
        """Sends a :class:`Buffer`, or a copy of any object's bytes: up to ``MAX_INLINE`` of them
        travel in the channel itself, more in a buffer. Waits at most ``timeout`` seconds for room, and for the memory
        of a copy, by default without limit. ``tag`` is 16 bytes of the user's own, such as a time stamp and a
        number, which the receiver finds in :attr:`Message.tag`.

        Warns with a :class:`CopyWarning` if what it copies is an array in a buffer of the provider.

        Raises :class:`Disconnected` if the receiver has closed or died, :class:`Timeout`,
        :class:`Interrupted`, BufferError as :meth:`Buffer.freeze`, :class:`InvalidArgument` for a
        buffer of another provider. If there is no memory for a copy, it raises :class:`Timeout` after a wait, and
        :class:`PoolExhausted` with ``timeout=0``; otherwise as :meth:`Provider.alloc`.
        """
    async def send_async(self, message: _BytesLike, *, tag: bytes | bytearray | None = None) -> None:
        """Sends as :meth:`send`, and waits for room, and memory for a copy, without blocking the event loop of
        asyncio. When it is cancelled, the message is not sent. One task at a time; another one gets
        :class:`InUse`.

        It waits for memory without limit. Raises as :meth:`send`, except :class:`Timeout` and
        :class:`PoolExhausted`.
        """
    def wait_for_receiver(self, *, timeout: float | None = None) -> None:
        """Waits until a receiver has opened the channel. Raises :class:`Timeout`, :class:`Disconnected`. If a receiver
        of another version of this package was refused, the text names both versions.
        """
    async def wait_for_receiver_async(self) -> None:
        """Waits as :meth:`wait_for_receiver`, without blocking the event loop of asyncio. Meanwhile, other calls
        raise :class:`InUse`.
        """

@final
class Publisher(_SendingEnd):
    """Sends messages to up to ``max_subscribers`` (default 16, at most 64) :class:`Subscriber` objects, which
    may join, leave and die at any time.

    ``on_full`` is what happens when a receiver is behind by ``capacity`` messages (default 256), for those that
    do not choose: :attr:`OnFull.DROP_OLDEST` by default. ``allow_blocking=False`` refuses those
    that choose :attr:`OnFull.BLOCK`. A message waits for those at most ``block_limit`` seconds (default 5):
    then a receiver without room is stalled, and ``on_stall`` says what happens to it, by default
    :attr:`OnStall.SKIP`. With ``joins_in_send=False``, a send connects no receiver that has joined, and disconnects
    none that has closed or died, which takes some 20 system calls for each: :meth:`serve_joins` and the waits for
    receivers do. A new receiver first gets the last ``history`` messages (default 0). A receiver may hold
    ``max_borrowed`` buffers (default 2048), of ``max_bytes_per_receiver`` (default: a quarter of the provider's
    ``max_bytes``). ``timeout``, ``mode``, ``spin`` and ``message_type`` are as for a :class:`Sender`.

    >>> import shm_pool
    >>> provider = shm_pool.Provider()
    >>> publisher = shm_pool.Publisher(provider, "docs-publisher")
    >>> logger = shm_pool.Subscriber("docs-publisher", on_full="block")
    >>> display = shm_pool.Subscriber("docs-publisher", capacity=1)
    >>> for number in range(3):
    ...     buffer = publisher.alloc(1000)
    ...     buffer[0] = number
    ...     sent = publisher.send(buffer)
    >>> sent
    Sent(receivers=2, withdrawn=1, full=0, too_many_borrowed=0, stalled=0)
    >>> newest = display.recv()
    >>> newest[0], newest.missed
    (2, 2)
    >>> logger.recv()[0]
    0

    Raises :class:`NameTaken`, :class:`InvalidArgument`, :class:`SystemCallFailed`.
    """
    def __new__(
        cls,
        provider: Provider,
        name: str,
        *,
        timeout: float | None = 0.0,
        max_subscribers: int | None = None,
        capacity: int | None = None,
        max_borrowed: int | None = None,
        max_bytes_per_receiver: int | None = None,
        on_full: _OnFull | None = None,
        allow_blocking: bool | None = None,
        block_limit: float | None = None,
        on_stall: _OnStall | None = None,
        joins_in_send: bool | None = None,
        history: int | None = None,
        mode: int | None = None,
        spin: float | None = None,
        message_type: MessageType | None = None,
    ) -> Self: ...
    @staticmethod
    async def create_async(
        provider: Provider,
        name: str,
        *,
        max_subscribers: int | None = None,
        capacity: int | None = None,
        max_borrowed: int | None = None,
        max_bytes_per_receiver: int | None = None,
        on_full: _OnFull | None = None,
        allow_blocking: bool | None = None,
        block_limit: float | None = None,
        on_stall: _OnStall | None = None,
        joins_in_send: bool | None = None,
        history: int | None = None,
        mode: int | None = None,
        spin: float | None = None,
        message_type: MessageType | None = None,
    ) -> Publisher:
        """Creates a publisher, waiting until no other one has the name, without blocking the event loop of asyncio.
        When it is cancelled, nothing was created. ``asyncio.wait_for`` limits the wait.

        >>> import asyncio, shm_pool
        >>> async def main():
        ...     with shm_pool.Provider() as provider:
        ...         publisher = await shm_pool.Publisher.create_async(provider, "docs-create")
        ...         subscriber = await shm_pool.Subscriber.open_async("docs-create")
        ...         publisher.send(b"a sample")
        ...         return bytes(await subscriber.recv_async())
        >>> asyncio.run(main())
        b'a sample'

        Raises as :class:`Publisher`, except :class:`NameTaken`.
        """
    def disconnect(self, receiver: ReceiverState | int) -> bool:
        """Disconnects a receiver, given by its state or its ``id``. Returns ``False`` if it is not connected.

        The messages that it has not received are withdrawn, and its next receive raises :class:`Evicted`. It
        may read on what it has received.

        >>> import shm_pool
        >>> provider = shm_pool.Provider()
        >>> publisher = shm_pool.Publisher(provider, "docs-disconnect")
        >>> subscriber = shm_pool.Subscriber("docs-disconnect")
        >>> publisher.wait_for_receivers()
        >>> [publisher.disconnect(receiver) for receiver in publisher.receivers()]
        [True]
        """
    def receivers(self) -> list[ReceiverState]:
        """Returns the state of each connected receiver. One that has joined is connected by the next wait for receivers
        or :meth:`serve_joins`, or by the next send, unless ``joins_in_send=False``.
        """
    def serve_joins(self) -> bool:
        """Connects one receiver that has joined, or disconnects those that have closed or died. Returns whether
        it did: then call it again. A send does that, too, unless ``joins_in_send=False``:

        >>> import shm_pool
        >>> provider = shm_pool.Provider()
        >>> publisher = shm_pool.Publisher(provider, "docs-joins", joins_in_send=False)
        >>> subscriber = shm_pool.Subscriber("docs-joins")
        >>> publisher.send(b"").receivers
        0
        >>> while publisher.serve_joins():
        ...     pass
        >>> publisher.send(b"").receivers
        1
        """
    def send(self, message: _BytesLike, *, tag: bytes | bytearray | None = None, timeout: float | None = None) -> Sent:
        """Sends a :class:`Buffer` to all receivers without a copy, or one copy of any object's bytes.
        Returns to how many. Waits at most ``timeout`` seconds, by default for the ``block_limit``, for
        receivers with :attr:`OnFull.BLOCK`; if one makes no room, no receiver gets the message. A
        receiver that has made no room for the ``block_limit`` delays no further message until it does.
        ``tag`` is as for :meth:`Sender.send`.

        A copy first waits for memory, within the same ``timeout``, by default also at most for the ``block_limit``.
        If there is none, it raises :class:`Timeout` after the wait, and :class:`PoolExhausted` if it may not wait,
        with ``timeout=0`` or a ``block_limit`` of 0.

        Warns with a :class:`CopyWarning` if what it copies is an array in a buffer of the provider.

        Raises as :meth:`Sender.send`, but not :class:`Disconnected`.
        """
    async def send_async(self, message: _BytesLike, *, tag: bytes | bytearray | None = None) -> Sent:
        """Sends as :meth:`send`, and waits for room, and memory for a copy, without blocking the event loop of
        asyncio. When it is cancelled, the message is not sent. One task at a time; another one gets
        :class:`InUse`.

        It waits for memory without limit. Raises as :meth:`send`, except :class:`Timeout` and
        :class:`PoolExhausted`.
        """
    def wait_for_receivers(self, receivers: int = 1, *, timeout: float | None = None) -> None:
        """Waits until this many receivers have joined. Raises :class:`Timeout`. If a receiver of another version of
        this package was refused, the text names both versions.
        """
    async def wait_for_receivers_async(self, receivers: int = 1) -> None:
        """Waits as :meth:`wait_for_receivers`, without blocking the event loop of asyncio. Meanwhile, other calls
        raise :class:`InUse`.
        """

@final
class Sent:
    """What became of a message that a :class:`Publisher` has sent: the number of ``receivers`` that it
    was sent to, of those that lost an older message so that there is room for the next one
    (``withdrawn``), and of those that were ``skipped``, in all and by reason: behind by their
    capacity (``full``), holding as many buffers or bytes as they may (``too_many_borrowed``), or
    :attr:`OnFull.BLOCK` without room for too long (``stalled``).
    """
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    @property
    def full(self) -> int: ...
    @property
    def receivers(self) -> int: ...
    @property
    def skipped(self) -> int: ...
    @property
    def stalled(self) -> int: ...
    @property
    def too_many_borrowed(self) -> int: ...
    @property
    def withdrawn(self) -> int: ...

@final
class Missed:
    """How many messages of a :class:`Publisher` a :class:`Subscriber` has missed, in ``total`` and by reason: sent to
    it and ``withdrawn``, to make room for newer ones or as it was disconnected; skipped because it was behind by its
    capacity (``full``), held as many buffers or bytes as it may (``too_many_borrowed``), or had made no room for too
    long (``stalled``); or sent before the system let the publisher connect it (``not_connected``).
    """
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    @property
    def full(self) -> int: ...
    @property
    def not_connected(self) -> int: ...
    @property
    def stalled(self) -> int: ...
    @property
    def too_many_borrowed(self) -> int: ...
    @property
    def total(self) -> int: ...
    @property
    def withdrawn(self) -> int: ...

@final
class ReceiverState:
    """A snapshot of a receiver of a :class:`Publisher`: the id of its ``process``, as that states it, in its own PID
    namespace; how many messages wait for it, how many buffers it holds (``borrowed``), how many messages it has
    ``missed``, and whether it ``is_stalled``: messages are skipped until it makes room.
    """
    @property
    def capacity(self) -> int: ...
    @property
    def id(self) -> int: ...
    @property
    def is_stalled(self) -> bool: ...
    @property
    def borrowed(self) -> int: ...
    @property
    def missed(self) -> int: ...
    @property
    def on_full(self) -> OnFull: ...
    @property
    def process(self) -> int | None: ...
    @property
    def waiting(self) -> int: ...

@final
class ConnectionChange:
    """What :meth:`Subscriber.recv_event` and :meth:`Receiver.recv_event` return besides messages: a sender or
    publisher was connected, whose messages are those of this ``provider``; or, if not ``is_connected``, it has closed
    or died, and everything that it sent was received.
    """
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    @property
    def is_connected(self) -> bool: ...
    @property
    def provider(self) -> int | None: ...

@disjoint_base
class _ReceivingEnd:
    """What a receiver and a subscriber have in common."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Message: ...
    def __aiter__(self) -> Self: ...
    async def __anext__(self) -> Message: ...
    @property
    def capacity(self) -> int:
        """How many messages may wait to be received."""
    @property
    def is_connected(self) -> bool:
        """Whether the channel is open, and the other side knows this end."""
    @property
    def last_error(self) -> Error | None:
        """Why the channel could not be opened at the last attempt, while it is not open, as the exception: for example
        :class:`NotFound`, or :class:`NameTaken` if a channel has its receiver. This end waits until it can. ``None``
        if a receive has raised it.

        >>> import shm_pool
        >>> subscriber = shm_pool.Subscriber("docs-last-error")
        >>> isinstance(subscriber.last_error, shm_pool.NotFound)
        True
        """
    @property
    def max_borrowed(self) -> int:
        """How many buffers a receiver may hold, received or not."""
    @property
    def message_type(self) -> MessageType | None:
        """The type that the other side has declared; ``None`` if it has declared none, or there is no other side."""
    @property
    def missed(self) -> Missed:
        """How many messages of the present publisher were missed, by reason. Those of a :class:`Sender` are not.
        :attr:`Message.missed` is the number before one message.

        >>> import shm_pool
        >>> provider = shm_pool.Provider()
        >>> publisher = shm_pool.Publisher(provider, "docs-missed")
        >>> subscriber = shm_pool.Subscriber("docs-missed", capacity=1)
        >>> for number in range(3):
        ...     sent = publisher.send(bytes(number))
        >>> subscriber.missed
        Missed(withdrawn=2, full=0, too_many_borrowed=0, stalled=0, not_connected=0)
        """
    @property
    def name(self) -> str:
        """The channel's name."""
    @property
    def on_full(self) -> OnFull | None:
        """What happens when ``capacity`` messages wait; ``None`` while there is no publisher."""
    @property
    def provider(self) -> int | None:
        """The number of the provider of the messages, as :attr:`Provider.id`; ``None`` while there is no other side."""
    def close(self) -> None:
        """Closes this end. Messages that were received stay valid. A call that waits in another thread, or a
        task that awaits, raises :class:`Closed`.
        """
    def fileno(self) -> int:
        """Returns a descriptor for ``select``, ``selectors`` and other event loops. It is readable
        whenever a message may have arrived: then call :meth:`try_recv` until it returns ``None``.
        """
    def interrupt(self) -> None:
        """Ends the current wait, or the next one, with :class:`Interrupted`. For other threads."""
    def recv(self, *, timeout: float | None = None) -> Message:
        """Receives the next message, waiting at most ``timeout`` seconds, by default without limit.

        Raises :class:`Timeout`, :class:`Disconnected` if the other side has closed or died, all its
        messages were received, and the end does not wait for the next one, :class:`Evicted`,
        :class:`TooManyBorrowed`, :class:`MessageLost`, :class:`Interrupted`, :class:`SystemCallFailed`. An end that
        opens the channel of a later sender or publisher raises as when it was made, too: :class:`InvalidArgument`
        if that is of another type, and :class:`OtherVersion`.
        """
    async def recv_async(self) -> Message:
        """Receives the next message without blocking the event loop of asyncio.

        Cancelling loses no message. One task at a time; another one gets :class:`InUse`.

        >>> import asyncio, shm_pool
        >>> async def main():
        ...     with shm_pool.Provider() as provider, shm_pool.Sender(provider, "docs-async") as sender:
        ...         receiver = shm_pool.Receiver("docs-async")
        ...         sender.send(b"a sample")
        ...         return bytes(await receiver.recv_async())
        >>> asyncio.run(main())
        b'a sample'

        Raises as :meth:`recv`, except :class:`Timeout` and :class:`Interrupted`.
        """
    def recv_event(self, *, timeout: float | None = None) -> Message | ConnectionChange:
        """Receives the next event, waiting as :meth:`recv`: a message, or the :class:`ConnectionChange` before the
        first message of a sender or publisher, or after the last one. The other methods that receive skip the
        changes.

        >>> import shm_pool
        >>> provider = shm_pool.Provider()
        >>> subscriber = shm_pool.Subscriber("docs-events")
        >>> with shm_pool.Publisher(provider, "docs-events", history=1) as publisher:
        ...     sent = publisher.send(b"a sample")
        ...     change = subscriber.recv_event()
        ...     publisher.wait_for_receivers()
        >>> change.is_connected, change.provider == provider.id
        (True, True)
        >>> bytes(subscriber.recv_event())
        b'a sample'
        >>> subscriber.recv_event()
        ConnectionChange(is_connected=False, provider=None)

        Raises as :meth:`recv`.
        """
    async def recv_event_async(self) -> Message | ConnectionChange:
        """Receives the next event as :meth:`recv_event`, and waits as :meth:`recv_async`."""
    def try_recv_event(self) -> Message | ConnectionChange | None:
        """Receives the next event, or returns ``None`` if there is none. Raises as :meth:`recv`."""
    def try_recv(self) -> Message | None:
        """Receives the next message, or returns ``None`` if none has arrived. Raises as :meth:`recv`."""
    def warm(self) -> int:
        """Maps all memory of the sender's provider now. Returns its bytes."""

@final
class Receiver(_ReceivingEnd):
    """Receives the messages of a :class:`Sender`.

    Opens the channel ``name``, waiting at most ``timeout`` seconds for it to exist. Its provider is in
    ``namespace``, by default the default one. With ``on_end``, by default :attr:`OnEnd.RETURN`, it may wait for
    the next sender when one has ended, and be made before there is one. A wait spins for ``spin`` seconds
    before it sleeps, by default for up to 20 µs, where that pays. With a ``message_type``, it opens no channel
    of another type.

    A receiver is an iterator, and under asyncio an asynchronous iterator, that ends when the sender has
    closed or died:

    >>> import shm_pool
    >>> provider = shm_pool.Provider()
    >>> sender = shm_pool.Sender(provider, "docs-receiver")
    >>> receiver = shm_pool.Receiver("docs-receiver")
    >>> sender.send(b"first"), sender.send(b"second"), sender.close()
    (None, None, None)
    >>> [bytes(message) for message in receiver]
    [b'first', b'second']

    Raises :class:`NotFound`, :class:`NameTaken`, :class:`InvalidArgument` (also for the channel of a
    publisher, or of another type), :class:`OtherVersion`, :class:`SystemCallFailed`.
    """
    def __new__(
        cls,
        name: str,
        namespace: _In | None = None,
        *,
        timeout: float | None = 0.0,
        on_end: _OnEnd | None = None,
        spin: float | None = None,
        message_type: MessageType | None = None,
    ) -> Self: ...
    @staticmethod
    async def open_async(
        name: str,
        namespace: _In | None = None,
        *,
        on_end: _OnEnd | None = None,
        spin: float | None = None,
        message_type: MessageType | None = None,
    ) -> Receiver:
        """Waits until the channel exists, without blocking the event loop of asyncio, and returns its receiver. When
        it is cancelled, nothing was opened. ``asyncio.wait_for`` limits the wait.

        Raises as :class:`Receiver`, except :class:`NotFound`.
        """

@final
class Subscriber(_ReceivingEnd):
    """Receives the messages of a :class:`Publisher`, and by default of each later one of that name.

    Without a ``timeout``, there need not be a publisher yet: the subscriber joins it while it receives.
    With one, it waits at most so many seconds for a publisher. ``capacity``, ``max_borrowed`` and ``on_full`` are
    how many messages it may be behind, how many buffers it may hold, and what happens when it falls behind;
    by default as the publisher says. ``namespace``, ``spin`` and ``message_type`` are those of a
    :class:`Receiver`.

    When a publisher has ended, by default it waits for the next one, so an iteration over it never ends. With
    ``on_end="return"`` it raises :class:`Disconnected`, and iterations end. An iteration over a subscriber that
    its publisher has disconnected raises :class:`Evicted`.

    >>> import shm_pool
    >>> subscriber = shm_pool.Subscriber("docs-subscriber")
    >>> subscriber.try_recv()
    >>> provider = shm_pool.Provider()
    >>> publisher = shm_pool.Publisher(provider, "docs-subscriber", history=1)
    >>> publisher.send(b"a sample").receivers
    0
    >>> subscriber.try_recv()
    >>> publisher.wait_for_receivers()
    >>> bytes(subscriber.recv())
    b'a sample'

    Raises :class:`NotFound`, :class:`InvalidArgument` (also for the channel of a sender, or of another type),
    :class:`OtherVersion`, :class:`SystemCallFailed`, and :class:`Error` if the publisher has ``max_subscribers``.
    """
    def __new__(
        cls,
        name: str,
        namespace: _In | None = None,
        *,
        timeout: float | None = 0.0,
        capacity: int | None = None,
        max_borrowed: int | None = None,
        on_full: _OnFull | None = None,
        on_end: _OnEnd | None = None,
        spin: float | None = None,
        message_type: MessageType | None = None,
    ) -> Self: ...
    @staticmethod
    async def open_async(
        name: str,
        namespace: _In | None = None,
        *,
        capacity: int | None = None,
        max_borrowed: int | None = None,
        on_full: _OnFull | None = None,
        on_end: _OnEnd | None = None,
        spin: float | None = None,
        message_type: MessageType | None = None,
    ) -> Subscriber:
        """Waits until there is a publisher, without blocking the event loop of asyncio, and returns a subscriber that
        has joined it. When it is cancelled, nothing was opened. ``asyncio.wait_for`` limits the wait.

        Raises as :class:`Subscriber`, except :class:`NotFound`.
        """
