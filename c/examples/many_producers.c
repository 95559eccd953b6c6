/* Many producers and one consumer: each producer has a channel of its own, and the consumer waits for all of
 * them at a time. Producers share nothing, so one that is slow, stopped or killed disturbs no other.
 * cc -std=gnu11 many_producers.c -o many_producers $(pkg-config --cflags --libs shm-pool) && ./many_producers */
#include <shm_pool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PRODUCERS 3
#define MESSAGES 100
#define LEN 100000
#define TIMEOUT UINT64_C(60000000000) /* long enough for a busy machine to start a process */

static void check(shm_pool_status status) {
    if (status != SHM_POOL_STATUS_OK) {
        fprintf(stderr, "error: %s\n", shm_pool_last_error());
        exit(1);
    }
}

static void produce(const char *name) {
    shm_pool_provider *provider;
    shm_pool_sender *sender;
    check(shm_pool_provider_create(NULL, &provider));
    check(shm_pool_sender_create(provider, name, NULL, 0, &sender));
    for (int number = 0; number < MESSAGES; number++) {
        shm_pool_buf_mut buffer;
        shm_pool_buf message;
        check(shm_pool_provider_alloc(provider, LEN, &buffer));
        memset(shm_pool_buf_mut_data(&buffer), number, LEN);
        check(shm_pool_buf_mut_freeze(&buffer, &message));
        check(shm_pool_sender_send(sender, &message, SHM_POOL_FOREVER));
    }
    /* A channel that no receiver has opened would be discarded with its sender. */
    check(shm_pool_sender_wait_for_receiver(sender, TIMEOUT));
    shm_pool_sender_destroy(sender);
    shm_pool_provider_destroy(provider);
}

/* Starts this program again, as a producer. */
static void start_producer(const char *name) {
    pid_t process = fork();
    if (process == 0) execl("/proc/self/exe", "many_producers", name, (char *)NULL);
    if (process <= 0) {
        perror("a producer does not start");
        _exit(1);
    }
}

static void consume(void) {
    shm_pool_receiver *receivers[PRODUCERS];
    for (int number = 0; number < PRODUCERS; number++) {
        char name[64];
        snprintf(name, sizeof name, "work-%d/%d", (int)getpid(), number);
        start_producer(name);
        check(shm_pool_receiver_open(NULL, name, NULL, TIMEOUT, &receivers[number]));
    }

    size_t open = PRODUCERS, received = 0;
    while (open > 0) {
        size_t ready; /* those that have messages take turns */
        shm_pool_message message;
        check(shm_pool_wait_any(receivers, open, TIMEOUT, &ready));
        shm_pool_status status = shm_pool_receiver_recv(receivers[ready], 0, &message);
        if (status == SHM_POOL_STATUS_DISCONNECTED) {
            /* This producer has ended, and everything that it sent has been received. */
            shm_pool_receiver_destroy(receivers[ready]);
            receivers[ready] = receivers[--open];
        } else if (status != SHM_POOL_STATUS_EMPTY) { /* a sender may withdraw a message */
            check(status);
            received++;
            shm_pool_message_drop(&message);
        }
    }

    int result;
    while (wait(&result) > 0) {
        if (result != 0) exit(1);
    }
    printf("%zu messages of %d producers\n", received, PRODUCERS);
}

int main(int argc, char **argv) {
    if (argc > 1)
        produce(argv[1]);
    else
        consume();
}
