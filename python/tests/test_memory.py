"""Buffers and messages: the buffer protocol, messages, and what ends them."""

import gc
import io

import numpy as np
import pytest

import shm_pool


@pytest.fixture
def receive(provider, prefix):
    """Sends something, and returns the message."""
    with shm_pool.Sender(provider, "memory") as sender, shm_pool.Receiver("memory", prefix) as receiver:

        def receive(message):
            sender.send(message)
            return receiver.recv(timeout=10)

        yield receive


def address(array):
    return array.__array_interface__["data"][0]


def test_buffer_is_an_array(provider):
    buffer = provider.alloc(1 << 20, zeroed=True)
    array = np.asarray(buffer)
    assert (array.dtype, array.shape, array.flags.writeable) == (np.uint8, (1 << 20,), True)
    array[5] = 9
    assert memoryview(buffer)[5] == 9
    assert address(array) == address(np.asarray(buffer)), "it is no copy"
    assert address(array) % 64 == 0


def test_message_is_an_array(provider, receive):
    buffer = provider.alloc(4096)
    np.frombuffer(buffer, np.float32)[:] = np.arange(1024)
    message = receive(buffer)
    array = np.frombuffer(message, np.float32)
    assert np.array_equal(array, np.arange(1024))
    assert address(array) == address(np.frombuffer(message, np.uint8)), "it is no copy"
    assert len(message) == 4096


def test_message_is_read_only(provider, receive):
    message = receive(provider.alloc(4096, zeroed=True))
    array = np.frombuffer(message, np.uint8)
    assert not array.flags.writeable
    with pytest.raises(ValueError):
        array[0] = 1
    with pytest.raises(ValueError):
        array.setflags(write=True)
    with pytest.raises(TypeError):
        memoryview(message)[0] = 1
    assert memoryview(message).readonly
    assert bytes(message) == bytes(4096)


def test_short_message(receive):
    message = receive(b"up to 48 bytes")
    view = memoryview(message)
    del message
    gc.collect()
    assert bytes(view) == b"up to 48 bytes"


def test_copied_message(receive):
    array = np.arange(24.0).reshape(4, 6)
    assert np.array_equal(np.frombuffer(receive(array)).reshape(4, 6), array)
    with pytest.raises((ValueError, BufferError)):
        receive(array[:, ::2])
    with pytest.raises(TypeError):
        receive("text")


def test_empty_message(provider, receive):
    assert bytes(receive(b"")) == b""
    assert bytes(receive(provider.alloc(0))) == b""


def test_array_keeps_borrowed(prefix):
    with shm_pool.Provider(namespace=prefix, max_bytes=1 << 20) as provider:
        with shm_pool.Sender(provider, "borrowed") as sender, shm_pool.Receiver("borrowed", prefix) as receiver:
            with provider.alloc(1 << 20, zeroed=True) as buffer:
                sender.send(buffer)
            with receiver.recv() as message:
                array = np.frombuffer(message, np.uint8)[10:20]
            del message
            gc.collect()
            with pytest.raises(shm_pool.PoolExhausted, match="1048576 are leased by peers"):
                provider.alloc(1 << 20)
            assert array.tolist() == [0] * 10
            del array
            provider.alloc(1 << 20).release()


def test_release_refuses_while_exported(provider, receive):
    for memory in provider.alloc(100), receive(bytes(100)):
        array = np.frombuffer(memory, np.uint8)
        with pytest.raises(BufferError, match="1 array"):
            memory.release()
        assert array[0] is not None
        del array
        memory.release()
        memory.release()
        for use in memoryview, len, type(memory).__enter__:
            with pytest.raises((shm_pool.Closed, BufferError)):
                use(memory)
        assert "released" in repr(memory)


def test_with_ends_with_last_array(provider):
    with provider.alloc(1 << 20) as buffer:
        array, other = np.asarray(buffer), np.asarray(buffer)
    with pytest.raises(shm_pool.Closed):
        memoryview(buffer)
    array[:] = 1
    del array
    assert provider.stats().bytes_in_use == 1 << 20
    del other
    assert provider.stats().bytes_in_use == 0


def test_nothing_writes_what_was_sent(provider, receive):
    buffer = provider.alloc(100, zeroed=True)
    array = np.asarray(buffer)
    with pytest.raises(BufferError, match="delete it before it is frozen or sent"):
        receive(buffer)
    array[0] = 1
    del array
    message = receive(buffer)
    assert buffer.readonly and memoryview(buffer).readonly
    with pytest.raises(ValueError):
        np.asarray(buffer)[0] = 2
    assert memoryview(message)[0] == 1


