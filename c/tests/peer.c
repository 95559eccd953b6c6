/* One side of a pair of processes, of which the test kills one: peer ROLE PREFIX CHANNEL. Standard input is
 * a socket to the test. The roles are the same as those of killed.rs, which plays the other side. */
#include "check.h"
#include <string.h>
#include <unistd.h>

enum { LEN = 65536, MESSAGES = 8, HELD = 4 };

/* Tells the test that this side is ready, and waits until the other one is dead. */
static void ready(void) {
    char byte = '.';
    CHECK(write(0, &byte, 1) == 1);
    CHECK(read(0, &byte, 1) == 1);
}

static int is_filled(const uint8_t *data, size_t len, uint8_t number) {
    for (size_t at = 0; at < len; at++)
        if (data[at] != number) return 0;
    return len == LEN;
}

static shm_pool_buf filled(const shm_pool_provider *provider, uint8_t number) {
    shm_pool_buf_mut buf;
    shm_pool_buf frozen;
    OK(shm_pool_provider_alloc(provider, LEN, &buf));
    memset(shm_pool_buf_mut_data(&buf), number, LEN);
    OK(shm_pool_buf_mut_freeze(&buf, &frozen));
    return frozen;
}

static shm_pool_provider *make_provider(const char *prefix) {
    shm_pool_provider_options options = {.max_bytes = 8 << 20, .name_prefix = prefix};
    shm_pool_provider *provider;
    OK(shm_pool_provider_create(&options, &provider));
    return provider;
}

static shm_pool_client *make_client(const char *prefix) {
    shm_pool_client_options options = {.name_prefix = prefix};
    shm_pool_client *client;
    OK(shm_pool_client_create(&options, &client));
    return client;
}

static void expect_unused(const shm_pool_provider *provider) {
    shm_pool_stats stats;
    shm_pool_provider_reclaim(provider);
    OK(shm_pool_provider_stats(provider, &stats));
    CHECK(stats.bytes_in_use == 0 && stats.bytes_leased == 0);
}

static void send_messages(const char *prefix, const char *name) {
    shm_pool_provider *provider = make_provider(prefix);
    shm_pool_sender *sender;
    OK(shm_pool_sender_create(provider, name, NULL, 0, &sender));
    OK(shm_pool_sender_wait_for_receiver(sender, 60 * SECOND));
    for (uint8_t number = 0; number < MESSAGES; number++) {
        shm_pool_buf buf = filled(provider, number);
        OK(shm_pool_sender_send(sender, &buf, SHM_POOL_FOREVER));
    }
    ready();
    shm_pool_buf buf = filled(provider, 0);
    FAILS(shm_pool_sender_send(sender, &buf, SHM_POOL_FOREVER), DISCONNECTED);
    CHECK(is_filled(shm_pool_buf_data(&buf), shm_pool_buf_len(&buf), 0));
    shm_pool_buf_drop(&buf);
    expect_unused(provider);
    shm_pool_sender_destroy(sender);
    shm_pool_provider_destroy(provider);
}

static void receive_messages(const char *prefix, const char *name, bool is_subscriber) {
    shm_pool_client *client = make_client(prefix);
    shm_pool_receiver *receiver;
    shm_pool_message messages[MESSAGES];
    shm_pool_subscriber_options to_the_end = {.on_end = SHM_POOL_RETURN};
    if (is_subscriber) OK(shm_pool_subscriber_open(client, name, &to_the_end, 60 * SECOND, &receiver));
    else OK(shm_pool_receiver_open(client, name, NULL, 60 * SECOND, &receiver));
    for (int at = 0; at < HELD; at++) OK(shm_pool_receiver_recv(receiver, 60 * SECOND, &messages[at]));
    ready();
    for (int at = HELD; at < MESSAGES; at++) OK(shm_pool_receiver_recv(receiver, 60 * SECOND, &messages[at]));
    shm_pool_message none;
    FAILS(shm_pool_receiver_recv(receiver, 60 * SECOND, &none), DISCONNECTED);
    shm_pool_receiver_destroy(receiver);
    shm_pool_client_destroy(client);
    for (uint8_t at = 0; at < MESSAGES; at++) {
        CHECK(is_filled(shm_pool_message_data(&messages[at]), shm_pool_message_len(&messages[at]), at));
        shm_pool_message_drop(&messages[at]);
    }
}

static void own(const char *prefix) {
    shm_pool_provider *provider = make_provider(prefix);
    shm_pool_buf buf = filled(provider, 7);
    shm_pool_descriptor descriptor;
    OK(shm_pool_buf_descriptor(&buf, &descriptor));
    CHECK(write(0, descriptor.bytes, sizeof descriptor.bytes) == sizeof descriptor.bytes);
    ready();
    shm_pool_buf_drop(&buf);
    expect_unused(provider);
    shm_pool_provider_destroy(provider);
}

static void attach(const char *prefix) {
    shm_pool_client *client = make_client(prefix);
    shm_pool_descriptor descriptor;
    shm_pool_view view;
    CHECK(read(0, descriptor.bytes, sizeof descriptor.bytes) == sizeof descriptor.bytes);
    OK(shm_pool_client_attach(client, &descriptor, &view));
    ready();
    CHECK(is_filled(shm_pool_view_data(&view), shm_pool_view_len(&view), 7));
    shm_pool_view_drop(&view);
    shm_pool_client_destroy(client);
}

static void read_all(void *bytes, size_t len) {
    for (size_t done = 0; done < len;) {
        ssize_t count = read(0, (char *)bytes + done, len - done);
        CHECK(count > 0);
        done += (size_t)count;
    }
}

/* Reads the provider's id, writes this side's, and reads the descriptors of all messages. */
static void accept_grants(const char *prefix) {
    shm_pool_client *client = make_client(prefix);
    uint64_t provider;
    shm_pool_peer_id peer;
    shm_pool_descriptor descriptors[MESSAGES];
    shm_pool_view views[MESSAGES];
    read_all(&provider, sizeof provider);
    OK(shm_pool_client_connect(client, provider, &peer));
    CHECK(write(0, peer.bytes, sizeof peer.bytes) == sizeof peer.bytes);
    for (int at = 0; at < MESSAGES; at++) read_all(descriptors[at].bytes, sizeof descriptors[at].bytes);
    for (int at = 0; at < HELD; at++) OK(shm_pool_client_attach(client, &descriptors[at], &views[at]));
    ready();
    for (int at = HELD; at < MESSAGES; at++) OK(shm_pool_client_attach(client, &descriptors[at], &views[at]));
    for (uint8_t at = 0; at < MESSAGES; at++) {
        CHECK(is_filled(shm_pool_view_data(&views[at]), shm_pool_view_len(&views[at]), at));
        shm_pool_view_drop(&views[at]);
    }
    shm_pool_client_destroy(client);
}

int main(int argc, char **argv) {
    CHECK(argc == 4);
    if (strcmp(argv[1], "Send") == 0) send_messages(argv[2], argv[3]);
    else if (strcmp(argv[1], "Receive") == 0) receive_messages(argv[2], argv[3], false);
    else if (strcmp(argv[1], "Subscribe") == 0) receive_messages(argv[2], argv[3], true);
    else if (strcmp(argv[1], "Own") == 0) own(argv[2]);
    else if (strcmp(argv[1], "Attach") == 0) attach(argv[2]);
    else if (strcmp(argv[1], "Accept") == 0) accept_grants(argv[2]);
    else return 2;
    return 0;
}
