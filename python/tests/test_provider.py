"""Providers: options, errors, waiting for memory, statistics."""

import asyncio
import gc
import os
import re
import threading
import time

import pytest

import shm_pool
from shm_pool import Publisher, Receiver, Sender, Subscriber


def test_options(prefix):
    with pytest.raises(shm_pool.InvalidArgument, match="max_bytes is 0"):
        shm_pool.Provider(namespace=prefix, max_bytes=0)
    with pytest.raises(ValueError, match="prefix"):
        shm_pool.Provider(namespace="no/slash")
    with pytest.raises(shm_pool.InvalidArgument):
        shm_pool.Provider(namespace=prefix, mode=0o777)
    with pytest.raises(shm_pool.SystemCallFailed) as failed:
        shm_pool.Provider(namespace=shm_pool.Namespace(prefix, directory="/no/such/directory"))
    assert failed.value.errno == 2 and "/no/such/directory" in str(failed.value)


def test_more_options(prefix):
    options = {"lock_memory": False, "max_idle_per_class": 2, "max_shared": 100, "mode": 0o660}
    with shm_pool.Provider(namespace=prefix, max_bytes=1 << 20, **options) as provider:
        with pytest.raises(shm_pool.InvalidArgument, match=r"raise Provider\(max_idle_per_class=\)"):
            provider.reserve(1000, 3)
        provider.reserve(1000, 2).close()
    with pytest.raises(shm_pool.InvalidArgument, match="max_shared"):
        shm_pool.Provider(namespace=prefix, max_shared=0)
    with pytest.raises(shm_pool.InvalidArgument, match=f"that of uid {os.getuid() + 1}"):
        shm_pool.Provider(namespace=shm_pool.Namespace(prefix, uid=os.getuid() + 1))


def test_locked_memory(python, prefix):
    program = """if True:
        import os, resource, shm_pool, sys
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
        if os.getuid() == 0:  # which may lock without limit
            try:
                os.setuid(65534)
            except OSError:
                sys.exit(print("no other user"))
        try:
            shm_pool.Provider(namespace=sys.argv[1], max_bytes=1 << 20, lock_memory=True)
        except shm_pool.SystemCallFailed as error:
            print(error)
    """
    child = python(program, prefix)
    line = child.line()
    if line == "no other user":
        pytest.skip(line)
    assert re.match(r"\[Errno 1\] lock_memory needs .* may lock only 65536, .*ulimit -l", line)
    assert child.end() == 0


def test_exhausted(prefix):
    with shm_pool.Provider(namespace=prefix, max_bytes=1 << 20) as provider:
        held = provider.alloc(1 << 20)
        with pytest.raises(MemoryError, match="under max_bytes 1048576"):
            provider.alloc(1)
        with pytest.raises(shm_pool.Timeout, match="not enough memory was released"):
            provider.alloc(1, timeout=0.01)
        with pytest.raises(shm_pool.InvalidArgument, match="largest allocation"):
            provider.alloc(2 << 20)
        held.release()
        provider.alloc(1)


def test_wait_for_memory(prefix):
    with shm_pool.Provider(namespace=prefix, max_bytes=1 << 20) as provider:
        held = provider.alloc(1 << 20)
        releasing = threading.Timer(0.01, held.release)
        releasing.start()
        assert len(provider.alloc(1 << 20, timeout=None)) == 1 << 20
        releasing.join()


def test_close_ends_waits(prefix):
    with shm_pool.Provider(namespace=prefix, max_bytes=1 << 20) as provider:
        held = provider.alloc(1 << 20)
        raised = []

        def wait():
            with pytest.raises((shm_pool.Interrupted, shm_pool.Closed)):
                provider.alloc(1, timeout=None)
            raised.append(True)

        waiting = threading.Thread(target=wait)
        waiting.start()
        provider.close()
        waiting.join()
        assert raised
        assert len(held) == 1 << 20, "a buffer outlives its provider"
        with pytest.raises(shm_pool.Closed):
            provider.alloc(1)


