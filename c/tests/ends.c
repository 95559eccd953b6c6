/* Sends messages, and ends: ends PREFIX KIND HOW. KIND is "sender" or "publisher", and HOW is "return"
 * (after destroying everything), "exit" or "abort" (without). */
#include "check.h"
#include <stdlib.h>
#include <string.h>

enum { LEN = 65536, MESSAGES = 8 };

int main(int argc, char **argv) {
    CHECK(argc == 4);
    shm_pool_provider_options options = {.max_bytes = 8 << 20, .name_prefix = argv[1]};
    shm_pool_provider *provider;
    shm_pool_sender *sender = NULL;
    shm_pool_publisher *publisher = NULL;
    OK(shm_pool_provider_create(&options, &provider));
    if (strcmp(argv[2], "sender") == 0) {
        OK(shm_pool_sender_create(provider, "channel", NULL, 0, &sender));
        OK(shm_pool_sender_wait_for_receiver(sender, 60 * SECOND));
    } else {
        OK(shm_pool_publisher_create(provider, "channel", NULL, 0, &publisher));
        OK(shm_pool_publisher_wait_for_receivers(publisher, 1, 60 * SECOND));
    }
    for (uint8_t number = 0; number < MESSAGES; number++) {
        shm_pool_buf_mut buf;
        shm_pool_buf frozen;
        OK(shm_pool_provider_alloc(provider, LEN, &buf));
        memset(shm_pool_buf_mut_data(&buf), number, LEN);
        OK(shm_pool_buf_mut_freeze(&buf, &frozen));
        if (sender) OK(shm_pool_sender_send(sender, &frozen, SHM_POOL_FOREVER));
        else OK(shm_pool_publisher_send(publisher, &frozen, SHM_POOL_FOREVER, NULL));
    }
    if (strcmp(argv[3], "abort") == 0) abort();
    if (strcmp(argv[3], "exit") == 0) exit(0);
    shm_pool_provider_destroy(provider);
    shm_pool_sender_destroy(sender);
    shm_pool_publisher_destroy(publisher);
    return 0;
}
