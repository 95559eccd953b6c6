"""Processes of both languages, which are killed, interrupted and forked."""

import asyncio
import hashlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import shm_pool
from conftest import TIMEOUT
from shm_pool import OnEnd, Publisher, Receiver, Sender, Subscriber

LEN = 1_000_000


def receiver_of(kind, prefix):
    if kind == "sender":
        return Receiver("ends", prefix, timeout=TIMEOUT)
    return Subscriber("ends", prefix, timeout=TIMEOUT, on_end=OnEnd.RETURN)


def objects(prefix):
    return [name for name in os.listdir("/dev/shm") if name.startswith(f"{prefix}.")]


def is_uniform(message):
    array = np.frombuffer(message, np.uint8)
    return len(array) == LEN and bool((array == array[0]).all())


def test_rust_publisher_killed(peer, start, prefix):
    publisher = start(peer, "publish", prefix, "killed", str(LEN))
    publisher.line()
    receiver = Subscriber("killed", prefix, timeout=TIMEOUT, on_end=OnEnd.RETURN)
    kept = [receiver.recv(timeout=TIMEOUT) for _ in range(5)]
    assert all(map(is_uniform, kept))
    publisher.kill()
    # What was sent before arrives.
    kept += receiver
    assert len(kept) >= 5 and all(map(is_uniform, kept))
    with pytest.raises(shm_pool.Disconnected):
        receiver.recv()
    array = np.frombuffer(kept[0], np.uint8)
    receiver.close()
    kept.clear()
    assert (array == array[0]).all(), "an array outlives everything"
    assert any(name.startswith(f"{prefix}.") for name in os.listdir("/dev/shm"))
    del array
    assert not any(name.startswith(f"{prefix}.") for name in os.listdir("/dev/shm")), "the last reader removes it"


def test_rust_receiver_killed(peer, start, prefix):
    receiver = start(peer, "subscribe", prefix, "killed", str(LEN))
    with (
        shm_pool.Provider(namespace=prefix, max_bytes=8 << 20) as provider,
        Publisher(provider, "killed", max_bytes_per_receiver=8 << 20) as publisher,
    ):
        publisher.wait_for_receivers(timeout=TIMEOUT)
        receiver.line()
        # It keeps every message.
        with pytest.raises(shm_pool.PoolExhausted, match="leased"):
            for number in range(100):
                assert publisher.send(np.full(LEN, number, np.uint8), timeout=0).receivers == 1
        assert [receiver.line() for _ in range(number)] == [str(number) for number in range(number)]
        receiver.kill()
        # Its memory is there, and its registration.
        with provider.alloc(7 << 20, timeout=TIMEOUT):
            pass
        assert publisher.receivers() == []


def test_rust_receiver_of_sender_killed(peer, start, prefix, provider):
    with Sender(provider, "killed", capacity=2) as sender:
        receiver = start(peer, "receive", prefix, "killed", str(LEN))
        sender.wait_for_receiver(timeout=TIMEOUT)
        receiver.kill()
        with pytest.raises(shm_pool.Disconnected):
            while True:
                sender.send(b"", timeout=TIMEOUT)


PUBLISH = """if True:
    import numpy as np, shm_pool, sys
    prefix, length = sys.argv[1], int(sys.argv[2])
    provider = shm_pool.Provider(namespace=prefix)
    publisher = shm_pool.Publisher(provider, "killed")
    print("ready")
    publisher.wait_for_receivers()
    for number in range(1 << 30):
        with provider.alloc(length) as buffer:
            np.asarray(buffer)[:] = number & 0xff
            publisher.send(buffer)
"""

RECEIVE = """if True:
    import shm_pool, sys
    kept = []
    for message in shm_pool.Subscriber("killed", sys.argv[1], timeout=60, on_end=shm_pool.OnEnd.RETURN):
        kept.append(message)
        print(memoryview(message)[0])
"""


def test_python_publisher_killed(peer, start, python, prefix):
    publisher = python(PUBLISH, prefix, str(LEN))
    publisher.line()
    receiver = start(peer, "subscribe", prefix, "killed", str(LEN))
    assert receiver.line() == "ready"
    receiver.line()
    publisher.kill()
    # It checks every byte, and ends with the error that the sender has died.
    assert receiver.process.wait(TIMEOUT) == 1


