"""Coroutines of operations that wait."""

import asyncio
from typing import Any

from ._native import _Pending
from .errors import Disconnected, Evicted


async def complete(pending: _Pending) -> Any:
    """Returns the result of an operation. When it is cancelled, the operation has had no effect."""
    try:
        while (done := pending.poll()) is None:
            loop = asyncio.get_running_loop()
            descriptor, woken = pending.fileno(), loop.create_future()
            # Readable once before it is known whether it has to wait.
            loop.add_reader(descriptor, _wake, woken)
            try:
                await woken
            finally:
                loop.remove_reader(descriptor)
        return done[0]
    finally:
        pending.close()


async def complete_next(pending: _Pending) -> Any:
    """The same, for an asynchronous iterator, which an eviction does not end."""
    try:
        return await complete(pending)
    except Evicted:
        raise
    except Disconnected:
        raise StopAsyncIteration from None


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
