/* Publishes the time, once a second. Run it in one terminal, and `subscriber` in another, in any order.
 * README.md says how to build both. */
#include <inttypes.h>
#include <shm_pool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void check(shm_pool_status status) {
    if (status != SHM_POOL_STATUS_OK) {
        fprintf(stderr, "error: %s\n", shm_pool_last_error());
        exit(1);
    }
}

int main(void) {
    shm_pool_provider *provider;
    shm_pool_publisher *publisher;
    check(shm_pool_provider_create(NULL, &provider));
    check(shm_pool_publisher_create(provider, "time", NULL, 0, &publisher));
    for (;;) {
        uint64_t seconds = (uint64_t)time(NULL);
        shm_pool_buf_mut buffer; /* a megabyte, which is not copied */
        check(shm_pool_provider_alloc_zeroed(provider, 1 << 20, &buffer));
        memcpy(shm_pool_buf_mut_data(&buffer), &seconds, sizeof seconds);

        shm_pool_sent sent;
        check(shm_pool_publisher_send_mut(publisher, &buffer, SHM_POOL_FOREVER, &sent));
        printf("sent to %" PRIu64 " subscribers\n", sent.receivers);
        fflush(stdout);
        sleep(1);
    }
}
