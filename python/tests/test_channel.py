"""Senders, publishers and receivers within one process."""

import asyncio
import os
import select
import threading
from pathlib import Path

import numpy as np
import pytest

import shm_pool
from shm_pool import MessageType, OnEnd, OnFull, OnStall, Publisher, Receiver, Sender, Subscriber


def test_iteration_ends_with_sender(provider, prefix):
    sender, receiver = Sender(provider, "pair"), Receiver("pair", prefix)
    for number in range(3):
        sender.send(bytes([number]) * 100)
    sender.wait_for_receiver(timeout=10)
    sender.close()
    assert [bytes(message)[0] for message in receiver] == [0, 1, 2]
    with pytest.raises(ConnectionError, match="closed or died"):
        receiver.recv()
    receiver.close()


def test_no_message(provider, prefix):
    with Sender(provider, "pair"), Receiver("pair", prefix) as receiver:
        assert receiver.try_recv() is None
        with pytest.raises(shm_pool.Timeout, match="no message has arrived"):
            receiver.recv(timeout=0)
        with pytest.raises(TimeoutError, match="timed out"):
            receiver.recv(timeout=0.01)


def test_no_room(provider, prefix):
    with Sender(provider, "pair", capacity=2) as sender, Receiver("pair", prefix) as receiver:
        with pytest.raises(shm_pool.Timeout, match="full"):
            for _ in range(10):
                sender.send(bytes(100), timeout=0)
        with pytest.raises(shm_pool.Timeout, match="timed out"):
            sender.send(b"short", timeout=0.01)
        receiving = threading.Timer(0.01, lambda: [receiver.recv(), receiver.recv()])
        receiving.start()
        sender.send(bytes(100), timeout=10)
        receiving.join()


def test_receiver_closes(provider, prefix):
    with Sender(provider, "pair") as sender:
        Receiver("pair", prefix).close()
        for message in b"short", bytes(100), provider.alloc(100):
            with pytest.raises(shm_pool.Disconnected):
                sender.send(message)


@pytest.mark.parametrize("spin", [None, 0, 1e-5, float("inf")])
def test_spin(provider, prefix, spin):
    with Sender(provider, "pair", spin=spin) as sender, Receiver("pair", prefix, spin=spin) as receiver:
        sender.send(b"one")
        assert bytes(receiver.recv()) == b"one"
    with Publisher(provider, "pair", spin=spin) as publisher, Subscriber("pair", prefix, spin=spin) as receiver:
        publisher.send(b"two")
        assert bytes(receiver.recv()) == b"two"


@pytest.mark.parametrize("spin", [-1, float("nan")])
def test_spin_out_of_range(provider, prefix, spin):
    for create in Sender, Publisher:
        with pytest.raises(shm_pool.InvalidArgument, match="spin is"):
            create(provider, "pair", spin=spin)
    with pytest.raises(shm_pool.InvalidArgument, match="spin is"):
        Receiver("pair", prefix, spin=spin)


def test_names(provider, prefix):
    with pytest.raises(FileNotFoundError, match="nothing"):
        Receiver("nothing", prefix)
    with pytest.raises(shm_pool.NotFound):
        Receiver("nothing", prefix, timeout=0.01)
    for name in "", "a\0b", "x" * 300:
        with pytest.raises(shm_pool.InvalidArgument, match="bytes of a file name"):
            Sender(provider, name)
    with Sender(provider, "pair") as sender, pytest.raises(FileExistsError):
        Sender(provider, "pair")
    with pytest.raises(shm_pool.Closed):
        sender.send(b"")


@pytest.mark.parametrize("name", ["/front/image_raw", "robot/*/pose", "a.b", "Zürich"])
def test_any_name(provider, prefix, name):
    with Publisher(provider, name) as publisher, Subscriber(name, prefix) as subscriber:
        publisher.send(b"message")
        assert bytes(subscriber.recv()) == b"message"


def test_waits_for_channel(provider, prefix):
    senders = []
    creating = threading.Timer(0.01, lambda: senders.append(Sender(provider, "pair")))
    creating.start()
    Receiver("pair", prefix, timeout=None).close()
    creating.join()


def test_other_provider(provider, prefix):
    with Sender(provider, "pair") as sender, shm_pool.Provider(namespace=prefix) as other:
        with pytest.raises(shm_pool.InvalidArgument, match="belongs to provider"):
            sender.send(other.alloc(100))


