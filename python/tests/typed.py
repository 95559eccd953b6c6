"""A program that a type checker accepts."""

import numpy as np
import numpy.typing as npt

import shm_pool


def publish(frame: npt.NDArray[np.uint8]) -> int:
    with shm_pool.Provider(max_bytes=64 << 20) as provider, shm_pool.Publisher(provider, "typed") as publisher:
        with provider.alloc(frame.nbytes, timeout=1.0) as buffer:
            np.asarray(buffer)[:] = frame.ravel()
            sent: shm_pool.Sent = publisher.send(buffer)
            return sent.receivers + publisher.send(frame).skipped + publisher.send(b"bytes").withdrawn


def receive() -> npt.NDArray[np.float32]:
    with shm_pool.Subscriber("typed", timeout=None, on_full=shm_pool.OnFull.DROP_OLDEST) as receiver:
        for message in receiver:
            missed: int = message.missed
            print(missed)
        return np.frombuffer(receiver.recv(), np.float32)


async def receive_async(receiver: shm_pool.Receiver) -> int:
    try:
        return sum([len(message) async for message in receiver])
    except shm_pool.MessageLost as error:
        print(error)
        return len(await receiver.recv_async())
