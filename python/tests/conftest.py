"""What the tests share: names of their own in /dev/shm, child processes, and the Rust peer."""

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import shm_pool

ROOT = Path(__file__).resolve().parents[2]
# Long enough for a busy machine to start a process.
TIMEOUT = 60.0
_numbers = itertools.count()

# A shell that runs the tests in the background has set it to be ignored, which processes inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    """Ends a test that waits for what does not come. Its handler runs although a call waits."""

    def give_up(*_: object) -> None:
        raise AssertionError("the test hangs")

    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(int(2 * TIMEOUT))
    yield
    signal.alarm(0)


@pytest.fixture
def prefix() -> Iterator[str]:
    """A name prefix of this test, which must leave nothing in /dev/shm, once a sweep has removed what
    killed processes left."""
    prefix = f"pytest-{os.getpid()}-{next(_numbers)}"
    yield prefix
    shm_pool.Namespace(prefix).sweep()
    left = [name for name in os.listdir("/dev/shm") if name.startswith(f"{prefix}.")]
    assert left == []


@pytest.fixture
def provider(prefix: str) -> Iterator[shm_pool.Provider]:
    with shm_pool.Provider(namespace=prefix, max_bytes=64 << 20) as provider:
        yield provider


@pytest.fixture
def client(prefix: str) -> Iterator[shm_pool.Client]:
    with shm_pool.Client(prefix) as client:
        yield client


class Child:
    """A process that reports by lines, and is killed at the end of its test."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the child exited with {self.process.wait()}"
        return line.strip()

    def kill(self, signum: int = signal.SIGKILL) -> int:
        self.process.send_signal(signum)
        return self.process.wait(TIMEOUT)

    def end(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(TIMEOUT)


@pytest.fixture
def start(prefix: str) -> Iterator[Callable[..., Child]]:
    """Starts a program. It is dead before /dev/shm is checked."""
    children: list[Child] = []

    def start(*command: str) -> Child:
        children.append(Child(*command))
        return children[-1]

    yield start
    for child in children:
        child.kill()
        child.process.__exit__(None, None, None)


@pytest.fixture
def python(start: Callable[..., Child]) -> Callable[..., Child]:
    """Starts a Python program, given as text, with arguments."""
    return lambda program, *arguments: start(sys.executable, "-uc", program, *arguments)


@pytest.fixture(scope="session")
def peer() -> str:
    """The program `peer.rs`."""
    command = ["cargo", "build", "--package", "shm-pool-python", "--example", "peer"]
    built = subprocess.run([*command, "--message-format", "json"], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    messages = map(json.loads, built.stdout.splitlines())
    [program] = [path for message in messages if (path := message.get("executable"))]
    return program