def test_publisher(provider, prefix):
    with Publisher(provider, "one-to-many") as publisher:
        assert publisher.send(bytes(100)).receivers == 0
        logger = Subscriber("one-to-many", prefix, on_full=OnFull.BLOCK)
        display = Subscriber("one-to-many", prefix, capacity=1)
        publisher.wait_for_receivers(2, timeout=10)
        for number in range(5):
            sent = publisher.send(np.full(1000, number, np.uint8))
            assert (sent.receivers, sent.skipped) == (2, 0)
        assert sent == publisher.send(bytes(1000)) and sent.withdrawn == 1
        newest = display.recv()
        assert (memoryview(newest)[0], newest.missed) == (0, 5)
        assert [memoryview(logger.recv())[0] for _ in range(6)] == [*range(5), 0]
        states = {state.on_full: state for state in publisher.receivers()}
        assert states[OnFull.DROP_OLDEST].missed == 5 and states[OnFull.DROP_OLDEST].capacity == 1
        assert states[OnFull.BLOCK].missed == 0 and not states[OnFull.BLOCK].is_stalled
        assert logger.on_full == OnFull.BLOCK and display.on_full != OnFull.BLOCK
        display.close()
        logger.close()
        assert publisher.receivers() == []


def test_holds_too_much(provider, prefix):
    with Publisher(provider, "one-to-many", max_borrowed=2) as publisher:
        with Subscriber("one-to-many", prefix, on_full=OnFull.DROP_NEWEST) as receiver:
            for _ in range(2):
                publisher.send(bytes(100))
            kept = [receiver.recv(timeout=10) for _ in range(2)]
            sent = publisher.send(bytes(100))
            assert (sent.receivers, sent.skipped, sent.too_many_borrowed) == (0, 1, 1)
            assert repr(sent) == "Sent(receivers=0, withdrawn=0, full=0, too_many_borrowed=1, stalled=0)"
            with pytest.raises(shm_pool.TooManyBorrowed, match="release some"):
                receiver.recv()
            kept.clear()
            assert publisher.send(bytes(100)).receivers == 1
            assert receiver.recv(timeout=10).missed == 1


def test_missed_by_reason(provider, prefix):
    with Publisher(provider, "one-to-many", max_borrowed=2, block_limit=0) as publisher:
        newest = Subscriber("one-to-many", prefix, capacity=1)
        oldest = Subscriber("one-to-many", prefix, capacity=1, on_full="drop_newest")
        holding = Subscriber("one-to-many", prefix, on_full="drop_newest")
        slow = Subscriber("one-to-many", prefix, capacity=1, on_full="block")
        ends = newest, oldest, holding, slow
        assert [end.missed.total for end in ends] == [0] * 4
        publisher.wait_for_receivers(4, timeout=60)
        for _ in range(4):
            publisher.send(bytes(100))
        assert newest.missed.withdrawn == newest.missed.total == 3
        assert oldest.missed.full == oldest.missed.total > 0
        assert holding.missed.too_many_borrowed == holding.missed.total == 2
        assert slow.missed.stalled == slow.missed.total > 0
        assert newest.missed == newest.missed != holding.missed and newest.missed.not_connected == 0
        assert repr(holding.missed) == (
            "Missed(withdrawn=0, full=0, too_many_borrowed=2, stalled=0, not_connected=0)"
        )
        assert newest.recv(timeout=60).missed == 3
        states = publisher.receivers()
        assert {state.missed for state in states} == {end.missed.total for end in ends}
        assert {state.process for state in states} == {os.getpid()}
        for end in ends:
            end.close()
    with Sender(provider, "pair") as sender, Receiver("pair", prefix) as receiver:
        sender.send(b"")
        assert receiver.missed.total == 0


def test_joins_in_send(provider, prefix):
    with Publisher(provider, "one-to-many", joins_in_send=False) as publisher:
        with Subscriber("one-to-many", prefix):
            assert publisher.send(b"").receivers == 0 and publisher.receivers() == []
            while publisher.serve_joins():
                pass
            assert publisher.send(b"").receivers == 1
        publisher.send(b"")
        assert publisher.serve_joins() and publisher.receivers() == []
    options = {"joins_in_send": False, "history": 1}
    with asyncio.run(Publisher.create_async(provider, "one-to-many", **options)) as publisher:
        with Subscriber("one-to-many", prefix):
            assert publisher.send(b"").receivers == 0


