"""From a finished frame in one Python process to an array of it in another one, by several ways.

    python bench/frames.py [--frames N] [--rounds N]

A frame has 1920 × 1080 × 3 bytes, 6.2 MB. *Copied*: the frame is in an array of the producer, and the
way's own memory gets a copy, as with a camera's driver that has buffers of its own. *In place*: the
producer has written the frame into the way's memory before the time is taken. The time ends when the
consumer has an array and has read its first and its last byte. The consumer waits for each frame before
the producer sends it, and the ways take turns in rounds, all in one run.
"""

import argparse
import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory

import numpy as np

import shm_pool

SHAPE = (1080, 1920, 3)
BYTES = 1080 * 1920 * 3


class Consumer:
    """Receives frames, and replies with the nanoseconds that each took."""

    def __init__(self, way, replies: Connection, other) -> None:
        self.way, self.replies, self.other = way, replies, other

    def run(self) -> None:
        getattr(self, self.way)(self.other)

    def arrived(self, frame: np.ndarray) -> None:
        first, last = int(frame[0, 0, 0]), int(frame[-1, -1, -1])
        now = time.perf_counter_ns()
        begin = int(frame.reshape(-1)[8:16].view(np.int64)[0])
        assert first == last
        self.replies.send(now - begin)

    def pool(self, channel) -> None:
        with shm_pool.Receiver(channel, timeout=60) as receiver:
            for message in receiver:
                with message:
                    self.arrived(np.frombuffer(message, np.uint8).reshape(SHAPE))

    def block(self, names: Connection) -> None:
        block = SharedMemory(names.recv())
        frame = np.ndarray(SHAPE, np.uint8, block.buf)
        while names.recv():
            self.arrived(frame)
        del frame
        block.close()

    def blocks(self, names: Connection) -> None:
        while name := names.recv():
            block = SharedMemory(name)
            frame = np.ndarray(SHAPE, np.uint8, block.buf)
            self.arrived(frame)
            del frame
            block.close()

    def queue(self, queue) -> None:
        while (frame := queue.get()) is not None:
            self.arrived(frame)


def stamp(frame: np.ndarray, number: int) -> None:
    """Writes the number into both ends, and then the time."""
    flat = frame.reshape(-1)
    flat[0] = flat[-1] = number & 0xFF
    flat[8:16].view(np.int64)[0] = time.perf_counter_ns()


def write(frame: np.ndarray, source: np.ndarray, number: int | None) -> None:
    """Copies the source. With a number, the time begins after that."""
    frame[:] = source
    if number is not None:
        stamp(frame, number)


class Pool:
    """Its own buffers, and a channel."""

    name, way, in_place = "shm_pool", "pool", True

    def __init__(self, context) -> None:
        self.provider = shm_pool.Provider(max_bytes=64 << 20)
        self.other = f"bench-frames-{time.monotonic_ns()}"
        self.sender = shm_pool.Sender(self.provider, self.other)

    def send(self, source: np.ndarray, number: int | None) -> None:
        with self.provider.alloc(BYTES) as buffer:
            write(np.asarray(buffer).reshape(SHAPE), source, number)
            self.sender.send(buffer)

    def end(self) -> None:
        self.sender.close()
        self.provider.close()


class Block:
    """One block for all frames, and a pipe. The producer must know when the consumer is done with it."""

    name, way, in_place = "SharedMemory, one block and a Pipe", "block", True

    def __init__(self, context) -> None:
        self.block = SharedMemory(create=True, size=BYTES)
        self.frame = np.ndarray(SHAPE, np.uint8, self.block.buf)
        self.names, self.other = context.Pipe()
        self.names.send(self.block.name)

    def send(self, source: np.ndarray, number: int | None) -> None:
        write(self.frame, source, number)
        self.names.send(True)

    def end(self) -> None:
        self.names.send(False)
        del self.frame
        self.block.close()
        self.block.unlink()


class Blocks:
    """A block for each frame, and a pipe: frames can be kept."""

    name, way, in_place = "SharedMemory, a block per frame and a Pipe", "blocks", True

    def __init__(self, context) -> None:
        self.names, self.other = context.Pipe()
        self.last = None

    def send(self, source: np.ndarray, number: int | None) -> None:
        # The consumer is done with the last one.
        self.remove()
        self.last = SharedMemory(create=True, size=BYTES)
        write(np.ndarray(SHAPE, np.uint8, self.last.buf), source, number)
        self.names.send(self.last.name)

    def remove(self) -> None:
        if self.last is not None:
            self.last.close()
            self.last.unlink()

    def end(self) -> None:
        self.names.send("")
        self.remove()


class Queue:
    """A queue, which pickles the frame and writes it into a pipe."""

    name, way, in_place = "Queue", "queue", False

    def __init__(self, context) -> None:
        self.other = context.Queue()

    def send(self, source: np.ndarray, number: int | None) -> None:
        self.other.put(source)

    def end(self) -> None:
        self.other.put(None)


class Subject:
    """A way with its consumer."""

    def __init__(self, way_type, context) -> None:
        self.way = way_type(context)
        self.replies, theirs = context.Pipe()
        consumer = Consumer(self.way.way, theirs, self.way.other)
        self.process = context.Process(target=consumer.run)
        self.process.start()
        self.copied: list[int] = []
        self.placed: list[int] = []

    def measure(self, source: np.ndarray, frames: int) -> None:
        for number in range(frames):
            stamp(source, number)
            self.way.send(source, None)
            self.copied.append(self.replies.recv())
            if self.way.in_place:
                self.way.send(source, number)
                self.placed.append(self.replies.recv())

    def end(self) -> None:
        self.way.end()
        self.process.join()


def figures(times: list[int]) -> tuple[float, float]:
    """The median and the 99th percentile in µs."""
    ordered = sorted(times)
    return statistics.median(ordered) / 1e3, ordered[len(ordered) * 99 // 100] / 1e3


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--frames", type=int, default=20, help="per round and way")
    options.add_argument("--rounds", type=int, default=15)
    arguments = options.parse_args()
    context = multiprocessing.get_context("spawn")
    source = np.random.default_rng(0).integers(0, 256, SHAPE, np.uint8)
    subjects = [Subject(way, context) for way in (Pool, Block, Blocks, Queue)]
    for subject in subjects:
        subject.measure(source, 2)
        subject.copied.clear()
        subject.placed.clear()
    for _ in range(arguments.rounds):
        for subject in subjects:
            subject.measure(source, arguments.frames)
    for subject in subjects:
        subject.end()
    print(f"{len(subjects[0].copied)} frames of {BYTES} bytes by each way; µs: median (99th percentile)")
    print()
    print("| way | copied | times shm_pool | in place | times shm_pool |")
    print("|---|---|---|---|---|")
    ours = subjects[0]
    for subject in subjects:
        cells = [subject.way.name]
        for times, base in (subject.copied, ours.copied), (subject.placed, ours.placed):
            if times:
                (median, high), (base_median, _) = figures(times), figures(base)
                cells += [f"{median:,.0f} ({high:,.0f})", f"{median / base_median:.2f}"]
            else:
                cells += ["-", "-"]
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
