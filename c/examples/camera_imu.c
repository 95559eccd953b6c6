/* A camera with 60 frames of 6 MB per second, and an IMU with 1000 samples, each on a channel of its own:
 * camera_imu CAMERA IMU SECONDS. Receivers in any language join and leave; `make -C c c` and `make -C c cpp`
 * start some. Frames are sent without a copy; the camera waits for no receiver, the IMU for its logger. */
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <pthread.h>
#include <shm_pool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FRAME = 6000000, SAMPLE = 48 };
#define SECOND UINT64_C(1000000000)
#define TIMEOUT (60 * SECOND) /* for a busy machine to start a process */

static void check(shm_pool_status status, const char *what) {
    if (status != SHM_POOL_STATUS_OK) {
        fprintf(stderr, "camera_imu: %s: %s\n", what, shm_pool_last_error());
        exit(1);
    }
}

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * SECOND + (uint64_t)time.tv_nsec;
}

static void sleep_until(uint64_t time) {
    struct timespec when = {.tv_sec = (time_t)(time / SECOND), .tv_nsec = (long)(time % SECOND)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, NULL) != 0) {}
}

/* Writes the message's number and the position into every eight bytes: receivers check all of them. */
static void fill(uint8_t *data, size_t len, uint64_t number) {
    for (uint64_t at = 0; at < len / 8; at++) {
        uint64_t word = number << 32 | at;
        memcpy(data + 8 * at, &word, 8);
    }
}

struct sensor {
    const shm_pool_provider *provider;
    shm_pool_publisher *publisher;
    uint64_t end; /* of the recording */
};

static void *film(void *argument) {
    const struct sensor *camera = argument;
    uint64_t next = now();
    for (uint64_t number = 0; next < camera->end; number++) {
        sleep_until(next);
        shm_pool_buf_mut buf;
        shm_pool_buf frame;
        check(shm_pool_provider_alloc(camera->provider, FRAME, &buf), "a frame");
        fill(shm_pool_buf_mut_data(&buf), FRAME, number);
        check(shm_pool_buf_mut_freeze(&buf, &frame), "a frame");
        check(shm_pool_publisher_send(camera->publisher, &frame, SHM_POOL_FOREVER, NULL), "sending a frame");
        next += SECOND / 60;
    }
    return NULL;
}

static void *measure(void *argument) {
    const struct sensor *imu = argument;
    uint64_t next = now();
    for (uint64_t number = 0; next < imu->end; number++) {
        sleep_until(next);
        uint8_t sample[SAMPLE];
        fill(sample, SAMPLE, number);
        check(shm_pool_publisher_send_copy(imu->publisher, sample, SAMPLE, TIMEOUT, NULL), "sending a sample");
        next += SECOND / 1000;
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: %s CAMERA IMU SECONDS\n", argv[0]);
        return 2;
    }
    const char *camera_name = argv[1];
    const char *imu_name = argv[2];
    uint64_t seconds = strtoull(argv[3], NULL, 10);

    /* One frame being written, two waiting, those that receivers hold, and some to spare. */
    shm_pool_provider_options memory = {.max_bytes = 12 * FRAME};
    shm_pool_provider *provider;
    check(shm_pool_provider_create(&memory, &provider), "the provider");

    /* Two frames wait for a receiver, which has up to two in hand. */
    shm_pool_publisher_options newest = {.capacity = 2, .max_bytes_per_receiver = 6 * FRAME, .refuse_blocking = true};
    struct sensor camera = {.provider = provider};
    check(shm_pool_publisher_create(provider, camera_name, &newest, 0, &camera.publisher), "the camera's channel");
    struct sensor imu = {.provider = provider};
    check(shm_pool_publisher_create(provider, imu_name, NULL, 0, &imu.publisher), "the IMU's channel");

    check(shm_pool_publisher_wait_for_receivers(camera.publisher, 1, TIMEOUT), "waiting for a receiver of frames");
    check(shm_pool_publisher_wait_for_receivers(imu.publisher, 1, TIMEOUT), "waiting for a receiver of samples");

    camera.end = now() + seconds * SECOND;
    imu.end = camera.end;
    pthread_t filming;
    pthread_t measuring;
    if (pthread_create(&filming, NULL, film, &camera) != 0) return 1;
    if (pthread_create(&measuring, NULL, measure, &imu) != 0) return 1;
    pthread_join(filming, NULL);
    pthread_join(measuring, NULL);

    /* The program reports only when everything has been received. */
    check(shm_pool_publisher_wait_until_received(camera.publisher, TIMEOUT), "waiting for the last frame");
    check(shm_pool_publisher_wait_until_received(imu.publisher, TIMEOUT), "waiting for the last sample");
    shm_pool_publisher_destroy(camera.publisher);
    shm_pool_publisher_destroy(imu.publisher);

    shm_pool_stats stats;
    check(shm_pool_provider_stats(provider, &stats), "statistics");
    printf("camera_imu: %" PRIu64 " frames reused memory, %" PRIu64 " did not\n", stats.hits, stats.misses);
    shm_pool_provider_destroy(provider);
    return 0;
}