def test_other_side(provider, prefix):
    """What a receiving end says of the other side."""
    for create, receive in (Sender, Receiver), (Publisher, Subscriber):
        with receive("side", prefix, on_end=OnEnd.WAIT) as receiver:
            assert receiver.provider is None
            assert receiver.try_recv() is None
            error = receiver.last_error
            assert isinstance(error, shm_pool.NotFound) and "does not exist" in str(error)
            with create(provider, "side") as end:
                assert receiver.try_recv() is None
                assert receiver.provider == provider.id and receiver.last_error is None
                end.send(b"last")
            receiver.try_recv()
            assert receiver.try_recv() is None and receiver.provider is None
    with Receiver("side", prefix, on_end=OnEnd.WAIT) as late, Sender(provider, "side"), Receiver("side", prefix):
        assert late.try_recv() is None
        assert isinstance(late.last_error, shm_pool.NameTaken) and not late.is_connected
    with pytest.raises(shm_pool.Closed):
        late.last_error


def test_history(provider, prefix):
    with Publisher(provider, "one-to-many", history=2) as publisher:
        for number in range(5):
            publisher.send(bytes([number]))
        with Subscriber("one-to-many", prefix) as receiver:
            publisher.wait_for_receivers(timeout=10)
            assert [bytes(receiver.recv(timeout=10)) for _ in range(2)] == [b"\3", b"\4"]


def test_subscriber_outlives_publishers(provider, prefix):
    with Subscriber("one-to-many", prefix) as subscriber:
        assert subscriber.try_recv() is None and subscriber.on_full is None and not subscriber.is_connected
        for number in range(3):
            with Publisher(provider, "one-to-many") as publisher:
                assert subscriber.try_recv() is None
                publisher.wait_for_receivers(timeout=10)
                publisher.send(bytes([number]))
                assert bytes(subscriber.recv(timeout=10)) == bytes([number])
        assert subscriber.try_recv() is None


def test_ends_with_its_publisher(provider, prefix):
    with pytest.raises(shm_pool.NotFound):
        Subscriber("one-to-many", prefix, timeout=0.01)
    publisher = Publisher(provider, "one-to-many")
    with Subscriber("one-to-many", prefix, on_end=OnEnd.RETURN) as subscriber:
        publisher.wait_for_receivers(timeout=10)
        publisher.send(b"last")
        publisher.close()
        assert [bytes(message) for message in subscriber] == [b"last"]
        with pytest.raises(shm_pool.Disconnected):
            subscriber.recv()


def test_receiver_follows_senders(provider, prefix):
    with Receiver("pair", prefix, on_end=OnEnd.WAIT) as receiver:
        for number in range(3):
            with Sender(provider, "pair") as sender:
                sender.send(bytes([number]))
                assert bytes(receiver.recv(timeout=10)) == bytes([number])


def test_channel_of_other_kind(provider, prefix):
    with Sender(provider, "pair"), Publisher(provider, "one-to-many"):
        with pytest.raises(shm_pool.InvalidArgument, match="Subscriber"):
            Receiver("one-to-many", prefix)
        with pytest.raises(shm_pool.InvalidArgument, match="Receiver"):
            Subscriber("pair", prefix)


def test_blocking_refused(provider, prefix):
    with Publisher(provider, "one-to-many", allow_blocking=False, on_full=OnFull.DROP_NEWEST):
        with pytest.raises(shm_pool.Error, match="waits for no receiver"):
            Subscriber("one-to-many", prefix, on_full=OnFull.BLOCK)
        with Subscriber("one-to-many", prefix) as receiver:
            assert receiver.on_full == OnFull.DROP_NEWEST


def test_many_receivers_wait(provider, prefix):
    with Publisher(provider, "one-to-many", max_subscribers=1) as publisher:
        with Subscriber("one-to-many", prefix):
            with pytest.raises(shm_pool.Error, match="1"):
                Subscriber("one-to-many", prefix, timeout=0.01)
            with pytest.raises(shm_pool.InvalidArgument, match="2 receivers"):
                publisher.wait_for_receivers(2)


def in_thread(call):
    """Calls in a thread, and returns a function that waits for its exception."""
    raised = []

    def body():
        try:
            call()
        except shm_pool.Error as error:
            raised.append(type(error))

    thread = threading.Thread(target=body)
    thread.start()

    def join():
        thread.join()
        return raised

    return join


def test_close_ends_wait(provider, prefix):
    with Sender(provider, "pair"):
        receiver = Receiver("pair", prefix)
        join = in_thread(receiver.recv)
        receiver.close()
        assert join() == [shm_pool.Closed]


def test_interrupt(provider, prefix):
    with Sender(provider, "pair"), Receiver("pair", prefix) as receiver:
        join = in_thread(receiver.recv)
        receiver.interrupt()
        assert join() == [shm_pool.Interrupted]


