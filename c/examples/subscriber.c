/* Receives what `publisher` sends, before and after it is restarted. Run it in one terminal, and `publisher`
 * in another, in any order. README.md says how to build both. */
#include <inttypes.h>
#include <shm_pool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(shm_pool_status status) {
    if (status != SHM_POOL_STATUS_OK) {
        fprintf(stderr, "error: %s\n", shm_pool_last_error());
        exit(1);
    }
}

int main(void) {
    shm_pool_receiver *subscriber;
    check(shm_pool_subscriber_open(NULL, "time", NULL, 0, &subscriber));
    for (;;) {
        shm_pool_message message;
        uint64_t seconds;
        check(shm_pool_receiver_recv(subscriber, SHM_POOL_FOREVER, &message));
        memcpy(&seconds, shm_pool_message_data(&message), sizeof seconds); /* read in place */
        printf("%zu bytes, at %" PRIu64 "\n", shm_pool_message_len(&message), seconds);
        fflush(stdout);
        shm_pool_message_drop(&message);
    }
}
