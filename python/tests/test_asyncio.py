"""Receivers under asyncio."""

import asyncio

import pytest

import shm_pool
from shm_pool import Receiver, Sender


@pytest.fixture
def pair(provider, client):
    with Sender(provider, "async") as sender, Receiver("async", client) as receiver:
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
        with pytest.raises(TimeoutError):
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