def test_one_thread_at_a_time(provider, prefix):
    with Sender(provider, "pair") as sender, Receiver("pair", prefix) as receiver:
        join = in_thread(receiver.recv)
        with pytest.raises(shm_pool.InUse):
            while True:
                receiver.capacity
        sender.send(b"")
        assert join() == []


def test_gil_is_free_while_waiting(provider, prefix):
    with Sender(provider, "pair") as sender, Receiver("pair", prefix) as receiver:
        sending = threading.Thread(target=lambda: sender.send(b"from another thread"))
        sending.start()
        assert bytes(receiver.recv(timeout=10)) == b"from another thread"
        sending.join()


def test_event_loop(provider, prefix):
    with Sender(provider, "pair") as sender, Receiver("pair", prefix) as receiver:
        descriptor = receiver.fileno()
        assert receiver.fileno() == descriptor

        def is_readable():
            return select.select([descriptor], [], [], 0)[0] == [descriptor]

        def drain():
            # A wake-up that comes with a message is cleared by the second call.
            messages = []
            while is_readable():
                if (message := receiver.try_recv()) is not None:
                    messages.append(bytes(message))
            return messages

        assert drain() == []
        sender.send(b"first")
        sender.send(b"second")
        select.select([descriptor], [], [])
        received = []
        while len(received) < 2:
            received += drain()
        assert received == [b"first", b"second"]
        # A wait in between does not lose the next wake-up.
        sending = threading.Timer(0.05, sender.send, [b"third"])
        sending.start()
        assert bytes(receiver.recv(timeout=10)) == b"third"
        sending.join()
        drain()
        sender.send(b"fourth")
        select.select([descriptor], [], [])
        while not (received := drain()):
            pass
        assert received == [b"fourth"]


# ---- options --------------------------------------------------------------------------------------


def test_choices_are_enums(provider, prefix):
    assert [choice.name for choice in OnFull] == ["BLOCK", "DROP_NEWEST", "DROP_OLDEST"]
    assert list(OnStall) == ["skip", "disconnect"] and list(OnEnd) == ["wait", "return"]
    with Publisher(provider, "one-to-many", on_full="drop_newest", on_stall="disconnect"):
        with Subscriber("one-to-many", prefix, on_end="return") as receiver:
            assert receiver.on_full is OnFull.DROP_NEWEST
    with pytest.raises(shm_pool.InvalidArgument, match='"later" is no OnFull: it is one of "block", '):
        Publisher(provider, "one-to-many", on_full="later")
    with pytest.raises(TypeError, match="on_full"):
        Publisher(provider, "one-to-many", on_full=1)
    calls = [
        (OnFull, "on_full", lambda **options: Publisher(provider, "one-to-many", **options)),
        (OnFull, "on_full", lambda **options: Subscriber("one-to-many", prefix, **options)),
        (OnStall, "on_stall", lambda **options: Publisher(provider, "one-to-many", **options)),
        (OnEnd, "on_end", lambda **options: Subscriber("one-to-many", prefix, **options)),
        (OnEnd, "on_end", lambda **options: Receiver("one-to-many", prefix, **options)),
        (OnEnd, "on_end", lambda **options: Subscriber.open_async("one-to-many", prefix, **options)),
        (OnEnd, "on_end", lambda **options: Receiver.open_async("one-to-many", prefix, **options)),
    ]
    for choices, option, call in calls:
        names = ", ".join(f'"{choice}"' for choice in choices)
        with pytest.raises(shm_pool.InvalidArgument, match=f'"later" is no {choices.__name__}: it is one of {names}$'):
            call(**{option: "later"})
        with pytest.raises(TypeError, match=f"argument '{option}'"):
            call(**{option: 1})


@pytest.mark.parametrize("wait, end", [(OnEnd.WAIT, OnEnd.RETURN), ("wait", "return")])
def test_on_end(provider, prefix, wait, end):
    for create, receive in (Sender, Receiver), (Publisher, Subscriber):
        for on_end in wait, end:
            with create(provider, "ends") as sending:
                receiver = receive("ends", prefix, on_end=on_end)
                assert receiver.try_recv() is None
                sending.send(b"last")
            assert bytes(receiver.recv(timeout=60)) == b"last"
            with pytest.raises(shm_pool.Disconnected if on_end == "return" else shm_pool.Timeout):
                receiver.recv(timeout=0.01)
            receiver.close()


