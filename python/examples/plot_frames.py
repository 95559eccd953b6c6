"""One process simulates waves in a basin and publishes each frame; another one plots some of them.

    python plot_frames.py              # shows a window
    python plot_frames.py frames.png   # writes a file

Frames are float32 arrays in shared memory: neither side copies one to send or to receive it.
"""

import multiprocessing
import sys

import matplotlib
import numpy as np

import shm_pool

CHANNEL = "example-waves"
SHAPE = (300, 400)
FRAMES = 600
PLOTTED = range(99, FRAMES, 100)


def simulate() -> None:
    """Publishes every step of two drops that fall into water, with an island in it."""
    rows, columns = np.ogrid[: SHAPE[0], : SHAPE[1]]
    water = ((rows - 190) ** 2 + (columns - 230) ** 2 > 35**2).astype(np.float32)
    height = np.zeros(SHAPE, np.float32)
    for row, column in (90, 110), (70, 300):
        height += np.exp(-((rows - row) ** 2 + (columns - column) ** 2) / 50, dtype=np.float32)
    before = height.copy()
    with shm_pool.Provider(max_bytes=64 << 20) as provider, shm_pool.Publisher(provider, CHANNEL) as publisher:
        publisher.wait_for_receivers(timeout=60)
        for _ in range(FRAMES):
            # The next step is computed right into shared memory.
            buffer = provider.alloc(height.nbytes, timeout=10)
            after = np.frombuffer(buffer, np.float32).reshape(SHAPE)
            inner = height[1:-1, 1:-1]
            around = height[:-2, 1:-1] + height[2:, 1:-1] + height[1:-1, :-2] + height[1:-1, 2:]
            after[:] = 0
            after[1:-1, 1:-1] = (2 * inner - before[1:-1, 1:-1] + 0.25 * (around - 4 * inner)) * 0.999
            after *= water
            del after  # it could still write
            publisher.send(buffer)
            # What was sent stays readable here, too.
            before, height = height, np.frombuffer(buffer, np.float32).reshape(SHAPE)
        publisher.wait_until_received(timeout=60)


def plot(file: str | None) -> None:
    if file is not None:
        matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 3, figsize=(10, 5.4), layout="constrained")
    # It misses no frame: the publisher waits for it.
    with shm_pool.Subscriber(
        CHANNEL, timeout=60, on_full=shm_pool.OnFull.BLOCK, on_end=shm_pool.OnEnd.RETURN
    ) as receiver:
        for number, message in enumerate(receiver):
            with message:
                if number in PLOTTED:
                    frame = np.frombuffer(message, np.float32).reshape(SHAPE)
                    axis = axes.flat[PLOTTED.index(number)]
                    image = axis.imshow(frame, cmap="RdBu", vmin=-0.12, vmax=0.12)
                    axis.set(title=f"frame {number + 1}", xticks=[], yticks=[])
    figure.colorbar(image, ax=axes, label="height", shrink=0.8)
    figure.suptitle(f"{number + 1} frames of {SHAPE[1]} × {SHAPE[0]} float32, received in place")
    if file is None:
        pyplot.show()
    else:
        figure.savefig(file, dpi=80)


if __name__ == "__main__":
    # A spawned process inherits nothing: what is in shared memory belongs to the process that made it.
    publisher = multiprocessing.get_context("spawn").Process(target=simulate)
    publisher.start()
    plot(sys.argv[1] if len(sys.argv) > 1 else None)
    publisher.join()