@pytest.mark.parametrize("create, open", [(Sender, Receiver), (Publisher, Subscriber)])
def test_ends_outlive_their_provider(prefix, create, open):
    with shm_pool.Provider(namespace=prefix, max_bytes=1 << 20) as provider:
        end = create(provider, "outlives")
    with end, open("outlives", prefix) as receiver:
        if create is Publisher:
            end.wait_for_receivers(timeout=60)
        with pytest.raises(shm_pool.Closed, match="this provider was closed"):
            provider.alloc(1)
        with pytest.raises(shm_pool.Closed):
            create(provider, "another")
        with end.alloc(1000, zeroed=True) as buffer:
            end.send(buffer)
        end.send(bytes(100))
        asyncio.run(end.send_async(bytes(49)))
        assert [len(receiver.recv(timeout=60)) for _ in range(3)] == [1000, 100, 49]
    with pytest.raises(shm_pool.Closed, match=f"this {create.__name__.lower()} was closed"):
        end.alloc(1)


def start_blocking(target):
    """Starts a thread that is to block in a call of this library, and returns it once it sleeps there.

    The thread also sleeps while it waits for the interpreter's lock, so it has to sleep for a while."""
    thread = threading.Thread(target=target)
    thread.start()
    in_a_row = 0
    while in_a_row < 10:
        time.sleep(0.01)
        with open(f"/proc/self/task/{thread.native_id}/stat") as stat:
            state = stat.read().rpartition(") ")[2][0]
        in_a_row = in_a_row + 1 if state == "S" else 0
    return thread


def waiting_for_memory(end):
    """Returns a thread that waits for memory, and the list of what it gets."""
    got = []

    def wait():
        try:
            got.append(len(end.alloc(1 << 20, timeout=None)))
        except shm_pool.Error as error:
            got.append(type(error))

    return start_blocking(wait), got


def test_close_does_not_end_waits_of_others(prefix):
    provider = shm_pool.Provider(namespace=prefix, max_bytes=1 << 20)
    first, second = Publisher(provider, "first"), Sender(provider, "second")
    held = first.alloc(1 << 20)
    thread, got = waiting_for_memory(first)
    provider.close()
    second.close()
    second.close()
    time.sleep(0.1)
    assert got == []
    held.release()
    thread.join()
    assert got == [1 << 20]
    first.close()


@pytest.mark.parametrize("collect", [False, True])
def test_last_close_ends_waits(prefix, collect):
    provider = shm_pool.Provider(namespace=prefix, max_bytes=1 << 20)
    first, second = Publisher(provider, "first"), Sender(provider, "second")
    held = first.alloc(1 << 20)
    thread, got = waiting_for_memory(first)
    first.close()
    if collect:
        del provider, second
        gc.collect()
    else:
        provider.close()
        time.sleep(0.1)
        assert got == []
        second.close()
    thread.join()
    assert got == [shm_pool.Interrupted]
    held.release()


def test_creation_keeps_the_memory(prefix):
    """A wait for a name uses the provider's memory, and so does what it creates."""
    provider = shm_pool.Provider(namespace=prefix)
    first = Publisher(provider, "taken")
    created = []
    creating = start_blocking(lambda: created.append(Publisher(provider, "taken", timeout=60)))
    provider.close()
    first.close()
    creating.join()
    with created[0] as publisher:
        assert len(publisher.alloc(100)) == 100


@pytest.mark.parametrize("create", [Sender, Publisher])
@pytest.mark.parametrize("options", [{}, {"timeout": None}, {"timeout": 60}])
def test_copy_waits_for_memory(prefix, create, options):
    with shm_pool.Provider(namespace=prefix, max_bytes=1 << 20) as provider, create(provider, "full") as end:
        held = provider.alloc(1 << 20)
        releasing = threading.Timer(0.05, held.release)
        releasing.start()
        end.send(bytes(1000), **options)
        releasing.join()