def test_stalled_receiver_is_skipped(provider, prefix):
    with Publisher(provider, "one-to-many", capacity=1, on_full="block", block_limit=0.01) as publisher:
        with Subscriber("one-to-many", prefix, timeout=10):
            while (sent := publisher.send(b"")).stalled == 0:
                assert sent.receivers == 1
            assert (sent.receivers, sent.stalled) == (0, 1)
            [state] = publisher.receivers()
            assert state.is_stalled
            assert repr(state) == (
                f'ReceiverState(id={state.id}, process={os.getpid()}, on_full="block", capacity=1, waiting=2, '
                "borrowed=0, missed=1, is_stalled=True)"
            )


def test_stalled_receiver_is_disconnected(provider, prefix):
    options = {"capacity": 1, "on_full": "block", "block_limit": 0.01, "on_stall": OnStall.DISCONNECT}
    with Publisher(provider, "one-to-many", **options) as publisher:
        with Subscriber("one-to-many", prefix, timeout=10) as receiver:
            while publisher.send(b"").stalled == 0:
                pass
            assert publisher.receivers() == []
            with pytest.raises(shm_pool.Evicted):
                receiver.recv()


@pytest.mark.parametrize("on_end", OnEnd)
@pytest.mark.parametrize("receive", [next, lambda receiver: asyncio.run(anext(receiver))])
def test_eviction_does_not_end_iteration(provider, prefix, on_end, receive):
    with Publisher(provider, "one-to-many") as publisher:
        for by in lambda state: state, lambda state: state.id:
            with Subscriber("one-to-many", prefix, timeout=10, on_end=on_end) as receiver:
                while publisher.serve_joins():
                    pass
                [state] = publisher.receivers()
                assert publisher.disconnect(by(state)) and not publisher.disconnect(by(state))
                with pytest.raises(shm_pool.Evicted):
                    receive(iter(receiver))
        with pytest.raises(TypeError):
            publisher.disconnect("one")


@pytest.mark.parametrize("create", [Sender, Publisher])
def test_waits_for_name(provider, create):
    first = create(provider, "taken")
    with pytest.raises(shm_pool.NameTaken, match="timeout="):
        create(provider, "taken")
    with pytest.raises(shm_pool.NameTaken):
        create(provider, "taken", timeout=0.01)
    closing = threading.Timer(0.01, first.close)
    closing.start()
    create(provider, "taken", timeout=None).close()
    closing.join()


@pytest.mark.parametrize("create, open", [(Sender, Receiver), (Publisher, Subscriber)])
def test_mode(provider, prefix, create, open):
    with create(provider, "shared", mode=0o660), open("shared", prefix, timeout=10):
        [path] = Path("/dev/shm").glob(f"{prefix}.shared.channel")
        assert path.stat().st_mode & 0o777 == 0o660
    with pytest.raises(shm_pool.InvalidArgument):
        create(provider, "shared", mode=0o777)


@pytest.mark.parametrize("create, open", [(Sender, Receiver), (Publisher, Subscriber)])
def test_message_type(provider, prefix, create, open):
    pose = MessageType("Pose", version=1, size=24, align=8)
    with create(provider, "typed", message_type=pose) as sending:
        with open("typed", prefix, timeout=10, message_type=MessageType("Pose", 1, 24, align=8)) as receiver:
            assert receiver.message_type == pose
            sending.send(b"not checked")
        newer = MessageType("Pose", version=2, size=24, align=8)
        with pytest.raises(shm_pool.InvalidArgument, match="version"):
            open("typed", prefix, timeout=10, message_type=newer)
    with create(provider, "untyped"), open("untyped", prefix, timeout=10) as receiver:
        assert receiver.message_type is None


def test_message_type_is_checked():
    assert repr(MessageType("A", 1, 2)) == 'MessageType("A", version=1, size=2, align=1, element_size=0)'
    assert len({MessageType("A", 1, 2), MessageType("A", 1, 2), MessageType("A", 1, 2, element_size=3)}) == 2
    for arguments in ("", 1, 1), ("x" * 97, 1, 1), ("A", 1, 1 << 63):
        with pytest.raises(shm_pool.InvalidArgument):
            MessageType(*arguments)
    with pytest.raises(shm_pool.InvalidArgument, match="alignment of 3"):
        MessageType("A", 1, 8, align=3)