END = """if True:
    import os, shm_pool, sys
    prefix, kind, how = sys.argv[1:]
    provider = shm_pool.Provider(namespace=prefix)
    end = None
    if kind == "sender":
        end = shm_pool.Sender(provider, "ends")
        end.wait_for_receiver()
    elif kind == "publisher":
        end = shm_pool.Publisher(provider, "ends")
        end.wait_for_receivers()
    else:
        print(provider.id)
        peer = bytes.fromhex(input())
    for number in range(10):
        with provider.alloc(1_000_000) as buffer:
            memoryview(buffer)[:] = bytes([number]) * 1_000_000
            if end is None:
                print(buffer.grant(peer).hex())
            else:
                end.send(buffer)
    match how:
        case "close":
            if end is not None:
                end.close()
            provider.close()
        case "del":
            del buffer, end, provider
        case "return":
            pass
        case "sys.exit":
            sys.exit(0)
        case "os._exit":
            os._exit(0)
        case "abort":
            os.abort()
    if how in ("close", "del", "kill"):
        print("done")
        sys.stdin.read()
"""

ENDS = ["close", "del", "return", "sys.exit", "os._exit", "abort", "kill"]


def end(owner, how):
    """Returns when the owner, which has sent everything, has ended. After ``close`` and ``del`` the process
    runs on."""
    if how not in ("close", "del", "kill"):
        owner.process.wait(TIMEOUT)
        return
    assert owner.line() == "done"
    if how == "kill":
        owner.kill()


@pytest.mark.parametrize("kind", ["sender", "publisher"])
@pytest.mark.parametrize("how", ENDS)
def test_what_was_sent_arrives(kind, how, python, prefix):
    owner = python(END, prefix, kind, how)
    with receiver_of(kind, prefix) as receiver:
        end(owner, how)
        for number in range(10):
            with receiver.recv(timeout=TIMEOUT) as message:
                assert is_uniform(message)
                assert memoryview(message)[0] == number
        with pytest.raises(shm_pool.Disconnected):
            receiver.recv(timeout=TIMEOUT)
    assert objects(prefix) == []


@pytest.mark.parametrize("how", ENDS)
def test_what_was_granted_arrives(how, python, prefix):
    owner = python(END, prefix, "grants", how)
    with shm_pool.Client(prefix) as client:
        peer = client.connect(int(owner.line()))
        owner.process.stdin.write(peer.hex() + "\n")
        owner.process.stdin.flush()
        descriptors = [bytes.fromhex(owner.line()) for _ in range(10)]
        end(owner, how)
        for number, descriptor in enumerate(descriptors):
            with client.attach(descriptor) as message:
                assert is_uniform(message)
                assert memoryview(message)[0] == number
        with pytest.raises(shm_pool.Error, match="no grant"):
            client.attach(descriptors[0])
    assert objects(prefix) == []


READ = """if True:
    import shm_pool, sys
    prefix, kind = sys.argv[1:]
    if kind == "sender":
        receiver = shm_pool.Receiver("ends", prefix, timeout=60)
    else:
        receiver = shm_pool.Subscriber("ends", prefix, timeout=60, on_end=shm_pool.OnEnd.RETURN)
    kept = [receiver.recv() for _ in range(4)]
    print("holds some")
    sys.stdin.read()
    kept += receiver
    for number, message in enumerate(kept):
        assert bytes(message) == bytes([number]) * 1_000_000
    assert len(kept) == 10
"""


def end_beside_stopped(reader, owner, how, is_killed, prefix):
    """Stops the reader once it holds some messages, and ends the owner."""
    assert reader.line() == "holds some"
    reader.process.send_signal(signal.SIGSTOP)
    assert os.WIFSTOPPED(os.waitpid(reader.process.pid, os.WUNTRACED)[1])
    end(owner, how)
    if is_killed:
        reader.kill()
        shm_pool.Namespace(prefix).sweep()
    else:
        shm_pool.Namespace(prefix).sweep()
        reader.process.send_signal(signal.SIGCONT)
        assert reader.end() == 0
    assert objects(prefix) == []


