/* Sends messages, and ends: ends PREFIX KIND HOW. Standard input is a socket to the test.
 * KIND is "sender", "publisher" or "grants": then the program tells its provider's id, is told the peer, and tells
 * the descriptors.
 * HOW is "return" (after destroying everything), "exit" or "abort" (without), "drop" (destroys everything, and
 * runs on) or "kill" (destroys nothing, and waits to be killed). The last two tell the test when they have got there,
 * and end with their standard input. */
#include "check.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LEN = 65536, MESSAGES = 8 };

static void wait_for_the_test(void) {
    char byte = '.';
    CHECK(write(0, &byte, 1) == 1);
    CHECK(read(0, &byte, 1) == 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 4);
    const char *kind = argv[2], *how = argv[3];
    shm_pool_provider_options options = {.max_bytes = 8 << 20, .name_prefix = argv[1]};
    shm_pool_provider *provider;
    shm_pool_sender *sender = NULL;
    shm_pool_publisher *publisher = NULL;
    shm_pool_peer_id peer;
    OK(shm_pool_provider_create(&options, &provider));
    if (strcmp(kind, "sender") == 0) {
        OK(shm_pool_sender_create(provider, "channel", NULL, 0, &sender));
        OK(shm_pool_sender_wait_for_receiver(sender, 60 * SECOND));
    } else if (strcmp(kind, "publisher") == 0) {
        OK(shm_pool_publisher_create(provider, "channel", NULL, 0, &publisher));
        OK(shm_pool_publisher_wait_for_receivers(publisher, 1, 60 * SECOND));
    } else {
        uint64_t id = shm_pool_provider_id(provider);
        CHECK(write(0, &id, sizeof id) == sizeof id);
        CHECK(read(0, peer.bytes, sizeof peer.bytes) == sizeof peer.bytes);
    }
    for (uint8_t number = 0; number < MESSAGES; number++) {
        shm_pool_buf_mut buf;
        shm_pool_buf frozen;
        OK(shm_pool_provider_alloc(provider, LEN, &buf));
        memset(shm_pool_buf_mut_data(&buf), number, LEN);
        OK(shm_pool_buf_mut_freeze(&buf, &frozen));
        if (sender) {
            OK(shm_pool_sender_send(sender, &frozen, SHM_POOL_FOREVER));
        } else if (publisher) {
            OK(shm_pool_publisher_send(publisher, &frozen, SHM_POOL_FOREVER, NULL));
        } else {
            shm_pool_descriptor descriptor;
            OK(shm_pool_buf_grant(&frozen, &peer, &descriptor));
            CHECK(write(0, descriptor.bytes, sizeof descriptor.bytes) == sizeof descriptor.bytes);
            shm_pool_buf_drop(&frozen);
        }
    }
    if (strcmp(how, "kill") == 0) wait_for_the_test();
    if (strcmp(how, "abort") == 0) abort();
    if (strcmp(how, "exit") == 0) exit(0);
    shm_pool_provider_destroy(provider);
    shm_pool_sender_destroy(sender);
    shm_pool_publisher_destroy(publisher);
    if (strcmp(how, "drop") == 0) wait_for_the_test();
    return 0;
}