def test_later_publisher_of_another_type(provider, prefix):
    pose = MessageType("Pose", version=1, size=24, align=8)
    with Subscriber("typed", prefix, message_type=pose) as subscriber:
        with Publisher(provider, "typed"):
            with pytest.raises(shm_pool.InvalidArgument, match="carries untyped messages"):
                subscriber.recv(timeout=60)
        with Publisher(provider, "typed", message_type=pose, history=1) as publisher:
            publisher.send(bytes(24))
            waiting = in_thread(lambda: publisher.wait_for_receivers(timeout=60))
            assert len(subscriber.recv(timeout=60)) == 24
            assert waiting() == []


def as_other_version(prefix, name):
    """Makes a channel look like one of another build, one version back. Returns its version, and this one."""
    with open(f"/dev/shm/{prefix}.{name}.channel", "r+b") as channel:
        # Where all versions have it.
        channel.seek(8)
        version = int.from_bytes(channel.read(4), "little")
        channel.seek(8)
        channel.write((version - 1).to_bytes(4, "little"))
    return version - 1, version


@pytest.mark.parametrize("create, receive", [(Sender, Receiver), (Publisher, Subscriber)])
def test_other_version(provider, prefix, create, receive):
    with receive("versions", prefix, on_end=OnEnd.WAIT) as later, create(provider, "versions") as end:
        old, new = as_other_version(prefix, "versions")
        with pytest.raises(shm_pool.OtherVersion, match=f"has version {old} .* uses version {new}"):
            receive("versions", prefix)
        with pytest.raises(shm_pool.OtherVersion, match=f"has version {old} .* uses version {new}"):
            later.recv(timeout=60)
        wait = end.wait_for_receiver if create is Sender else end.wait_for_receivers
        # The channel only looks like an old one: this process made it.
        with pytest.raises(shm_pool.Timeout, match=f"one has version {new} of the layout of channels"):
            wait(timeout=0.01)


def test_alloc_of_an_end(provider):
    for create in Sender, Publisher:
        with create(provider, "ends") as end:
            assert len(end.alloc(100)) == 100 and end.alloc(1, zeroed=True)[0] == 0
            with pytest.raises(shm_pool.InvalidArgument):
                end.alloc(1 << 40)


def test_reprs(provider, prefix):
    sender, publisher = Sender(provider, "/a"), Publisher(provider, "/b")
    receiver, subscriber = Receiver("/a", prefix), Subscriber("/b", prefix)
    watcher = shm_pool.Watcher(prefix)
    ends = sender, receiver, publisher, subscriber
    assert [repr(end) for end in ends] == [
        '<shm_pool.Sender "/a">',
        '<shm_pool.Receiver "/a">',
        '<shm_pool.Publisher "/b">',
        '<shm_pool.Subscriber "/b">',
    ]
    assert [end.name for end in ends] == ["/a", "/a", "/b", "/b"]
    assert repr(watcher) == f'<shm_pool.Watcher of "{prefix}">'
    for end in *ends, watcher:
        end.close()
        assert repr(end).endswith('", closed>')
    assert repr(provider.stats()).startswith("Stats(max_bytes=67108864, bytes_held=")
    with provider.reserve(100, 2) as reservation:
        assert repr(reservation) == "<shm_pool.Reservation of 2 buffers>"
    assert repr(reservation) == "<shm_pool.Reservation, closed>"
    namespace = shm_pool.Namespace("robot7", uid=7)
    assert repr(namespace) == 'Namespace("robot7", directory="/dev/shm", uid=7)'
    assert repr(shm_pool.Client("robot7")) == '<shm_pool.Client of "robot7">'


# ---- tags -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 32, 33, 48, 49, 1000])
@pytest.mark.parametrize("create, open", [(Sender, Receiver), (Publisher, Subscriber)])
def test_tag(provider, prefix, create, open, size):
    tag = bytes(range(16))
    with create(provider, "tagged") as sending, open("tagged", prefix, timeout=10) as receiving:
        if create is Publisher:
            sending.wait_for_receivers(timeout=10)
        buffer = provider.alloc(size)
        content = buffer[...] = bytes(size)
        for message in content, buffer:
            sending.send(message, tag=tag)
            sending.send(message)
            asyncio.run(sending.send_async(message, tag=bytearray(tag)))
            sending.send(message, tag=tag, timeout=0)
        received = [receiving.recv(timeout=10) for _ in range(8)]
        assert [message.tag for message in received] == [tag, None, tag, tag] * 2
        assert all(message[...] == content for message in received)
        for wrong in b"", bytes(15), bytes(17):
            with pytest.raises(shm_pool.InvalidArgument, match="a tag has 16 bytes"):
                sending.send(b"", tag=wrong)


