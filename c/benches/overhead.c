/* What a message costs through the C interface: prints the nanoseconds of an alloc and drop, and of a
 * send, each of the least disturbed batch. The same loops in Rust are in overhead.rs, which runs both in
 * turns. */
#include <float.h>
#include <shm_pool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { LEN = 4096, BATCH = 128 };

static void check(shm_pool_status status) {
    if (status != SHM_POOL_STATUS_OK) {
        fprintf(stderr, "%s\n", shm_pool_last_error());
        exit(1);
    }
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static double alloc_and_drop(const shm_pool_provider *provider, long batches) {
    double best = DBL_MAX;
    for (long batch = 0; batch < batches; batch++) {
        double start = now();
        for (int at = 0; at < BATCH; at++) {
            shm_pool_buf_mut buf;
            check(shm_pool_provider_alloc(provider, LEN, &buf));
            shm_pool_buf_mut_drop(&buf);
        }
        double elapsed = now() - start;
        if (elapsed < best) best = elapsed;
    }
    return best / BATCH;
}

static double send(const shm_pool_provider *provider, const char *name, long batches) {
    shm_pool_sender *sender;
    shm_pool_client *client;
    shm_pool_receiver *receiver;
    check(shm_pool_sender_create(provider, name, NULL, 0, &sender));
    check(shm_pool_client_create(NULL, &client));
    check(shm_pool_receiver_open(client, name, NULL, 0, &receiver));
    static shm_pool_buf bufs[BATCH];
    double best = DBL_MAX;
    for (long batch = 0; batch < batches; batch++) {
        for (int at = 0; at < BATCH; at++) {
            shm_pool_buf_mut buf;
            check(shm_pool_provider_alloc(provider, LEN, &buf));
            check(shm_pool_buf_mut_freeze(&buf, &bufs[at]));
        }
        double start = now();
        for (int at = 0; at < BATCH; at++) check(shm_pool_sender_send(sender, &bufs[at], SHM_POOL_FOREVER));
        double elapsed = now() - start;
        if (elapsed < best) best = elapsed;
        for (int at = 0; at < BATCH; at++) {
            shm_pool_message message;
            check(shm_pool_receiver_recv(receiver, 0, &message));
            shm_pool_message_drop(&message);
        }
    }
    shm_pool_receiver_destroy(receiver);
    shm_pool_client_destroy(client);
    shm_pool_sender_destroy(sender);
    return best / BATCH;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    shm_pool_provider_options options = {.max_bytes = 64 << 20, .max_idle_per_class = 2 * BATCH};
    shm_pool_provider *provider;
    check(shm_pool_provider_create(&options, &provider));
    long batches = atol(argv[2]);
    printf("%f\n", alloc_and_drop(provider, batches));
    printf("%f\n", send(provider, argv[1], batches));
    shm_pool_provider_destroy(provider);
    return 0;
}