def test_sent_twice(provider, receive):
    buffer = provider.alloc(100, zeroed=True)
    first, second = receive(buffer), receive(buffer)
    assert address(np.frombuffer(first, np.uint8)) == address(np.frombuffer(second, np.uint8))
    assert buffer.is_leased
    first.release()
    second.release()
    assert not buffer.is_leased


def test_resize(provider):
    buffer = provider.alloc(1000, zeroed=True)
    view = memoryview(buffer)
    with pytest.raises(BufferError):
        buffer.resize(10)
    view.release()
    buffer.resize(10)
    assert len(buffer) == 10
    with pytest.raises(shm_pool.InvalidArgument, match="capacity"):
        buffer.resize(buffer.capacity + 1)
    buffer.freeze()
    with pytest.raises(shm_pool.Error, match="frozen"):
        buffer.resize(5)


def test_writable_request_of_message(receive):
    message = receive(bytes(100))
    with pytest.raises(TypeError):
        io.BytesIO(bytes(100)).readinto(message)
    # The refused export is not counted.
    message.release()


def test_descriptor(provider, client):
    with provider.alloc(3, zeroed=True) as buffer:
        descriptor = buffer.descriptor()
        assert len(descriptor) == 32
        message = client.attach(descriptor)
    assert bytes(message) == bytes(3)
    assert message.missed == 0 and message.tag is None
    message.release()
    provider.trim()
    with pytest.raises(shm_pool.Stale):
        client.attach(descriptor)
    with pytest.raises(shm_pool.InvalidArgument):
        client.attach(bytes(32))
    with pytest.raises(shm_pool.InvalidArgument, match="32 bytes, but 5 were given"):
        client.attach(b"short")


def test_grant(provider, client):
    peer = client.connect(provider.id)
    buffer = provider.alloc(3, zeroed=True)
    descriptor = buffer.grant(peer)
    assert buffer.revoke(peer) and not buffer.revoke(peer)
    descriptor = buffer.grant(peer)
    buffer.release()
    assert bytes(client.attach(descriptor)) == bytes(3)
    assert provider.disconnect(peer)
    assert not provider.disconnect(peer)
    with pytest.raises(shm_pool.Disconnected):
        provider.alloc(1).grant(peer)


def test_no_peer(provider):
    buffer = provider.alloc(1)
    for call in (buffer.grant, buffer.revoke, provider.disconnect):
        with pytest.raises(shm_pool.InvalidArgument, match="24 bytes, but 3 were given"):
            call(b"123")
    assert not buffer.readonly


def test_quota_of_a_client(prefix, client):
    with shm_pool.Provider(namespace=prefix, max_bytes_per_peer=1 << 16) as provider:
        buffers = [provider.alloc(1 << 15) for _ in range(3)]
        held = [client.attach(buffer.descriptor()) for buffer in buffers[:2]]
        with pytest.raises(shm_pool.TooManyBorrowed, match="over the quota"):
            client.attach(buffers[2].descriptor())
        held.pop().release()
        assert len(client.attach(buffers[2].descriptor())) == 1 << 15


# ---- indices, arrays, DLPack ----------------------------------------------------------------------


def test_index(provider, receive):
    buffer = provider.alloc(10)
    buffer[...] = bytes(range(10))
    message = receive(buffer)
    for memory in buffer, message:
        assert (memory[0], memory[-1], memory[np.int64(3)]) == (0, 9, 3)
        assert memory[:4] == bytes(range(4)) and type(memory[:4]) is bytes
        assert memory[8:20] == b"\x08\t" and memory[5:2] == b"" and memory[...] == bytes(range(10))
        assert memory[::-3] == bytes([9, 6, 3, 0])
        assert list(memory) == list(range(10)) and 3 in memory and 10 not in memory
        for index in 10, -11:
            with pytest.raises(IndexError, match="10 bytes"):
                memory[index]
        with pytest.raises(TypeError):
            memory["1"]


