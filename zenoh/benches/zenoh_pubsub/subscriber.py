"""A stock zenoh subscriber in Python, for messages that another process has allocated in shared memory.

It needs eclipse-zenoh and nothing else; whose memory the messages are in makes no difference to it. It checks that each
message came as shared memory, in order, and compares every byte with its own copy of the file that the publisher streams.

    cargo bench -p shm-pool-zenoh --bench zenoh_pubsub -- --python path/to/python

starts it as one of several subscribers. What it has seen is the last line of its output, as JSON. The exit code is 0 only if it saw
every message as it must be.
"""

import argparse
import json
import queue
import struct
import sys
import time
from collections.abc import Iterator

import zenoh

DATA = "shm_pool/example/data"
READY = "shm_pool/example/ready"
DONE = "shm_pool/example/done"

# How long no message may come before something must be wrong. Only then: nothing is timed by it.
SILENCE_SECONDS = 30


def main() -> int:
    options = parse()
    try:
        summary = follow(options)
    except (WrongMessage, zenoh.ZError) as error:
        print(f"subscriber {options.index} (Python): {error}", file=sys.stderr)
        return 1
    print(json.dumps({"done": summary}), flush=True)
    return 0


class WrongMessage(Exception):
    """A message that is not what it must be, or that did not come."""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Checks messages that came by zenoh in shared memory.")
    parser.add_argument("--connect", required=True, metavar="ENDPOINT", help="where the publisher listens")
    parser.add_argument("--key", default=DATA, help="what to subscribe to (default: %(default)s)")
    parser.add_argument("--index", type=int, default=0, help="the number that the publisher knows this subscriber by")
    parser.add_argument("--file", required=True, help="the file that is streamed, again and again")
    parser.add_argument("--messages", type=int, required=True, help="how many messages come")
    parser.add_argument("--sizes", required=True, help="their sizes in bytes, in turn, with commas between them")
    return parser.parse_args()


def configuration(endpoint: str) -> zenoh.Config:
    """One connection, shared memory on, and nothing found by scouting."""
    config = zenoh.Config()
    for key, value in {
        "mode": "peer",
        "listen/endpoints": [],
        "connect/endpoints": [endpoint],
        "connect/timeout_ms": 5000,
        "connect/exit_on_failure": True,
        "scouting/multicast/enabled": False,
        "scouting/gossip/enabled": False,
        "transport/shared_memory/enabled": True,
    }.items():
        config.insert_json5(key, json.dumps(value))
    return config


def expected(path: str, sizes: list[int]) -> Iterator[bytes]:
    """The messages, without end: each starts in the file where the last one ended, and the file starts again at its end."""
    with open(path, "rb") as file:
        content = file.read()
    length = len(content)
    # Long enough for a message that runs over the end.
    content *= 1 + -(-max(sizes) // length)
    start = 0
    while True:
        for size in sizes:
            yield content[start : start + size]
            start = (start + size) % length


def follow(options: argparse.Namespace) -> dict:
    """Receives every message, and returns what there is to tell about them."""
    contents = expected(options.file, [int(size) for size in options.sizes.split(",")])
    arrivals: queue.SimpleQueue = queue.SimpleQueue()
    latencies = []
    received = 0
    with zenoh.open(configuration(options.connect)) as session:
        session.declare_subscriber(
            options.key, lambda sample: arrivals.put((time.clock_gettime_ns(time.CLOCK_MONOTONIC), sample))
        )
        done = session.declare_publisher(
            f"{DONE}/{options.index}", congestion_control=zenoh.CongestionControl.BLOCK
        )
        # Shown only now: the publisher starts when it sees it.
        token = session.liveliness().declare_token(f"{READY}/{options.index}")
        for number in range(options.messages):
            try:
                arrived, sample = arrivals.get(timeout=SILENCE_SECONDS)
            except queue.Empty:
                raise WrongMessage(f"message {number} did not come in {SILENCE_SECONDS} s") from None
            sent = check(sample, number, next(contents))
            latencies.append(arrived - sent)
            received += len(sample.payload)
            # The memory may be used again as soon as nobody has the message.
            del sample
            done.put(struct.pack("<Q", number + 1))
        objects = mapped()
        # Tells the publisher that this subscriber holds nothing any more.
        token.undeclare()
    latencies.sort()
    return {
        "messages": options.messages,
        "bytes": received,
        "compared": received,
        "held": 0,
        "p50": quantile(latencies, 0.5),
        "p99": quantile(latencies, 0.99),
        "p999": quantile(latencies, 0.999),
        "objects": objects,
    }


def check(sample: zenoh.Sample, number: int, content: bytes) -> int:
    """Raises WrongMessage unless the sample is what it must be; returns when it was sent."""
    if sample.attachment is None or len(sample.attachment) != 24:
        raise WrongMessage(f"message {number} has no stamp")
    stamped, sent, _ = struct.unpack("<QQQ", bytes(sample.attachment))
    if stamped != number:
        raise WrongMessage(f"message {stamped} came when {number} was due: lost or out of order")
    buffer = sample.payload.as_shm()
    if buffer is None:
        raise WrongMessage(f"message {number} is not in shared memory")
    # Python's binding shows a buffer's bytes only as a copy.
    if bytes(buffer) != content:
        raise WrongMessage(f"message {number} of {len(sample.payload)} bytes differs from the file")
    return sent


def mapped() -> list[str]:
    """The names of zenoh's shared-memory objects that this process has mapped: none may be left when all have ended."""
    with open("/proc/self/maps", encoding="ascii", errors="replace") as maps:
        names = (line.rstrip("\n").partition("/dev/shm/")[2] for line in maps)
        return sorted({name for name in names if name.endswith(".zenoh")})


def quantile(ordered: list[int], share: float) -> int:
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


if __name__ == "__main__":
    sys.exit(main())
