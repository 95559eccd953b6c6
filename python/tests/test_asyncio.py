"""Receivers under asyncio."""

import asyncio
import itertools
import os

import pytest

import shm_pool
from shm_pool import Publisher, Receiver, Sender, Subscriber


@pytest.fixture
def pair(provider, prefix):
    with Sender(provider, "async") as sender, Receiver("async", prefix) as receiver:
        yield sender, receiver


def test_async_for(pair):
    sender, receiver = pair

    async def send():
        for number in range(100):
            sender.send(bytes([number]))
            if number % 3 == 0:
                await asyncio.sleep(0)
        sender.wait_for_receiver()
        sender.close()

    async def receive():
        return [bytes(message)[0] async for message in receiver]

    async def main():
        received, _ = await asyncio.gather(receive(), send())
        return received

    assert asyncio.run(main()) == list(range(100))


def test_loop_goes_on(pair):
    sender, receiver = pair

    async def main():
        receiving = asyncio.create_task(receiver.recv_async())
        await asyncio.sleep(0.01)
        assert not receiving.done()
        await asyncio.get_running_loop().run_in_executor(None, sender.send, b"from a thread")
        return bytes(await receiving)

    assert asyncio.run(main()) == b"from a thread"


def test_cancelled(pair):
    sender, receiver = pair

    async def main():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(receiver.recv_async(), 0.01)
        sender.send(b"not lost")
        return bytes(await receiver.recv_async())

    assert asyncio.run(main()) == b"not lost"


def test_one_task_at_a_time(pair):
    sender, receiver = pair

    async def main():
        first = asyncio.create_task(receiver.recv_async())
        await asyncio.sleep(0)
        with pytest.raises(shm_pool.InUse):
            await receiver.recv_async()
        sender.send(b"first")
        return bytes(await first)

    assert asyncio.run(main()) == b"first"


def test_close_ends_await(pair):
    _, receiver = pair

    async def main():
        receiving = asyncio.create_task(receiver.recv_async())
        await asyncio.sleep(0)
        receiver.close()
        with pytest.raises(shm_pool.Closed):
            await receiving

    asyncio.run(main())


def test_loop_after_loop(pair):
    sender, receiver = pair

    async def main(number):
        receiving = asyncio.create_task(receiver.recv_async())
        await asyncio.sleep(0)
        sender.send(number)
        return bytes(await receiving)

    assert [asyncio.run(main(bytes([number]))) for number in range(3)] == [b"\0", b"\1", b"\2"]


# ---- sending --------------------------------------------------------------------------------------


def fill(sender):
    """Sends until there is no room, and returns how many messages."""
    for number in itertools.count():
        try:
            sender.send(b"", timeout=0)
        except shm_pool.Timeout:
            return number