@pytest.mark.parametrize("kind", ["sender", "publisher"])
@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("is_killed", [False, True])
def test_receiver_stopped_and_killed(kind, how, is_killed, python, prefix):
    """A receiver that is stopped while the owner ends gets everything once it continues. A sweep removes what
    a killed one has left."""
    owner = python(END, prefix, kind, how)
    reader = python(READ, prefix, kind)
    end_beside_stopped(reader, owner, how, is_killed, prefix)


READ_GRANTS = """if True:
    import shm_pool, sys
    client = shm_pool.Client(sys.argv[1])
    print(client.connect(int(input())).hex())
    descriptors = [bytes.fromhex(input()) for _ in range(10)]
    kept = [client.attach(descriptor) for descriptor in descriptors[:4]]
    print("holds some")
    sys.stdin.read()
    kept += [client.attach(descriptor) for descriptor in descriptors[4:]]
    for number, message in enumerate(kept):
        assert bytes(message) == bytes([number]) * 1_000_000
"""


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("is_killed", [False, True])
def test_reader_of_grants_stopped_and_killed(how, is_killed, python, prefix):
    """As ``test_receiver_stopped_and_killed``, with a client that has attached to some of the messages."""
    owner = python(END, prefix, "grants", how)
    reader = python(READ_GRANTS, prefix)

    def tell(child, line):
        child.process.stdin.write(line + "\n")
        child.process.stdin.flush()

    tell(reader, owner.line())
    tell(owner, reader.line())
    for _ in range(10):
        tell(reader, owner.line())
    end_beside_stopped(reader, owner, how, is_killed, prefix)


def test_python_receiver_killed(peer, start, python, prefix):
    publisher = start(peer, "publish", prefix, "killed", str(LEN))
    publisher.line()
    for _ in range(2):
        killed = python(RECEIVE, prefix)
        killed.line()
        killed.kill()
    with Subscriber("killed", prefix, timeout=TIMEOUT, on_end=OnEnd.RETURN) as receiver:
        assert all(is_uniform(receiver.recv(timeout=TIMEOUT)) for _ in range(5))
    assert publisher.end() == 0


def test_descriptors_between_processes(python, prefix, provider):
    child = python(
        """if True:
        import hashlib, shm_pool, sys
        client = shm_pool.Client(sys.argv[1])
        print(client.connect(int(sys.argv[2])).hex())
        for line in sys.stdin:
            with client.attach(bytes.fromhex(line)) as message:
                print(hashlib.sha256(message).hexdigest())
        """,
        prefix,
        str(provider.id),
    )
    peer = bytes.fromhex(child.line())
    for number in range(3):
        content = os.urandom(LEN)
        with provider.alloc(LEN) as buffer:
            memoryview(buffer)[:] = content
            descriptor = buffer.grant(peer) if number else buffer.descriptor()
            child.process.stdin.write(descriptor.hex() + "\n")
            child.process.stdin.flush()
            assert child.line() == hashlib.sha256(content).hexdigest()
    assert child.end() == 0


# ---- signals ------------------------------------------------------------------------------------