# ---- names ----------------------------------------------------------------------------------------


def test_namespace(provider, prefix):
    namespace = shm_pool.Namespace(prefix)
    assert namespace.channels() == []
    assert (namespace.prefix, namespace.directory, namespace.uid) == (prefix, "/dev/shm", os.getuid())
    assert namespace == shm_pool.Namespace(prefix) != shm_pool.Namespace(prefix, uid=1)
    with Sender(provider, "pair"), Publisher(provider, "/front/image_raw"), Receiver("pair", namespace):
        first, second = namespace.channels()
        assert (first.name, first.is_publisher, first.provider) == ("/front/image_raw", True, provider.id)
        assert (second.name, second.is_publisher) == ("pair", False)
    assert namespace.channels() == []
    with pytest.raises(shm_pool.InvalidArgument):
        shm_pool.Namespace("no/slash")
    with pytest.raises(shm_pool.InvalidArgument):
        Receiver("pair", "no/slash")
    with pytest.raises(TypeError):
        Receiver("pair", 7)


def test_directory(tmp_path):
    namespace = shm_pool.Namespace(directory=tmp_path)
    assert namespace.directory == str(tmp_path)
    with shm_pool.Provider(namespace=namespace) as provider, Sender(provider, "pair") as sender:
        sender.send(b"elsewhere")
        assert bytes(Receiver("pair", namespace).recv(timeout=10)) == b"elsewhere"
        assert [channel.name for channel in namespace.channels()] == ["pair"]


def test_watcher(provider, prefix):
    with shm_pool.Watcher(prefix) as watcher:
        assert watcher.try_recv() is None
        with pytest.raises(shm_pool.Timeout):
            watcher.recv(timeout=0.01)
        creating = threading.Timer(0.01, lambda: publishers.append(Publisher(provider, "camera")))
        publishers = []
        creating.start()
        created = watcher.recv(timeout=10)
        creating.join()
        assert not created.is_closed and created.channel.name == "camera" and created.channel.is_publisher
        assert repr(created) == "ChannelChange(ChannelInfo('camera', is_publisher=True), is_closed=False)"
        publishers.pop().close()
        closed = next(watcher)
        assert closed.is_closed and closed.channel == created.channel and closed != created
        descriptor = watcher.fileno()
        assert watcher.try_recv() is None
        with Publisher(provider, "camera"):
            while (change := watcher.try_recv()) is None:
                select.select([descriptor], [], [], 10)
            assert not change.is_closed
        join = in_thread(lambda: [watcher.recv() for _ in range(2)])
        watcher.interrupt()
        assert join() == [shm_pool.Interrupted]
        join = in_thread(lambda: [watcher.recv() for _ in range(2)])
    assert join() == [shm_pool.Closed]


# ---- several receivers ------------------------------------------------------------------------------


def test_wait_any(provider, prefix):
    senders = [Sender(provider, f"pair-{number}") for number in range(3)]
    receivers = [Receiver(f"pair-{number}", prefix) for number in range(3)]
    later = Subscriber("later", prefix)
    ends = [later, *receivers]
    with pytest.raises(shm_pool.Timeout):
        shm_pool.wait_any(ends, timeout=0)
    with pytest.raises(shm_pool.Timeout):
        shm_pool.wait_any(ends, timeout=0.01)
    # Each is its turn.
    for number in 2, 0, 1, 0:
        senders[number].send(bytes([number]))
    order = []
    for _ in range(4):
        ready = shm_pool.wait_any(ends, timeout=10)
        order.append(ready.recv(timeout=0)[0])
    assert order == [0, 1, 2, 0]
    sending = threading.Timer(0.01, senders[1].send, [b"from a thread"])
    sending.start()
    assert shm_pool.wait_any(ends) is receivers[1]
    assert bytes(receivers[1].recv(timeout=0)) == b"from a thread"
    sending.join()
    with Publisher(provider, "later", history=1) as publisher:
        publisher.send(b"joined")
        joined = threading.Thread(target=publisher.wait_for_receivers, kwargs={"timeout": 10})
        joined.start()
        assert shm_pool.wait_any(ends, timeout=10) is later
        joined.join()
    # One that is to raise an error is ready.
    senders[2].close()
    ends.remove(later)
    assert shm_pool.wait_any(ends, timeout=10) is receivers[2]
    with pytest.raises(shm_pool.Disconnected):
        receivers[2].recv()
    for wrong in [], [receivers[0], receivers[0]]:
        with pytest.raises(shm_pool.InvalidArgument):
            shm_pool.wait_any(wrong)
    join = in_thread(lambda: shm_pool.wait_any(ends[:2]))
    receivers[1].interrupt()
    assert join() == [shm_pool.Interrupted]
    join = in_thread(lambda: shm_pool.wait_any(ends[:2]))
    receivers[1].close()
    assert join() == [shm_pool.Closed]
    for end in *senders, *receivers, later:
        end.close()