@pytest.mark.parametrize("size", [10, 1000])
@pytest.mark.parametrize("kind", ["bytes", "buffer"])
def test_send_waits_for_room(provider, prefix, size, kind):
    async def main():
        with Sender(provider, "full", capacity=2) as sender, Receiver("full", prefix) as receiver:
            filled = fill(sender)
            content = bytes(range(10)) * (size // 10)
            message = provider.alloc(size) if kind == "buffer" else content
            if kind == "buffer":
                message[...] = content
            sending = asyncio.create_task(sender.send_async(message))
            for _ in range(3):
                await asyncio.sleep(0)
            assert not sending.done()
            received = [bytes(await receiver.recv_async()) for _ in range(filled)]
            assert await sending is None
            message = await receiver.recv_async()
            assert received == [b""] * filled and message[...] == content

    asyncio.run(main())


def test_send_of_a_publisher(provider, prefix):
    async def main():
        with Publisher(provider, "full", capacity=1, on_full="block") as publisher:
            with Subscriber("full", prefix, timeout=10) as subscriber:
                filled = fill(publisher)
                sending = asyncio.create_task(publisher.send_async(b"last"))
                for _ in range(3):
                    await asyncio.sleep(0)
                assert not sending.done()
                for _ in range(filled):
                    await subscriber.recv_async()
                assert (await sending).receivers == 1
                assert bytes(await subscriber.recv_async()) == b"last"

    asyncio.run(main())


def test_cancelled_send_sends_nothing(provider, prefix):
    async def main():
        with Sender(provider, "full", capacity=2) as sender, Receiver("full", prefix) as receiver:
            filled = fill(sender)
            buffer = provider.alloc(1000)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(sender.send_async(buffer), 0.01)
            assert not buffer.is_leased
            assert [bytes(receiver.recv()) for _ in range(filled)] == [b""] * filled
            assert receiver.try_recv() is None
            # The next task may wait.
            await sender.send_async(buffer)
            assert len(await receiver.recv_async()) == 1000

    asyncio.run(main())


def test_one_task_sends_at_a_time(provider, prefix):
    async def main():
        with Sender(provider, "full", capacity=2) as sender, Receiver("full", prefix) as receiver:
            filled = fill(sender)
            first = asyncio.create_task(sender.send_async(b"first"))
            await asyncio.sleep(0)
            with pytest.raises(shm_pool.InUse, match="another task"):
                await sender.send_async(b"second")
            # A call in between does not take its wake-up.
            with pytest.raises(shm_pool.Timeout):
                sender.send(b"", timeout=0.01)
            for _ in range(filled):
                receiver.recv()
            await asyncio.wait_for(first, 10)

    asyncio.run(main())


def test_close_ends_send(provider, prefix):
    async def main():
        with Sender(provider, "full", capacity=2) as sender, Receiver("full", prefix):
            fill(sender)
            sending = asyncio.create_task(sender.send_async(b""))
            await asyncio.sleep(0)
            sender.close()
            with pytest.raises(shm_pool.Closed):
                await sending

    asyncio.run(main())


def test_close_in_a_thread_ends_await(pair):
    _, receiver = pair

    async def main():
        receiving = asyncio.create_task(receiver.recv_async())
        await asyncio.sleep(0)
        await asyncio.get_running_loop().run_in_executor(None, receiver.close)
        with pytest.raises(shm_pool.Closed):
            await receiving

    asyncio.run(main())


def test_call_in_between_keeps_wake_up(pair):
    sender, receiver = pair

    async def main():
        receiving = asyncio.create_task(receiver.recv_async())
        await asyncio.sleep(0)
        with pytest.raises(shm_pool.Timeout):
            receiver.recv(timeout=0.01)
        sender.send(b"for the task")
        return bytes(await asyncio.wait_for(receiving, 10))

    assert asyncio.run(main()) == b"for the task"


# ---- waits ----------------------------------------------------------------------------------------


def test_wait_for_receivers(provider, prefix):
    async def main():
        with Publisher(provider, "waits", history=1) as publisher, Sender(provider, "pair") as sender:
            waiting = asyncio.create_task(publisher.wait_for_receivers_async(2))
            waiting_too = asyncio.create_task(sender.wait_for_receiver_async())
            await asyncio.sleep(0.01)
            assert not waiting.done() and not waiting_too.done()
            for use in (lambda: publisher.send(b""), lambda: publisher.capacity, publisher.receivers):
                with pytest.raises(shm_pool.InUse):
                    use()
            with Receiver("pair", prefix), Subscriber("waits", prefix) as first, Subscriber("waits", prefix) as second:
                receiving = [asyncio.create_task(subscriber.recv_async()) for subscriber in (first, second)]
                await asyncio.wait_for(waiting, 10)
                await asyncio.wait_for(waiting_too, 10)
                assert publisher.send(b"to both").receivers == 2
                assert [bytes(message) for message in await asyncio.gather(*receiving)] == [b"to both"] * 2
                # At once.
                await publisher.wait_for_receivers_async(2)
                with pytest.raises(shm_pool.InvalidArgument):
                    await publisher.wait_for_receivers_async(100)

    asyncio.run(main())


@pytest.mark.parametrize("create, open", [(Sender, Receiver), (Publisher, Subscriber)])
def test_wait_until_received(provider, prefix, create, open):
    async def main():
        with create(provider, "waits") as sending, open("waits", prefix, timeout=10) as receiving:
            if create is Publisher:
                sending.wait_for_receivers(timeout=10)
            sending.send(bytes(1000))
            waiting = asyncio.create_task(sending.wait_until_received_async())
            await asyncio.sleep(0.01)
            assert not waiting.done()
            message = await receiving.recv_async()
            # It reports what it has received when it looks for more.
            assert receiving.try_recv() is None
            await asyncio.wait_for(waiting, 10)
            message.release()

    asyncio.run(main())


def test_cancelled_wait_returns_the_end(provider, prefix):
    async def main():
        with Publisher(provider, "waits") as publisher:
            for _ in range(3):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(publisher.wait_for_receivers_async(), 0.01)
                assert publisher.send(b"").receivers == 0
            with Subscriber("waits", prefix):
                await asyncio.wait_for(publisher.wait_for_receivers_async(), 10)
                assert publisher.send(b"").receivers == 1

    asyncio.run(main())


@pytest.mark.parametrize("in_thread", [False, True])
def test_close_ends_wait(provider, in_thread):
    async def main():
        publisher = Publisher(provider, "waits")
        waiting = asyncio.create_task(publisher.wait_for_receivers_async())
        await asyncio.sleep(0)
        if in_thread:
            await asyncio.get_running_loop().run_in_executor(None, publisher.close)
        else:
            publisher.close()
        with pytest.raises(shm_pool.Closed):
            await waiting
        # The name is free.
        Publisher(provider, "waits").close()

    asyncio.run(main())


# ---- memory, names --------------------------------------------------------------------------------


def test_alloc(prefix):
    async def main():
        with shm_pool.Provider(namespace=prefix, max_bytes=1 << 20) as provider:
            held = await provider.alloc_async(1 << 20)
            waiting = [asyncio.create_task(provider.alloc_async(1 << 19, zeroed=True)) for _ in range(2)]
            await asyncio.sleep(0.01)
            assert not any(task.done() for task in waiting)
            held.release()
            buffers = await asyncio.wait_for(asyncio.gather(*waiting), 10)
            assert [bytes(buffer) for buffer in buffers] == [bytes(1 << 19)] * 2
            # A task that is cancelled takes nothing.
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(provider.alloc_async(1 << 19), 0.01)
            buffers.pop().release()
            provider.alloc(1 << 19)
            with pytest.raises(shm_pool.InvalidArgument):
                await provider.alloc_async(1 << 30)

    asyncio.run(main())


def test_copy_waits_for_memory(prefix):
    async def main():
        with shm_pool.Provider(namespace=prefix, max_bytes=1 << 20) as provider:
            with Sender(provider, "copies") as sender, Receiver("copies", prefix) as receiver:
                held = provider.alloc(1 << 20)
                sending = asyncio.create_task(sender.send_async(bytes(1 << 19)))
                await asyncio.sleep(0.01)
                assert not sending.done()
                held.release()
                await asyncio.wait_for(sending, 10)
                assert len(receiver.recv(timeout=0)) == 1 << 19

    asyncio.run(main())


def test_close_of_provider_ends_alloc(prefix):
    async def main():
        with shm_pool.Provider(namespace=prefix, max_bytes=1 << 20) as provider:
            held = provider.alloc(1 << 20)
            waiting = asyncio.create_task(provider.alloc_async(1))
            await asyncio.sleep(0.01)
            provider.close()
            with pytest.raises(shm_pool.Interrupted):
                await waiting
            held.release()

    asyncio.run(main())


def test_watcher(provider, prefix):
    async def main():
        with shm_pool.Watcher(prefix) as watcher:
            changes = []

            async def watch():
                async for change in watcher:
                    changes.append((change.channel.name, change.is_closed))
                    if change.is_closed:
                        return

            watching = asyncio.create_task(watch())
            await asyncio.sleep(0)
            Publisher(provider, "camera").close()
            with Publisher(provider, "camera"):
                while not changes:
                    await asyncio.sleep(0.001)
            await asyncio.wait_for(watching, 10)
            assert changes[0] == ("camera", False) and changes[-1] == ("camera", True)

    asyncio.run(main())


def test_coroutine_is_not_started(pair, provider):
    """Nothing happens before it is awaited."""
    sender, receiver = pair
    sending = sender.send_async(b"never")
    sending.close()
    assert receiver.try_recv() is None


def test_descriptors_are_not_leaked(pair):
    sender, receiver = pair

    async def once():
        receiving = asyncio.create_task(receiver.recv_async())
        await asyncio.sleep(0)
        receiving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await receiving
        receiving = asyncio.create_task(receiver.recv_async())
        await asyncio.sleep(0)
        sender.send(b"")
        await receiving

    async def main():
        await once()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            await once()
        # Fewer, if what earlier tests had is closed meanwhile.
        assert len(os.listdir("/proc/self/fd")) <= before

    asyncio.run(main())


def test_events(provider, prefix):
    async def main():
        with Subscriber("async", prefix) as subscriber:
            receiving = asyncio.create_task(subscriber.recv_event_async())
            await asyncio.sleep(0)
            with Publisher(provider, "async") as publisher:
                change = await receiving
                await publisher.wait_for_receivers_async()
                publisher.send(b"a sample")
                message = await subscriber.recv_event_async()
            return change.provider, bytes(message), (await subscriber.recv_event_async()).is_connected

    assert asyncio.run(main()) == (provider.id, b"a sample", False)


def test_open_async_waits(provider, prefix):
    async def main():
        opening = asyncio.create_task(Subscriber.open_async("async", prefix, capacity=3))
        both = asyncio.create_task(Receiver.open_async("pair", prefix))
        await asyncio.sleep(0.01)
        assert not opening.done() and not both.done()
        with await Publisher.create_async(provider, "async") as publisher, Sender(provider, "pair") as sender:
            with await opening as subscriber, await both as receiver:
                assert (subscriber.name, subscriber.capacity, receiver.name) == ("async", 3, "pair")
                publisher.send(b"a sample")
                sender.send(b"a message")
                return bytes(subscriber.recv()), bytes(receiver.recv())

    assert asyncio.run(main()) == (b"a sample", b"a message")


@pytest.mark.parametrize("end", [Sender, Publisher])
def test_create_async_waits(end, provider):
    async def main():
        with end(provider, "async"):
            creating = asyncio.create_task(end.create_async(provider, "async", capacity=3))
            await asyncio.sleep(0.01)
            assert not creating.done()
        with await creating as successor:
            return successor.name, successor.capacity

    assert asyncio.run(main()) == ("async", 3)


def test_cancelled_open_and_create(provider, prefix):
    async def main():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(Subscriber.open_async("async", prefix), 0.01)
        with Publisher(provider, "async") as publisher:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(Publisher.create_async(provider, "async"), 0.01)
            publisher.send(b"nobody has joined")
            assert publisher.receivers() == []
        Publisher(provider, "async").close()

    asyncio.run(main())


def test_errors_of_open_and_create(provider, prefix):
    async def main():
        with Publisher(provider, "async"):
            with pytest.raises(shm_pool.InvalidArgument):
                await Receiver.open_async("async", prefix)
        with pytest.raises(shm_pool.InvalidArgument):
            await Sender.create_async(provider, "")
        provider.close()
        with pytest.raises(shm_pool.Closed):
            await Sender.create_async(provider, "async")

    asyncio.run(main())