WAITS = {
    "recv": "receiver.recv()",
    "recv with timeout": "receiver.recv(timeout=1000)",
    "send": "sender.send(b'')",
    "send of a buffer": "sender.send(bytes(1000))",
    "alloc": "provider.alloc(1, timeout=None)",
    "open": "shm_pool.Receiver('nothing', prefix, timeout=None)",
    "wait for receivers": "publisher.wait_for_receivers(2)",
    "async": "asyncio.run(receiver.recv_async())",
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_keyboard_interrupt(wait, python, prefix):
    program = f"""if True:
        import asyncio, shm_pool, sys
        provider = shm_pool.Provider(namespace=sys.argv[1], max_bytes=1 << 20)
        prefix = sys.argv[1]
        sender = shm_pool.Sender(provider, "full", capacity=2)
        full = shm_pool.Receiver("full", prefix)
        try:
            while True:
                sender.send(b"", timeout=0)
        except shm_pool.Timeout:
            pass
        publisher = shm_pool.Publisher(provider, "publisher")
        receiver = shm_pool.Subscriber("publisher", prefix)
        held = provider.alloc((1 << 20) - (0 if "alloc" in {wait!r} else 8192))
        try:
            print("ready")
            {wait}
        except KeyboardInterrupt:
            print("interrupted")
        publisher.send(b"later")
        assert bytes(receiver.recv()) == b"later"
        print("usable")
    """
    child = python(program, prefix)
    child.line()
    until_asleep(child.process.pid)
    child.process.send_signal(signal.SIGINT)
    assert child.line() == "interrupted"
    assert child.line() == "usable"
    assert child.process.wait(TIMEOUT) == 0


def until_asleep(pid):
    """Waits until the main thread of a process sleeps in a futex, a poll or a sleep."""
    asleep = ("202", "449", "232", "281", "35", "230", "7", "271")
    deadline = time.monotonic() + TIMEOUT
    while Path(f"/proc/{pid}/syscall").read_text().split()[0] not in asleep:
        assert time.monotonic() < deadline
        os.sched_yield()


def test_signal_handler_closes(python, prefix):
    program = """if True:
        import shm_pool, signal, sys
        provider = shm_pool.Provider(namespace=sys.argv[1])
        sender = shm_pool.Sender(provider, "pair")
        receiver = shm_pool.Receiver("pair", sys.argv[1])
        signal.signal(signal.SIGTERM, lambda *_: receiver.close())
        print("ready")
        try:
            receiver.recv()
        except shm_pool.Closed:
            print("closed")
    """
    child = python(program, prefix)
    child.line()
    until_asleep(child.process.pid)
    child.process.send_signal(signal.SIGTERM)
    assert child.line() == "closed"


# ---- exits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("busy", [False, True])
def test_exit_while_threads_wait(busy, python, prefix):
    program = """if True:
        import shm_pool, sys, threading
        prefix, busy = sys.argv[1:]
        provider = shm_pool.Provider(namespace=prefix)
        sender, receiver = shm_pool.Sender(provider, "idle"), shm_pool.Receiver("idle", prefix)
        publisher = shm_pool.Publisher(provider, "busy")
        readers = [shm_pool.Subscriber("busy", prefix) for _ in range(2)]
        threading.Thread(target=receiver.recv, daemon=True).start()

        def read(reader):
            for message in reader:
                pass

        def write():
            while True:
                publisher.send(b"")

        if busy == "True":
            for reader in readers:
                threading.Thread(target=read, args=(reader,), daemon=True).start()
            threading.Thread(target=write, daemon=True).start()
            threading.Event().wait(0.1)
    """
    for _ in range(3):
        child = python(program, prefix, str(busy))
        assert child.end() == 0


def test_exit_beside_daemon_threads(python, prefix):
    """What is closed at exit raises nothing in a thread that still uses it."""
    program = """if True:
        import shm_pool, sys, threading
        provider = shm_pool.Provider(namespace=sys.argv[1])
        publisher = shm_pool.Publisher(provider, "busy")
        started = threading.Event()

        def write():
            started.set()
            while True:
                publisher.send(b"")
                provider.alloc(10_000)

        threading.Thread(target=write, daemon=True).start()
        started.wait()
    """
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", program, prefix], capture_output=True, timeout=TIMEOUT)
        assert (done.returncode, done.stderr) == (0, b"")


# Programs of `multiprocessing`, whose child ends in several ways. It keeps what it opens in globals, and
# tells its parent by a line on its output when it has done its part.
CHILD = """
import multiprocessing, os, sys, threading
import numpy as np
import shm_pool


def own(prefix, kind):
    global provider, end
    provider = shm_pool.Provider(namespace=prefix)
    if kind == "sender":
        end = shm_pool.Sender(provider, "ends")
    else:
        end = shm_pool.Publisher(provider, "ends")


def send():
    for number in range(10):
        with provider.alloc(1_000_000) as buffer:
            memoryview(buffer)[:] = bytes([number]) * 1_000_000
            end.send(buffer)


def unread(prefix, kind):
    own(prefix, kind)
    if kind == "sender":
        end.wait_for_receiver()
    else:
        end.wait_for_receivers()
    send()


def unheard(prefix, kind):
    own(prefix, kind)


def thread(prefix, kind):
    own(prefix, kind)

    def later():
        # The main thread has called the finalizers before it waits for this one.
        finalized.wait()
        end.wait_for_receivers()
        send()

    finalized = threading.Event()
    multiprocessing.util.Finalize(None, finalized.set, exitpriority=-(1 << 40))
    threading.Thread(target=later).start()


def read(prefix, kind):
    global receiver, message, array
    receiver = shm_pool.Receiver("ends", prefix, timeout=60) if kind == "sender" else shm_pool.Subscriber("ends", prefix, timeout=60)
    message = receiver.recv()
    array = np.frombuffer(message, np.uint8)
    print("read", flush=True)
    sys.stdin = open(0)
    sys.stdin.readline()
    assert (array == array[0]).all()


def end_as(how, target, prefix, kind):
    target(prefix, kind)
    match how:
        case "sys.exit":
            sys.exit(0)
        case "raise":
            raise SystemExit(0)
        case "finalize":
            shm_pool.finalize()
            os._exit(0)


if __name__ == "__main__":
    method, how, target, prefix, kind = sys.argv[1:]
    if method == "os.fork":
        child = os.fork()
        if child == 0:
            end_as(how, globals()[target], prefix, kind)
            os._exit(0)
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    context = multiprocessing.get_context(method)
    # The child has the standard input of this program.
    process = context.Process(target=end_as, args=(how, globals()[target], prefix, kind))
    process.start()
    process.join()
    sys.exit(process.exitcode)
"""

CHILD_ENDS = [
    *itertools.product(["fork", "spawn", "forkserver"], ["return", "sys.exit"]),
    ("os.fork", "finalize"),
]


@pytest.fixture
def child_of(start, tmp_path):
    """Starts a program whose child does `target`."""
    program = tmp_path / "child.py"
    program.write_text(CHILD)
    return lambda *arguments: start(sys.executable, str(program), *arguments)


@pytest.mark.parametrize("method, how", CHILD_ENDS)
@pytest.mark.parametrize("kind", ["sender", "publisher"])
def test_last_reader_is_a_child(kind, method, how, python, child_of, prefix):
    owner = python(END, prefix, kind, "return")
    reader = child_of(method, how, "read", prefix, kind)
    assert reader.line() == "read"
    assert owner.process.wait(TIMEOUT) == 0
    assert objects(prefix) != []
    assert reader.end() == 0
    assert objects(prefix) == [], "the last reader removes them, although it keeps an array"


@pytest.mark.parametrize("method, how", CHILD_ENDS)
@pytest.mark.parametrize("kind", ["sender", "publisher"])
def test_owner_is_a_child(kind, method, how, child_of, prefix):
    assert child_of(method, how, "unheard", prefix, kind).end() == 0
    assert objects(prefix) == [], "the owner removes them: it has no readers"
    owner = child_of(method, how, "unread", prefix, kind)
    with receiver_of(kind, prefix) as receiver:
        assert owner.end() == 0
        for number in range(10):
            with receiver.recv(timeout=TIMEOUT) as message:
                assert is_uniform(message)
                assert memoryview(message)[0] == number
    assert objects(prefix) == []


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_thread_of_a_child_sends_on(method, child_of, prefix):
    owner = child_of(method, "return", "thread", prefix, "publisher")
    with Subscriber("ends", prefix, timeout=TIMEOUT) as receiver:
        for _ in range(10):
            with receiver.recv(timeout=TIMEOUT) as message:
                assert is_uniform(message)
        assert owner.end() == 0


# ---- forks --------------------------------------------------------------------------------------


def in_fork(body):
    """Returns the exit code of a child that calls `body`, and then exits as Python does."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            body()
            code = 0
        finally:
            # No atexit handlers: they are pytest's.
            sys.stdout.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_inherited_handles(provider, client, prefix):
    sender, receiver = Sender(provider, "fork"), Receiver("fork", prefix)
    publisher = Publisher(provider, "fork-publisher")
    buffer, frozen = provider.alloc(100, zeroed=True), provider.alloc(100, zeroed=True)
    frozen.freeze()
    reservation = provider.reserve(4096, 2)
    watcher = shm_pool.Watcher(prefix)
    sender.send(bytes(100))
    message = receiver.recv()
    array = np.frombuffer(message, np.uint8)
    sender.send(b"for the parent")

    def child():
        uses = [
            lambda: provider.alloc(1),
            lambda: provider.stats(),
            lambda: memoryview(buffer),
            lambda: buffer.freeze(),
            lambda: sender.send(buffer),
            lambda: sender.send(b"short"),
            lambda: publisher.send(frozen),
            lambda: receiver.recv(),
            lambda: receiver.try_recv(),
            lambda: receiver.fileno(),
            lambda: client.attach(bytes(32)),
            lambda: client.connect(1),
            lambda: reservation.count,
            lambda: memoryview(message),
            lambda: bytes(message),
            lambda: np.asarray(message),
            lambda: np.from_dlpack(message),
            lambda: message[0],
            lambda: len(message),
            lambda: buffer[0],
            lambda: buffer.__setitem__(0, 1),
            lambda: watcher.try_recv(),
            lambda: shm_pool.wait_any([receiver]),
            lambda: asyncio.run(publisher.send_async(b"")),
            lambda: asyncio.run(provider.alloc_async(1)),
        ]
        for number, use in enumerate(uses):
            with pytest.raises(shm_pool.Forked):
                use()
                print("did not raise", number)
        assert array.tolist() == [0] * 100
        for handle in receiver, sender, publisher, provider, client, reservation:
            handle.close()
        for memory in buffer, frozen:
            memory.release()
        # The child makes its own.
        with Sender(shm_pool.Provider(namespace="pytest-fork"), "fork"):
            pass

    assert in_fork(child) == 0
    assert bytes(receiver.recv()) == b"for the parent"
    assert array.tolist() == [0] * 100
    np.asarray(buffer)[:] = 1
    sender.send(buffer)
    assert bytes(receiver.recv()) == bytes([1]) * 100
    for handle in receiver, sender, publisher, reservation:
        handle.close()


def test_child_finalizes_its_own(provider, prefix):
    """A forked child closes nothing of its parent's, and what it has opened itself."""
    sender, receiver = Sender(provider, "fork"), Receiver("fork", prefix)
    sender.send(bytes(100))
    array = np.frombuffer(receiver.recv(), np.uint8)
    sender.send(b"for the parent")

    def child():
        own = shm_pool.Provider(namespace="pytest-fork-own")
        shm_pool.finalize()
        with pytest.raises(shm_pool.Closed):
            own.alloc(1)
        with pytest.raises(shm_pool.Forked):
            provider.alloc(1)
        assert array.tolist() == [0] * 100

    assert in_fork(child) == 0
    assert objects("pytest-fork-own") == []
    assert bytes(receiver.recv()) == b"for the parent"
    sender.send(b"more")
    assert bytes(receiver.recv()) == b"more"
    assert array.tolist() == [0] * 100
    sender.close()
    receiver.close()


def test_fork_while_receiving(provider, prefix):
    with Sender(provider, "fork") as sender, Receiver("fork", prefix) as receiver:
        waiting = threading.Thread(target=receiver.recv)
        waiting.start()
        # Until the thread has the lock of the receiver.
        with pytest.raises(shm_pool.InUse):
            while True:
                receiver.capacity

        def child():
            with pytest.raises(shm_pool.Forked):
                receiver.recv()
            receiver.close()

        assert in_fork(child) == 0
        sender.send(b"")
        waiting.join()


def test_descriptors_are_not_leaked(provider, prefix):
    def count():
        return len(os.listdir("/proc/self/fd"))

    def once():
        with Publisher(provider, "leak") as publisher, Subscriber("leak", prefix) as receiver:
            receiver.fileno()
            publisher.wait_for_receivers()
            publisher.send(bytes(1000))
            receiver.recv()
        with pytest.raises(shm_pool.NotFound):
            Receiver("leak", prefix)

    once()
    before = count()
    for _ in range(20):
        once()
    assert count() == before