def test_wait_any_beside_an_event_loop(provider, prefix):
    with Sender(provider, "pair") as sender, Receiver("pair", prefix) as receiver:
        descriptor = receiver.fileno()
        while receiver.try_recv() or select.select([descriptor], [], [], 0)[0]:
            pass
        with pytest.raises(shm_pool.Timeout):
            shm_pool.wait_any([receiver], timeout=0.01)
        while receiver.try_recv() or select.select([descriptor], [], [], 0)[0]:
            pass
        sender.send(b"message")
        assert select.select([descriptor], [], [], 10)[0] == [descriptor]


def test_events(provider, prefix):
    with Subscriber("events", prefix) as subscriber:
        assert subscriber.try_recv_event() is None
        with pytest.raises(shm_pool.Timeout):
            subscriber.recv_event(timeout=0)
        ids = []
        for number in range(2):
            with shm_pool.Provider(namespace=prefix) as of, Publisher(of, "events", history=1) as publisher:
                ids.append(of.id)
                publisher.send(bytes([number]))
                change = subscriber.recv_event(timeout=60)
                assert (change.is_connected, change.provider) == (True, ids[-1])
                publisher.wait_for_receivers(timeout=60)
                assert bytes(subscriber.recv_event(timeout=60)) == bytes([number])
            end = subscriber.recv_event(timeout=60)
            assert (end.is_connected, end.provider) == (False, None)
            assert repr(end) == "ConnectionChange(is_connected=False, provider=None)"
        assert ids[0] != ids[1] and end != change
        # What only receives messages skips them.
        with Publisher(provider, "events", history=1) as publisher:
            publisher.send(b"a message")
            while (message := subscriber.try_recv()) is None:
                publisher.serve_joins()
            assert bytes(message) == b"a message"


def test_events_of_a_receiver_that_returns(provider, prefix):
    with Receiver("events", prefix, on_end="wait") as waiting:
        with Sender(provider, "events") as sender:
            assert waiting.recv_event(timeout=60).provider == provider.id
            sender.send(b"last")
        assert bytes(waiting.recv_event(timeout=60)) == b"last"
        assert not waiting.recv_event(timeout=60).is_connected
    with Sender(provider, "events") as sender:
        returning = Receiver("events", prefix)
        assert returning.recv_event(timeout=60).is_connected
    with pytest.raises(shm_pool.Disconnected):
        returning.recv_event(timeout=60)


def test_events_wake_an_event_loop(provider, prefix):
    with Subscriber("events", prefix) as subscriber:
        fileno = subscriber.fileno()
        while subscriber.try_recv_event() is not None:
            pass
        with Publisher(provider, "events"):
            seen = []
            while not seen:
                select.select([fileno], [], [], 60)
                event = subscriber.try_recv_event()
                if event is not None:
                    seen.append(event)
            assert seen[0].provider == provider.id


def test_keyword_arguments(provider, prefix):
    makers = [
        lambda **options: shm_pool.Provider(**options),
        lambda **options: Sender(provider, "keywords", **options),
        lambda **options: Publisher(provider, "keywords", **options),
        lambda **options: Receiver("keywords", prefix, **options),
        lambda **options: Subscriber("keywords", prefix, **options),
        lambda **options: Sender.create_async(provider, "keywords", **options),
        lambda **options: Publisher.create_async(provider, "keywords", **options),
        lambda **options: Receiver.open_async("keywords", prefix, **options),
        lambda **options: Subscriber.open_async("keywords", prefix, **options),
    ]
    for make in makers:
        for value in 1, None:
            with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
                make(colour=value)
    for make in makers[1:]:
        with pytest.raises(TypeError, match="argument 'spin'"):
            make(spin="long")
    with pytest.raises(TypeError, match="argument 'capacity'"):
        Publisher(provider, "keywords", capacity="many")
    with pytest.raises(OverflowError):
        Publisher(provider, "keywords", capacity=-1)
    # None is the default.
    options = dict.fromkeys(["capacity", "max_borrowed", "mode", "spin", "message_type"])
    with Sender(provider, "keywords", **options) as sender:
        assert sender.capacity == 256
