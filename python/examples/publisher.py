"""Publishes the time, once a second. Run it in one terminal, and subscriber.py in another, in any order."""

import time

import shm_pool

provider = shm_pool.Provider()
publisher = shm_pool.Publisher(provider, "time")
while True:
    with publisher.alloc(1 << 20, zeroed=True) as buffer:  # a megabyte, which is not copied
        buffer[:8] = int(time.time()).to_bytes(8, "little")
        sent = publisher.send(buffer)
    print("sent to", sent.receivers, "subscribers")
    time.sleep(1)
