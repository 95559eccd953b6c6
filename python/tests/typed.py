"""A program that a type checker accepts."""

from typing_extensions import assert_type

import numpy as np
import numpy.typing as npt

import shm_pool


def publish(frame: npt.NDArray[np.uint8]) -> int:
    with shm_pool.Provider(max_bytes=64 << 20) as provider, shm_pool.Publisher(provider, "typed") as publisher:
        with publisher.alloc(frame.nbytes, timeout=1.0) as buffer:
            np.asarray(buffer)[:] = frame.ravel()
            buffer[0], buffer[1:3], buffer[...] = 7, b"ab", frame
            sent: shm_pool.Sent = publisher.send(buffer)
            return sent.receivers + publisher.send(frame).skipped + publisher.send(b"bytes", tag=bytes(16)).withdrawn


def receive() -> npt.NDArray[np.float32]:
    with shm_pool.Subscriber("typed", timeout=None, on_full="drop_oldest", on_end=shm_pool.OnEnd.RETURN) as receiver:
        for message in receiver:
            assert_type(message.missed, int)
            assert_type(message[0], int)
            assert_type(message.tag, bytes | None)
            assert_type(message[:4], bytes)
            print(bytes(message), memoryview(message).nbytes)
        return np.asarray(receiver.recv()).view(np.float32)


def wait(left: shm_pool.Receiver, right: shm_pool.Receiver) -> shm_pool.Receiver:
    return shm_pool.wait_any([left, right], timeout=1)


async def receive_async(receiver: shm_pool.Receiver, publisher: shm_pool.Publisher) -> int:
    try:
        return sum([len(message) async for message in receiver])
    except shm_pool.MessageLost as error:
        print(error)
        assert_type(await publisher.send_async(b""), shm_pool.Sent)
        return len(await receiver.recv_async())


async def watch() -> str:
    async for change in shm_pool.Watcher("robot7"):
        if not change.is_closed:
            return change.channel.name
    return str(shm_pool.Namespace("robot7", directory="/dev/shm").sweep().bytes)


def follow(subscriber: shm_pool.Subscriber) -> int:
    assert_type(subscriber.last_error, shm_pool.Error | None)
    assert_type(subscriber.provider, int | None)
    assert_type(subscriber.missed.total, int)
    event = subscriber.recv_event()
    if isinstance(event, shm_pool.ConnectionChange):
        assert_type(event.provider, int | None)
        return 0
    assert_type(event, shm_pool.Message)
    return len(event)


async def connect(provider: shm_pool.Provider) -> str:
    sender = await shm_pool.Sender.create_async(provider, "typed", capacity=3)
    assert_type(sender, shm_pool.Sender)
    return (await shm_pool.Subscriber.open_async("typed", on_full="block")).name


def inspect() -> int:
    provider = shm_pool.Provider(room_for=[(1 << 20, 8)])
    report = shm_pool.inspect.Inspector("typed").report()
    assert_type(report.channels[0].receivers[0].process, shm_pool.inspect.Process | None)
    return provider.id
