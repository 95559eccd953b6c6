"""Senders, publishers and receivers within one process."""

import select
import threading

import numpy as np
import pytest

import shm_pool
from shm_pool import OnFull, Publisher, Receiver, Sender


def test_iteration_ends_with_sender(provider, client):
    sender, receiver = Sender(provider, "pair"), Receiver("pair", client)
    for number in range(3):
        sender.send(bytes([number]) * 100)
    sender.wait_for_receiver(timeout=10)
    sender.close()
    assert [bytes(message)[0] for message in receiver] == [0, 1, 2]
    with pytest.raises(ConnectionError, match="closed or died"):
        receiver.recv()
    receiver.close()


def test_no_message(provider, client):
    with Sender(provider, "pair"), Receiver("pair", client) as receiver:
        assert receiver.try_recv() is None
        with pytest.raises(shm_pool.Timeout, match="no message has arrived"):
            receiver.recv(timeout=0)
        with pytest.raises(TimeoutError, match="timed out"):
            receiver.recv(timeout=0.01)


def test_no_room(provider, client):
    with Sender(provider, "pair", capacity=2) as sender, Receiver("pair", client) as receiver:
        with pytest.raises(shm_pool.Timeout, match="full"):
            for _ in range(10):
                sender.send(bytes(100), timeout=0)
        with pytest.raises(shm_pool.Timeout, match="timed out"):
            sender.send(b"short", timeout=0.01)
        receiving = threading.Timer(0.01, lambda: [receiver.recv(), receiver.recv()])
        receiving.start()
        sender.send(bytes(100), timeout=10)
        receiving.join()


def test_receiver_closes(provider, client):
    with Sender(provider, "pair") as sender:
        Receiver("pair", client).close()
        for message in b"short", bytes(100), provider.alloc(100):
            with pytest.raises(shm_pool.Disconnected):
                sender.send(message)


@pytest.mark.parametrize("spin", [None, 0, 1e-5, float("inf")])
def test_spin(provider, client, spin):
    with Sender(provider, "pair", spin=spin) as sender, Receiver("pair", client, spin=spin) as receiver:
        sender.send(b"one")
        assert bytes(receiver.recv()) == b"one"
    with Publisher(provider, "pair", spin=spin) as publisher, Receiver("pair", client, spin=spin) as receiver:
        publisher.send(b"two")
        assert bytes(receiver.recv()) == b"two"


@pytest.mark.parametrize("spin", [-1, float("nan")])
def test_spin_out_of_range(provider, client, spin):
    for create in Sender, Publisher:
        with pytest.raises(shm_pool.InvalidArgument, match="spin is"):
            create(provider, "pair", spin=spin)
    with pytest.raises(shm_pool.InvalidArgument, match="spin is"):
        Receiver("pair", client, spin=spin)


def test_names(provider, client):
    with pytest.raises(FileNotFoundError, match="nothing"):
        Receiver("nothing", client)
    with pytest.raises(shm_pool.NotFound):
        Receiver("nothing", client, timeout=0.01)
    for name in "", "a\0b", "x" * 300:
        with pytest.raises(shm_pool.InvalidArgument, match="bytes of a file name"):
            Sender(provider, name)
    with Sender(provider, "pair") as sender, pytest.raises(FileExistsError):
        Sender(provider, "pair")
    with pytest.raises(shm_pool.Closed):
        sender.send(b"")


@pytest.mark.parametrize("name", ["/front/image_raw", "robot/*/pose", "a.b", "Zürich"])
def test_any_name(provider, client, name):
    with Publisher(provider, name) as publisher, Receiver(name, client) as receiver:
        publisher.send(b"message")
        assert bytes(receiver.recv()) == b"message"


def test_waits_for_channel(provider, client):
    senders = []
    creating = threading.Timer(0.01, lambda: senders.append(Sender(provider, "pair")))
    creating.start()
    Receiver("pair", client, timeout=None).close()
    creating.join()


def test_other_provider(provider, prefix):
    with Sender(provider, "pair") as sender, shm_pool.Provider(name_prefix=prefix) as other:
        with pytest.raises(shm_pool.InvalidArgument, match="belongs to provider"):
            sender.send(other.alloc(100))


def test_publisher(provider, client):
    with Publisher(provider, "one-to-many") as publisher:
        assert publisher.send(bytes(100)).receivers == 0
        logger = Receiver("one-to-many", client, on_full=OnFull.BLOCK)
        display = Receiver("one-to-many", client, capacity=1)
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


def test_holds_too_much(provider, client):
    with Publisher(provider, "one-to-many", max_borrowed=2) as publisher:
        with Receiver("one-to-many", client, on_full=OnFull.DROP_NEWEST) as receiver:
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


def test_history(provider, client):
    with Publisher(provider, "one-to-many", history=2) as publisher:
        for number in range(5):
            publisher.send(bytes([number]))
        with Receiver("one-to-many", client) as receiver:
            publisher.wait_for_receivers(timeout=10)
            assert [bytes(receiver.recv(timeout=10)) for _ in range(2)] == [b"\3", b"\4"]


def test_blocking_refused(provider, client):
    with Publisher(provider, "one-to-many", allow_blocking=False, on_full=OnFull.DROP_NEWEST):
        with pytest.raises(shm_pool.InvalidArgument, match="waits for no receiver"):
            Receiver("one-to-many", client, on_full=OnFull.BLOCK)
        with Receiver("one-to-many", client) as receiver:
            assert receiver.on_full == OnFull.DROP_NEWEST


def test_many_receivers_wait(provider, client):
    with Publisher(provider, "one-to-many", max_subscribers=1) as publisher:
        with Receiver("one-to-many", client):
            with pytest.raises(shm_pool.Error, match="1"):
                Receiver("one-to-many", client)
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


def test_close_ends_wait(provider, client):
    with Sender(provider, "pair"):
        receiver = Receiver("pair", client)
        join = in_thread(receiver.recv)
        receiver.close()
        assert join() == [shm_pool.Closed]


def test_interrupt(provider, client):
    with Sender(provider, "pair"), Receiver("pair", client) as receiver:
        join = in_thread(receiver.recv)
        receiver.interrupt()
        assert join() == [shm_pool.Interrupted]


def test_one_thread_at_a_time(provider, client):
    with Sender(provider, "pair") as sender, Receiver("pair", client) as receiver:
        join = in_thread(receiver.recv)
        with pytest.raises(shm_pool.InUse):
            while True:
                receiver.capacity
        sender.send(b"")
        assert join() == []


def test_gil_is_free_while_waiting(provider, client):
    with Sender(provider, "pair") as sender, Receiver("pair", client) as receiver:
        sending = threading.Thread(target=lambda: sender.send(b"from another thread"))
        sending.start()
        assert bytes(receiver.recv(timeout=10)) == b"from another thread"
        sending.join()


def test_event_loop(provider, client):
    with Sender(provider, "pair") as sender, Receiver("pair", client) as receiver:
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
