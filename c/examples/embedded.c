/* An embedded or real-time publisher: all memory is allocated, locked and touched before the first sample,
 * and the threads have a fixed priority where the user may set one. Publishes a sample each millisecond,
 * to a subscriber that is a thread here. Prints the latency from the intended time of a sample until its
 * bytes are readable. Usage: embedded [CHANNEL]
 * cc -std=gnu11 -pthread embedded.c -o embedded $(pkg-config --cflags --libs shm-pool) && ./embedded */
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <shm_pool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define LEN 1800
#define PERIOD_NS UINT64_C(1000000)
#define WARM_UP 10
#define SAMPLES 500

static uint64_t latencies[WARM_UP + SAMPLES]; /* written by the subscriber */
static size_t received;

static void check(shm_pool_status status) {
    if (status != SHM_POOL_STATUS_OK) {
        fprintf(stderr, "error: %s\n", shm_pool_last_error());
        exit(1);
    }
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static void sleep_until(uint64_t time_ns) {
    struct timespec time = {
        .tv_sec = (time_t)(time_ns / UINT64_C(1000000000)),
        .tv_nsec = (long)(time_ns % UINT64_C(1000000000)),
    };
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL) != 0) {
    }
}

/* Gives the calling thread a fixed priority, above all threads without one. */
static void raise_priority(const char *thread, int priority) {
    struct sched_param parameters = {.sched_priority = priority};
    int error = pthread_setschedparam(pthread_self(), SCHED_FIFO, &parameters);
    if (error != 0)
        printf("the priority of the %s is not raised: %s\n", thread, strerror(error));
}

static void *subscribe(void *argument) {
    shm_pool_receiver *subscriber = argument;
    raise_priority("subscriber", 51);
    for (;;) {
        shm_pool_event event;
        shm_pool_message message;
        shm_pool_status status = shm_pool_receiver_recv_event(subscriber, SHM_POOL_FOREVER, &event, &message);
        if (status == SHM_POOL_STATUS_DISCONNECTED)
            return NULL;
        check(status);
        if (event.kind == SHM_POOL_EVENT_CONNECTED) {
            check(shm_pool_receiver_warm(subscriber, NULL)); /* maps and faults in the reserved memory */
        } else if (event.kind == SHM_POOL_EVENT_MESSAGE) {
            uint64_t due;
            memcpy(&due, shm_pool_message_data(&message), sizeof due); /* read in place */
            latencies[received++] = now_ns() - due;
            shm_pool_message_drop(&message);
        }
    }
}

/* Publishes samples at their intended times, so that the rate does not drift. */
static void publish(shm_pool_publisher *publisher, uint64_t first, int samples) {
    for (int number = 0; number < samples; number++) {
        uint64_t due = first + PERIOD_NS * (uint64_t)number;
        sleep_until(due);
        shm_pool_buf_mut sample;
        shm_pool_buf message;
        check(shm_pool_publisher_alloc(publisher, LEN, &sample)); /* one that was reserved */
        memset(shm_pool_buf_mut_data(&sample), 7, LEN);
        memcpy(shm_pool_buf_mut_data(&sample), &due, sizeof due);
        check(shm_pool_buf_mut_freeze(&sample, &message));
        check(shm_pool_publisher_send(publisher, &message, SHM_POOL_FOREVER, NULL));
    }
}

static int compare(const void *left, const void *right) {
    uint64_t a = *(const uint64_t *)left;
    uint64_t b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "imu";

    /* 1. The size: what the subscriber may have queued, the one that it reads, and the one being written. */
    shm_pool_expected_subscriber expected = {
        .options = {.capacity = 4, .on_full = SHM_POOL_DROP_OLDEST, .on_end = SHM_POOL_RETURN},
        .views = 1,
    };
    shm_pool_publisher_options publisher_options = {
        .refuse_blocking = true,
        .expected = &expected,
        .expected_count = 1,
    };
    size_t buffers;
    check(shm_pool_publisher_buffers(&publisher_options, &expected, 1, &buffers));
    shm_pool_room room = {.len = LEN, .count = buffers};
    shm_pool_provider_options options = {
        .room = &room,
        .room_count = 1,
        .max_idle_per_class = buffers,
        .max_shared = 16, /* each takes 128 bytes, which are locked too */
        .idle_window = SHM_POOL_ZERO, /* what is idle stays */
        .lock_memory = true,
    };

    /* 2. The pool, locked into RAM if the user may. */
    shm_pool_provider *provider;
    shm_pool_status status = shm_pool_provider_create(&options, &provider);
    if (status != SHM_POOL_STATUS_OK) {
        printf("the pool is not locked: %s\n", shm_pool_last_error());
        options.lock_memory = false;
        status = shm_pool_provider_create(&options, &provider);
    }
    check(status);

    /* 3. Reserve, and 4. refuse receivers that would make a send wait. */
    shm_pool_reservation *reservation;
    shm_pool_publisher *publisher;
    check(shm_pool_provider_reserve(provider, LEN, buffers, &reservation));
    check(shm_pool_publisher_create(provider, name, &publisher_options, 0, &publisher));

    /* 5. The subscriber, usually in another process. */
    shm_pool_client *client;
    shm_pool_receiver *subscriber;
    pthread_t thread;
    check(shm_pool_client_create(NULL, &client));
    check(shm_pool_subscriber_open(client, name, &expected.options, 0, &subscriber));
    if (pthread_create(&thread, NULL, subscribe, subscriber) != 0)
        return 1;
    check(shm_pool_publisher_wait_for_receivers(publisher, 1, SHM_POOL_FOREVER));

    /* 6. Run the loop, which touches code and stack, and lock what was touched. */
    publish(publisher, now_ns(), WARM_UP);
    if (mlockall(MCL_CURRENT | MCL_ONFAULT) != 0)
        perror("the rest of the process is not locked");
    raise_priority("publisher", 50);

    shm_pool_counters before;
    shm_pool_counters after;
    check(shm_pool_provider_counters(provider, &before));
    publish(publisher, now_ns() + PERIOD_NS, SAMPLES);
    check(shm_pool_provider_counters(provider, &after));

    shm_pool_publisher_destroy(publisher); /* the subscriber gets what was sent, and ends */
    pthread_join(thread, NULL);
    qsort(latencies, received, sizeof latencies[0], compare);
    printf("%zu samples received, median %" PRIu64 " ns, worst %" PRIu64 " ns\n", received,
           latencies[received / 2], latencies[received - 1]);
    printf("%" PRIu64 " chunks made after start-up, %" PRIu64 " of %" PRIu64 " bytes held\n",
           after.misses - before.misses, after.bytes_held, after.max_bytes);

    shm_pool_receiver_destroy(subscriber);
    shm_pool_client_destroy(client);
    shm_pool_reservation_destroy(reservation);
    shm_pool_provider_destroy(provider);
    return after.misses == before.misses ? 0 : 1;
}
