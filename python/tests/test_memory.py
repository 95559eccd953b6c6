"""Buffers and messages: the buffer protocol, messages, and what ends them."""

import gc
import io

import numpy as np
import pytest

import shm_pool


@pytest.fixture
def receive(provider, client):
    """Sends something, and returns the message."""
    with shm_pool.Sender(provider, "memory") as sender, shm_pool.Receiver("memory", client) as receiver:

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


def test_array_keeps_borrowed(prefix, client):
    with shm_pool.Provider(name_prefix=prefix, max_bytes=1 << 20) as provider:
        with shm_pool.Sender(provider, "borrowed") as sender, shm_pool.Receiver("borrowed", client) as receiver:
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
    assert message.missed == 0
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
    provider.disconnect(peer)
    with pytest.raises(shm_pool.Disconnected):
        provider.alloc(1).grant(peer)


def test_no_peer(provider):
    buffer = provider.alloc(1)
    for call in (buffer.grant, buffer.revoke, provider.disconnect):
        with pytest.raises(shm_pool.InvalidArgument, match="24 bytes, but 3 were given"):
            call(b"123")
    assert not buffer.readonly


def test_quota_of_a_client(prefix, client):
    with shm_pool.Provider(name_prefix=prefix, max_bytes_per_peer=1 << 16) as provider:
        buffers = [provider.alloc(1 << 15) for _ in range(3)]
        held = [client.attach(buffer.descriptor()) for buffer in buffers[:2]]
        with pytest.raises(shm_pool.TooManyBorrowed, match="over the quota"):
            client.attach(buffers[2].descriptor())
        held.pop().release()
        assert len(client.attach(buffers[2].descriptor())) == 1 << 15