def test_set_items(provider):
    buffer = provider.alloc(8, zeroed=True)
    buffer[0], buffer[-1] = 1, 255
    buffer[1:3] = b"ab"
    buffer[6:3:-2] = bytearray(b"yx")
    assert bytes(buffer) == b"\x01ab\0x\0y\xff"
    buffer[...] = np.array([[1, 2], [3, 4]], np.uint16)
    assert np.frombuffer(buffer, np.uint16).tolist() == [1, 2, 3, 4]
    buffer[2:] = memoryview(buffer)[:-2]
    assert np.frombuffer(buffer, np.uint16).tolist() == [1, 1, 2, 3]
    for key, value, error in (
        (0, 256, OverflowError),
        (0, b"a", TypeError),
        (8, 0, IndexError),
        (slice(2), b"abc", shm_pool.InvalidArgument),
        (slice(2), 7, TypeError),
    ):
        with pytest.raises(error):
            buffer[key] = value
    buffer.freeze()
    with pytest.raises(TypeError, match="frozen"):
        buffer[0] = 1


def test_released_is_no_array(provider, receive):
    for memory in provider.alloc(100), receive(bytes(100)):
        memory.release()
        for use in (
            np.asarray,
            np.array,
            np.from_dlpack,
            lambda memory: np.frombuffer(memory, np.uint8),
            lambda memory: memory[0],
            lambda memory: memory[:],
        ):
            with pytest.raises(shm_pool.Closed, match="released"):
                use(memory)


def test_array(provider):
    buffer = provider.alloc(16, zeroed=True)
    array = buffer.__array__()
    assert array.dtype == np.uint8 and address(array) == address(np.asarray(buffer))
    assert address(buffer.__array__(copy=True)) != address(array)
    assert buffer.__array__(np.float32).dtype == np.float32
    with pytest.raises(ValueError, match="uint8"):
        buffer.__array__(np.float32, copy=False)


def test_dlpack(provider, receive):
    buffer = provider.alloc(1000, zeroed=True)
    array = np.from_dlpack(buffer)
    assert (array.dtype, array.shape, array.flags.writeable) == (np.uint8, (1000,), True)
    assert address(array) == address(np.asarray(buffer)), "it is no copy"
    array[5] = 9
    with pytest.raises(BufferError, match="1 array or memoryview refers"):
        receive(buffer)
    del array
    message = receive(buffer)
    for memory in buffer, message:
        array = np.from_dlpack(memory)
        assert not array.flags.writeable and array[5] == 9
        assert memory.__dlpack_device__() == (1, 0)
        with pytest.raises(BufferError, match="1 array or memoryview refers"):
            memory.release()
        del array
        # An unused capsule holds it, too.
        capsule = memory.__dlpack__(max_version=(1, 0))
        with pytest.raises(BufferError):
            memory.release()
        del capsule
    # A consumer that does not know read-only memory gets none, but may write a copy.
    with pytest.raises(BufferError, match="read-only"):
        message.__dlpack__()
    with pytest.raises(BufferError, match="read-only"):
        message.__dlpack__(max_version=(0, 8))
    copy = np.from_dlpack(message, copy=True)
    assert copy.flags.writeable and address(copy) != address(np.asarray(message))
    message.release()
    copy[0] = 1
    for refused in {"stream": 1}, {"dl_device": (2, 0)}:
        with pytest.raises(BufferError):
            buffer.__dlpack__(max_version=(1, 0), **refused)
    with pytest.raises(shm_pool.InvalidArgument):
        buffer.__dlpack__(max_version=1)


def test_dlpack_keeps_borrowed(provider, receive):
    buffer = provider.alloc(1000)
    array = np.from_dlpack(receive(buffer))
    gc.collect()
    assert buffer.is_leased
    del array
    assert not buffer.is_leased


def test_dlpack_before_1_0(provider):
    buffer = provider.alloc(10, zeroed=True)

    class Old:
        """A producer whose consumer knows no version."""

        def __dlpack__(self, **_):
            return buffer.__dlpack__()

        def __dlpack_device__(self):
            return buffer.__dlpack_device__()

    array = np.from_dlpack(Old())
    assert address(array) == address(np.asarray(buffer))
    with pytest.raises(BufferError):
        buffer.release()
    del array
    buffer.release()


def test_copy_in_vain(provider, prefix, receive):
    buffer = provider.alloc(100, zeroed=True)
    for array in np.asarray(buffer), np.frombuffer(buffer, np.float32)[5:20], memoryview(buffer), np.from_dlpack(buffer):
        with pytest.warns(shm_pool.CopyWarning, match="send the buffer itself") as warned:
            receive(array)
        assert warned[0].filename == __file__
    with shm_pool.Provider(namespace=prefix) as other, shm_pool.Sender(other, "other") as sender:
        sender.send(np.asarray(buffer))
    del array
    receive(np.zeros(100, np.uint8))
    receive(buffer)
    with pytest.warns(shm_pool.CopyWarning):
        receive(np.asarray(buffer))
