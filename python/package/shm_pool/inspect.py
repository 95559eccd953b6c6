"""Shows providers, clients and channels of all processes of this user, and what dead ones have left.

>>> import shm_pool
>>> from shm_pool.inspect import Inspector
>>> provider = shm_pool.Provider(namespace="docs-who")
>>> camera = shm_pool.Publisher(provider, "camera")
>>> subscriber = shm_pool.Subscriber("camera", "docs-who")
>>> camera.send(bytes(1000)).receivers
1
>>> for channel in Inspector("docs-who").report().channels:
...     for receiver in channel.receivers:
...         print(channel.name, channel.state, receiver.waiting, receiver.bytes_borrowed)
camera alive 1 1000

Sizes are in bytes, and durations in seconds. ``dataclasses.asdict`` converts a report to dictionaries.
"""

from dataclasses import dataclass

from ._enum import StrEnum
from ._native import Inspector, MessageType
from .options import OnFull

__all__ = [
    "ChannelReport",
    "ClassReport",
    "DamagedReceiver",
    "Inspector",
    "ObjectState",
    "Orphans",
    "PeerReport",
    "Process",
    "ProviderReport",
    "ReceiverReport",
    "RemovedName",
    "Report",
    "SegmentReport",
]


class ObjectState(StrEnum):
    """Whether the process that has made an object is alive."""

    ALIVE = "alive"
    """It is alive."""
    STARTING = "starting"
    """It is alive, and still makes the object."""
    DEAD = "dead"
    """It is dead. A sweep removes the object, unless it still has a reader."""
    UNUSABLE = "unusable"
    """The object is not what its name says, or has another version. The ``problem`` says why."""


@dataclass(frozen=True)
class Process:
    """A process: its ``id``, its ``command`` line, shortened, and whether a signal or a debugger has stopped it."""

    id: int
    command: str
    is_stopped: bool


@dataclass(frozen=True)
class Orphans:
    """What :meth:`~shm_pool.Namespace.sweep` would remove: the number of ``objects`` and of their ``bytes``."""

    objects: int
    bytes: int


@dataclass(frozen=True)
class SegmentReport:
    """A segment of a provider: its ``serial`` number, its length, the memory that it holds, and the processes that
    map it, its owner among them."""

    serial: int
    len: int
    bytes_held: int
    mapped_by: list[Process]


@dataclass(frozen=True)
class ClassReport:
    """Messages of one size class: the ``size`` of its chunks, the number of ``messages``, and their total length."""

    size: int
    messages: int
    bytes: int


@dataclass(frozen=True)
class PeerReport:
    """A client of a provider: the messages that it leases and their total length, its open ``views`` and unclaimed
    ``grants``, and for how long its oldest lease has been seen. :meth:`~shm_pool.Provider.disconnect` takes its
    ``id``, which is ``None`` while the slot changes hands."""

    slot: int
    id: bytes | None
    is_refused: bool
    is_alive: bool
    process: Process | None
    messages: int
    bytes: int
    views: int
    grants: int
    oldest_lease: float | None


@dataclass(frozen=True)
class ProviderReport:
    """A provider: its process (``owner``), its memory, and how much of it clients lease and receivers borrow."""

    prefix: str
    id: int
    state: ObjectState
    problem: str | None
    owner: Process | None
    bytes_held: int
    bytes_mapped: int
    segments: list[SegmentReport]
    max_shared: int
    bytes_leased: int
    leased: list[ClassReport]
    bytes_borrowed: int
    borrowed: list[ClassReport]
    peers: list[PeerReport]
    is_orphan: bool
    orphans: Orphans


@dataclass(frozen=True)
class ReceiverReport:
    """A receiver of a channel: the messages that were ``sent`` to it, wait for it and that it has ``missed``, the
    buffers that it holds (``borrowed``) and their total length, and for how long the oldest one has been seen. The
    ``id`` is :attr:`ReceiverState.id <shm_pool.ReceiverState.id>` of a publisher's receiver."""

    id: int | None
    is_alive: bool
    process: Process | None
    on_full: OnFull
    capacity: int
    max_borrowed: int
    borrowed: int
    bytes_borrowed: int
    oldest_borrowed: float | None
    sent: int
    waiting: int
    missed: int
    is_connected: bool
    is_evicted: bool
    bytes_held: int
    is_orphan: bool


@dataclass(frozen=True)
class DamagedReceiver:
    """An object that has the name of one shared by a publisher and a receiver, but cannot be read."""

    id: int
    reason: str
    is_orphan: bool


@dataclass(frozen=True)
class ChannelReport:
    """A channel: its provider, the process of its ``sender`` or publisher, and its ``receivers``; of a sender also the
    place for one that has not connected."""

    prefix: str
    name: str
    provider: int | None
    state: ObjectState
    problem: str | None
    sender: Process | None
    is_publisher: bool
    message_type: MessageType | None
    receivers: list[ReceiverReport]
    damaged: list[DamagedReceiver]
    is_orphan: bool
    orphans: Orphans


@dataclass(frozen=True)
class RemovedName:
    """An object whose ``process`` is alive, but whose name another process has removed: by hand, or as systemd's
    ``RemoveIPC`` does at the user's last logout. No other process can open it, so its process has to make a new one.
    ``path`` is the one that it had."""

    path: str
    process: Process


@dataclass(frozen=True)
class Report:
    """What :meth:`Inspector.report` returns: the ``directory``, its file system's free bytes if known, the providers
    and channels, the number of objects of ``others`` (other users) and of ``hidden_processes``, which this user may
    not inspect, what a sweep would remove (``orphans``), and the objects in use whose names were ``removed``."""

    directory: str
    free_bytes: int | None
    providers: list[ProviderReport]
    channels: list[ChannelReport]
    others: int
    hidden_processes: int
    orphans: Orphans
    removed: list[RemovedName]
