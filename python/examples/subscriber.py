"""Receives what publisher.py sends, before and after it is restarted."""

import shm_pool

for message in shm_pool.Subscriber("time"):
    with message:  # read in place
        print(len(message), "bytes, at", int.from_bytes(message[:8], "little"))