def test_copy_gets_no_memory(prefix):
    with shm_pool.Provider(namespace=prefix, max_bytes=1 << 20) as provider:
        with Sender(provider, "pair") as sender, Publisher(provider, "default") as publisher:
            with Publisher(provider, "at once", block_limit=0) as at_once, provider.alloc(1 << 20):
                for end in sender, publisher, at_once:
                    with pytest.raises(shm_pool.PoolExhausted, match="under max_bytes 1048576"):
                        end.send(bytes(49), timeout=0)
                    with pytest.raises(shm_pool.Timeout, match="not enough memory was released"):
                        end.send(bytes(49), timeout=0.01)
                    # No memory is needed.
                    end.send(bytes(48))
                with pytest.raises(shm_pool.PoolExhausted):
                    at_once.send(bytes(49))
                # A sender waits on: until its wait is ended.
                ending = threading.Timer(0.1, provider.close_waits)
                ending.start()
                with pytest.raises(shm_pool.Interrupted):
                    sender.send(bytes(49))
                ending.join()


def test_block_limit_of_a_copy(prefix):
    with shm_pool.Provider(namespace=prefix, max_bytes=1 << 20) as provider:
        default = Publisher(provider, "default")
        brief = asyncio.run(Publisher.create_async(provider, "brief", block_limit=0.01))
        with default, brief, provider.alloc(1 << 20):
            for publisher, limit in (brief, r"\d+(\.\d+)?ms"), (default, r"5(\.\d+)?s"):
                with pytest.raises(shm_pool.Timeout, match=f"not enough memory was released within {limit}"):
                    publisher.send(bytes(49))


def test_timeouts_are_checked(provider):
    for timeout in -1, float("nan"):
        with pytest.raises(shm_pool.InvalidArgument, match="timeout"):
            provider.alloc(1, timeout=timeout)
    provider.alloc(1, timeout=1e300)


def test_stats(provider):
    with provider.alloc(100_000):
        stats = provider.stats()
        assert stats.bytes_in_use >= 100_000 and stats.max_bytes == 64 << 20
        assert (stats.hits, stats.misses, stats.segments) == (0, 1, 1)
    provider.alloc(100_000)
    assert provider.stats().hits == 1
    assert provider.trim() >= 100_000
    assert provider.reclaim() == 0


def test_trim_to(provider):
    with provider.alloc(1 << 20), provider.alloc(4 << 20):
        held = provider.stats().bytes_held
    assert provider.trim_to(held) == 0
    assert provider.trim_to(2 << 20) >= held - (2 << 20)
    assert provider.stats().bytes_held <= 2 << 20
    provider.trim_to(0)
    assert provider.stats().bytes_held == 0
    with pytest.raises(OverflowError):
        provider.trim_to(-1)
    provider.close()
    with pytest.raises(shm_pool.Closed):
        provider.trim_to(0)


def test_reservation(provider):
    with provider.reserve(1000, 4) as reservation:
        assert reservation.count == 4
        provider.alloc(1000)
        assert provider.stats().hits == 1
    with pytest.raises(shm_pool.Closed):
        reservation.count


def test_sweep(prefix, python):
    program = """if True:
        import os, shm_pool, signal, sys
        provider = shm_pool.Provider(namespace=sys.argv[1])
        buffer = provider.alloc(4096)
        print("ready")
        signal.pause()
    """
    child = python(program, prefix)
    child.line()
    child.kill()
    namespace = shm_pool.Namespace(prefix)
    swept = namespace.sweep()
    assert swept.objects == 2 and swept.bytes > 4096
    assert repr(swept) == f"Swept(objects=2, bytes={swept.bytes})"
    assert namespace.sweep() == shm_pool.Namespace("no-such-prefix").sweep()


def test_room_for(prefix):
    lengths = [(100_000, 3), (5000, 4)]
    with shm_pool.Provider(namespace=prefix, room_for=lengths) as provider:
        held = [provider.alloc(len) for len, count in lengths for _ in range(count)]
        assert len(held) == 7
        with pytest.raises(shm_pool.PoolExhausted):
            provider.alloc(100_000)
    room = provider_bytes(prefix, room_for=[(100_000, 3)])
    assert room >= 3 * shm_pool.Provider.chunk_size(100_000)
    assert provider_bytes(prefix, room_for=[(100_000, 3)], max_bytes=1 << 20) > room
    with pytest.raises(TypeError, match="argument 'room_for'"):
        shm_pool.Provider(room_for=[100_000])


def provider_bytes(prefix, **options):
    with shm_pool.Provider(namespace=prefix, **options) as provider:
        return provider.stats().max_bytes
