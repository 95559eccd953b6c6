/* The whole interface in one process: results, errors, ownership, and threads. */
#include "check.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char prefix[64];

static shm_pool_provider *make_provider(void) {
    shm_pool_provider_options options = {.max_bytes = 1 << 20, .name_prefix = prefix};
    shm_pool_provider *provider;
    OK(shm_pool_provider_create(&options, &provider));
    return provider;
}

static shm_pool_client *make_client(void) {
    shm_pool_client_options options = {.name_prefix = prefix};
    shm_pool_client *client;
    OK(shm_pool_client_create(&options, &client));
    return client;
}

static shm_pool_buf make_buf(const shm_pool_provider *provider, const char *content) {
    shm_pool_buf_mut buf;
    shm_pool_buf frozen;
    OK(shm_pool_provider_alloc(provider, strlen(content), &buf));
    memcpy(shm_pool_buf_mut_data(&buf), content, strlen(content));
    OK(shm_pool_buf_mut_freeze(&buf, &frozen));
    return frozen;
}

static int has(const uint8_t *data, size_t len, const char *content) {
    return len == strlen(content) && memcmp(data, content, len) == 0;
}

static size_t in_use(const shm_pool_provider *provider) {
    shm_pool_stats stats;
    OK(shm_pool_provider_stats(provider, &stats));
    return stats.bytes_in_use + stats.bytes_leased;
}

static void options(void) {
    shm_pool_provider *provider = (shm_pool_provider *)1;
    shm_pool_provider_options bad = {.max_bytes = 4096, .max_alloc = 8192};
    FAILS(shm_pool_provider_create(&bad, &provider), INVALID_ARGUMENT);
    CHECK(provider == NULL && strstr(shm_pool_last_error(), "max_alloc"));
    shm_pool_provider_options mode = {.mode = UINT64_C(1) << 40};
    FAILS(shm_pool_provider_create(&mode, &provider), INVALID_ARGUMENT);
    shm_pool_provider_options newer = {.reserved = {1}};
    FAILS(shm_pool_provider_create(&newer, &provider), INVALID_ARGUMENT);
    shm_pool_provider_options name = {.name_prefix = "a/b"};
    FAILS(shm_pool_provider_create(&name, &provider), INVALID_ARGUMENT);
    shm_pool_provider_options text = {.name_prefix = "\xff"};
    FAILS(shm_pool_provider_create(&text, &provider), INVALID_ARGUMENT);
    shm_pool_provider_options missing = {.directory = "/nowhere"};
    FAILS(shm_pool_provider_create(&missing, &provider), OS);
    CHECK(shm_pool_last_errno() == ENOENT && strstr(shm_pool_last_error(), "/nowhere"));
    FAILS(shm_pool_provider_create(NULL, NULL), INVALID_ARGUMENT);

    /* With SHM_POOL_ZERO the number 0 itself: no idle chunk is kept. */
    shm_pool_provider_options none = {.name_prefix = prefix, .max_idle_per_class = SHM_POOL_ZERO};
    OK(shm_pool_provider_create(&none, &provider));
    shm_pool_buf buf = make_buf(provider, "x");
    shm_pool_buf_drop(&buf);
    shm_pool_stats stats;
    OK(shm_pool_provider_stats(provider, &stats));
    CHECK(stats.bytes_held == 0 && stats.max_bytes == 1 << 30);
    shm_pool_counters counters;
    OK(shm_pool_provider_counters(provider, &counters));
    CHECK(counters.max_bytes == 1 << 30 && counters.bytes_out == 0 && counters.misses == 1);
    CHECK(counters.peak_bytes_held > 0 && counters.segments_created == 1);
    FAILS(shm_pool_provider_counters(NULL, &counters), INVALID_ARGUMENT);
    shm_pool_provider_destroy(provider);
}

static void buffers(void) {
    shm_pool_provider *provider = make_provider();
    shm_pool_buf_mut buf = {0};
    CHECK(shm_pool_buf_mut_data(&buf) == NULL && shm_pool_buf_mut_len(&buf) == 0);
    OK(shm_pool_provider_alloc(provider, 100, &buf));
    CHECK(shm_pool_buf_mut_len(&buf) == 100 && shm_pool_buf_mut_capacity(&buf) >= 100);
    CHECK((uintptr_t)shm_pool_buf_mut_data(&buf) % 64 == 0);
    FAILS(shm_pool_buf_mut_resize(&buf, 1 << 20), TOO_LARGE);
    OK(shm_pool_buf_mut_resize(&buf, 5));
    memcpy(shm_pool_buf_mut_data(&buf), "hello", 5);
    shm_pool_buf_mut moved = buf; /* from here on, only the copy is used */
    shm_pool_buf frozen, clone;
    OK(shm_pool_buf_mut_freeze(&moved, &frozen));
    CHECK(shm_pool_buf_mut_data(&moved) == NULL);
    FAILS(shm_pool_buf_mut_freeze(&moved, &clone), INVALID_ARGUMENT);
    CHECK(shm_pool_buf_data(&clone) == NULL);
    OK(shm_pool_buf_clone(&frozen, &clone));
    FAILS(shm_pool_buf_try_into_mut(&frozen, &moved), NOT_EXCLUSIVE);
    CHECK(has(shm_pool_buf_data(&frozen), shm_pool_buf_len(&frozen), "hello"));
    shm_pool_buf_drop(&clone);
    shm_pool_buf_drop(&clone); /* harmless */
    OK(shm_pool_buf_try_into_mut(&frozen, &moved));
    CHECK(shm_pool_buf_data(&frozen) == NULL && shm_pool_buf_mut_len(&moved) == 5);
    shm_pool_buf_mut_drop(&moved);
    shm_pool_buf_mut_drop(NULL);
    shm_pool_buf_drop(NULL);
    CHECK(in_use(provider) == 0);

    FAILS(shm_pool_provider_alloc(provider, 2 << 20, &buf), TOO_LARGE);
    FAILS(shm_pool_provider_alloc(NULL, 1, &buf), INVALID_ARGUMENT);
    FAILS(shm_pool_provider_alloc(provider, 1, NULL), INVALID_ARGUMENT);
    OK(shm_pool_provider_alloc(provider, 1 << 20, &buf));
    FAILS(shm_pool_provider_alloc(provider, 1, &moved), EXHAUSTED);
    CHECK(shm_pool_buf_mut_data(&moved) == NULL);
    FAILS(shm_pool_provider_alloc_timeout(provider, 1, 0, 1, &moved), TIMED_OUT);
    FAILS(shm_pool_provider_alloc_timeout(provider, 1, 3, 0, &moved), INVALID_ARGUMENT);
    shm_pool_buf_mut_drop(&buf);
    OK(shm_pool_provider_alloc_timeout(provider, 1, 4096, SHM_POOL_FOREVER, &moved));
    CHECK((uintptr_t)shm_pool_buf_mut_data(&moved) % 4096 == 0);
    shm_pool_buf_mut_drop(&moved);

    shm_pool_reservation *reservation;
    FAILS(shm_pool_provider_reserve(provider, 1000, 100, &reservation), INVALID_ARGUMENT);
    CHECK(reservation == NULL);
    OK(shm_pool_provider_reserve(provider, 1000, 4, &reservation));
    shm_pool_class_stats classes[8];
    size_t count;
    OK(shm_pool_provider_class_stats(provider, classes, 8, &count));
    int found = 0;
    for (size_t at = 0; at < count && at < 8; at++) found |= classes[at].size == 1024 && classes[at].idle == 4;
    CHECK(found);
    shm_pool_reservation_destroy(reservation);
    CHECK(shm_pool_provider_trim_to(provider, 0) > 0);

    /* A buffer outlives its provider. */
    frozen = make_buf(provider, "late");
    shm_pool_provider_destroy(provider);
    CHECK(has(shm_pool_buf_data(&frozen), shm_pool_buf_len(&frozen), "late"));
    shm_pool_buf_drop(&frozen);
    shm_pool_provider_destroy(NULL);
}

static void descriptors(void) {
    shm_pool_provider *provider = make_provider();
    shm_pool_client *client = make_client();
    shm_pool_buf buf = make_buf(provider, "hello");
    shm_pool_descriptor descriptor, damaged;
    shm_pool_descriptor_fields fields;
    OK(shm_pool_buf_descriptor(&buf, &descriptor));
    OK(shm_pool_descriptor_read(&descriptor, &fields));
    CHECK(fields.provider == shm_pool_provider_id(provider) && fields.payload_len == 5 && fields.granted_to == -1);
    damaged = descriptor;
    damaged.bytes[20] ^= 1;
    shm_pool_view view, clone;
    FAILS(shm_pool_descriptor_read(&damaged, &fields), DAMAGED);
    FAILS(shm_pool_client_attach(client, &damaged, &view), DAMAGED);
    OK(shm_pool_client_attach(client, &descriptor, &view));
    CHECK(has(shm_pool_view_data(&view), shm_pool_view_len(&view), "hello"));
    OK(shm_pool_view_clone(&view, &clone));
    shm_pool_view_drop(&clone);
    CHECK(shm_pool_buf_is_leased(&buf));
    shm_pool_buf_drop(&buf);
    CHECK(has(shm_pool_view_data(&view), shm_pool_view_len(&view), "hello"));
    shm_pool_view_drop(&view);
    shm_pool_view_drop(&view);
    for (int at = 0; at < 20; at++) {
        buf = make_buf(provider, "newer");
        shm_pool_descriptor newer;
        OK(shm_pool_buf_descriptor(&buf, &newer));
        shm_pool_buf_drop(&buf);
    }
    FAILS(shm_pool_client_attach(client, &descriptor, &view), STALE);
    CHECK(shm_pool_view_data(&view) == NULL);

    shm_pool_peer_id peer;
    OK(shm_pool_client_connect(client, shm_pool_provider_id(provider), &peer));
    FAILS(shm_pool_client_connect(client, 1, &peer), NO_PROVIDER);
    buf = make_buf(provider, "granted");
    OK(shm_pool_buf_grant(&buf, &peer, &descriptor));
    OK(shm_pool_descriptor_read(&descriptor, &fields));
    CHECK(fields.granted_to >= 0);
    OK(shm_pool_client_attach(client, &descriptor, &view));
    shm_pool_view_drop(&view);
    FAILS(shm_pool_client_attach(client, &descriptor, &view), NOT_GRANTED);
    OK(shm_pool_buf_grant(&buf, &peer, &descriptor));
    CHECK(shm_pool_buf_revoke(&buf, &peer) && !shm_pool_buf_revoke(&buf, &peer));
    CHECK(shm_pool_provider_disconnect(provider, &peer));
    FAILS(shm_pool_buf_grant(&buf, &peer, &descriptor), PEER_DISCONNECTED);
    shm_pool_buf_drop(&buf);
    size_t bytes;
    CHECK(shm_pool_client_warm(client, shm_pool_provider_id(provider), &bytes) != SHM_POOL_STATUS_INVALID_ARGUMENT);
    shm_pool_client_unmap_unused(client);
    shm_pool_client_destroy(client);
    shm_pool_provider_destroy(provider);
}

static void channel(void) {
    shm_pool_provider *provider = make_provider();
    shm_pool_client *client = make_client();
    shm_pool_sender *sender, *second;
    shm_pool_receiver *receiver;
    FAILS(shm_pool_receiver_open(client, "pair", NULL, 0, &receiver), NOT_FOUND);
    FAILS(shm_pool_receiver_open(client, "pair", NULL, 1, &receiver), NOT_FOUND);
    shm_pool_sender_options options = {.capacity = 2};
    OK(shm_pool_sender_create(provider, "pair", &options, 0, &sender));
    FAILS(shm_pool_sender_create(provider, "pair", NULL, 0, &second), NAME_TAKEN);
    FAILS(shm_pool_sender_create(provider, NULL, NULL, 0, &second), INVALID_ARGUMENT);
    FAILS(shm_pool_sender_create(provider, "", NULL, 0, &second), INVALID_ARGUMENT);
    OK(shm_pool_sender_create(provider, "/front/image.raw", NULL, 0, &second));
    OK(shm_pool_receiver_open(client, "/front/image.raw", NULL, 0, &receiver));
    shm_pool_receiver_destroy(receiver);
    shm_pool_sender_destroy(second);
    FAILS(shm_pool_sender_wait_for_receiver(sender, 1), TIMED_OUT);
    FAILS(shm_pool_subscriber_open(client, "pair", NULL, 0, &receiver), NOT_A_PUBLISHER);
    shm_pool_receiver_options rule = {.on_end = 9};
    FAILS(shm_pool_receiver_open(client, "pair", &rule, 0, &receiver), INVALID_ARGUMENT);
    OK(shm_pool_receiver_open(client, "pair", NULL, 0, &receiver));
    OK(shm_pool_sender_wait_for_receiver(sender, 0));

    shm_pool_message message = {0};
    CHECK(shm_pool_message_data(&message) == NULL);
    FAILS(shm_pool_receiver_recv(receiver, 0, &message), EMPTY);
    FAILS(shm_pool_receiver_recv(receiver, 1, &message), TIMED_OUT);
    shm_pool_buf buf = make_buf(provider, "a frame");
    OK(shm_pool_sender_send(sender, &buf, SHM_POOL_FOREVER));
    CHECK(shm_pool_buf_data(&buf) == NULL);
    FAILS(shm_pool_sender_send(sender, &buf, SHM_POOL_FOREVER), INVALID_ARGUMENT);
    OK(shm_pool_receiver_recv(receiver, SHM_POOL_FOREVER, &message));
    CHECK(has(shm_pool_message_data(&message), shm_pool_message_len(&message), "a frame"));
    CHECK((uintptr_t)shm_pool_message_data(&message) % 64 == 0 && shm_pool_message_missed(&message) == 0);
    shm_pool_message_drop(&message);
    shm_pool_message_drop(&message);

    OK(shm_pool_sender_send_copy(sender, "a sample", 8, 0));
    FAILS(shm_pool_sender_send_copy(sender, NULL, 1, 0), INVALID_ARGUMENT);
    OK(shm_pool_receiver_recv(receiver, SECOND, &message));
    shm_pool_message moved = message;
    CHECK(has(shm_pool_message_data(&moved), shm_pool_message_len(&moved), "a sample"));
    shm_pool_message_drop(&moved);
    char longer[SHM_POOL_MAX_INLINE + 1] = "in a buffer";
    OK(shm_pool_sender_send_copy(sender, longer, sizeof longer, 0));
    OK(shm_pool_receiver_recv(receiver, SECOND, &message));
    CHECK(shm_pool_message_len(&message) == sizeof longer && !memcmp(shm_pool_message_data(&message), longer, sizeof longer));
    shm_pool_message_drop(&message);

    buf = make_buf(provider, "one too many");
    int sent = 0;
    while (shm_pool_sender_send_copy(sender, NULL, 0, 0) == SHM_POOL_STATUS_OK) sent++;
    CHECK(sent >= 2);
    FAILS(shm_pool_sender_send(sender, &buf, 0), FULL);
    CHECK(strstr(shm_pool_last_error(), "full"));
    FAILS(shm_pool_sender_send(sender, &buf, 1), TIMED_OUT);
    FAILS(shm_pool_sender_wait_until_received(sender, 1), TIMED_OUT);
    CHECK(has(shm_pool_buf_data(&buf), shm_pool_buf_len(&buf), "one too many"));
    shm_pool_provider *other = make_provider();
    shm_pool_buf foreign = make_buf(other, "foreign");
    for (; sent > 0; sent--) OK(shm_pool_receiver_recv(receiver, 0, &message));
    FAILS(shm_pool_receiver_recv(receiver, 0, &message), EMPTY);
    FAILS(shm_pool_sender_send(sender, &foreign, 0), OTHER_PROVIDER);
    shm_pool_buf_drop(&foreign);
    shm_pool_provider_destroy(other);

    /* A message outlives everything else. */
    OK(shm_pool_sender_send(sender, &buf, 0));
    OK(shm_pool_receiver_recv(receiver, 0, &message));
    shm_pool_sender_destroy(sender);
    FAILS(shm_pool_receiver_recv(receiver, SHM_POOL_FOREVER, &moved), DISCONNECTED);
    shm_pool_receiver_destroy(receiver);
    shm_pool_client_destroy(client);
    shm_pool_provider_destroy(provider);
    CHECK(has(shm_pool_message_data(&message), shm_pool_message_len(&message), "one too many"));
    shm_pool_message_drop(&message);
}

static void publisher(void) {
    shm_pool_provider *provider = make_provider();
    shm_pool_client *client = make_client();
    shm_pool_publisher *publisher;
    shm_pool_publisher_options options = {.max_subscribers = 2, .capacity = 4, .refuse_blocking = true};
    OK(shm_pool_publisher_create(provider, "many", &options, 0, &publisher));
    shm_pool_receiver *slow, *all, *refused;
    shm_pool_subscriber_options two = {.capacity = 2, .on_end = SHM_POOL_RETURN};
    shm_pool_subscriber_options block = {.on_full = SHM_POOL_BLOCK}, unknown = {.on_full = 9};
    FAILS(shm_pool_receiver_open(client, "many", NULL, 0, &refused), NOT_A_SENDER);
    FAILS(shm_pool_subscriber_open(client, "many", &block, 0, &refused), BLOCKING_NOT_ALLOWED);
    FAILS(shm_pool_subscriber_open(client, "many", &unknown, 0, &refused), INVALID_ARGUMENT);
    OK(shm_pool_subscriber_open(client, "many", &two, 0, &slow));
    shm_pool_subscriber_options ends = {.on_end = SHM_POOL_RETURN};
    OK(shm_pool_subscriber_open(client, "many", &ends, 0, &all));
    FAILS(shm_pool_subscriber_open(client, "many", NULL, 1, &refused), TOO_MANY_RECEIVERS);
    OK(shm_pool_publisher_wait_for_receivers(publisher, 2, SHM_POOL_FOREVER));
    FAILS(shm_pool_publisher_wait_for_receivers(publisher, 3, SHM_POOL_FOREVER), INVALID_ARGUMENT);
    for (uint8_t at = 0; at < 4; at++) {
        shm_pool_sent sent;
        if (at % 2 == 0) {
            OK(shm_pool_publisher_send_copy(publisher, &at, 1, 0, &sent));
        } else {
            char content[2] = {(char)at, 0};
            shm_pool_buf buf = make_buf(provider, content);
            OK(shm_pool_publisher_send(publisher, &buf, SHM_POOL_FOREVER, &sent));
        }
        CHECK(sent.receivers == 2 && sent.skipped == 0);
    }
    shm_pool_receiver_state states[2];
    size_t count;
    OK(shm_pool_publisher_receivers(publisher, NULL, 0, &count));
    CHECK(count == 2);
    OK(shm_pool_publisher_receivers(publisher, states, 2, &count));
    CHECK(states[0].missed.withdrawn + states[1].missed.withdrawn == 2 && states[0].on_full == SHM_POOL_DROP_OLDEST);
    shm_pool_message message;
    OK(shm_pool_receiver_recv(slow, 0, &message));
    CHECK(*shm_pool_message_data(&message) == 2 && shm_pool_message_missed(&message) == 2);
    shm_pool_message_drop(&message);

    shm_pool_receiver *both[] = {slow, all}, *twice[] = {all, all};
    size_t index;
    OK(shm_pool_wait_any(both, 2, SECOND, &index));
    CHECK(index < 2);
    FAILS(shm_pool_wait_any(twice, 2, SECOND, &index), INVALID_ARGUMENT);
    FAILS(shm_pool_wait_any(NULL, 0, SECOND, &index), INVALID_ARGUMENT);
    FAILS(shm_pool_publisher_wait_until_received(publisher, 1), TIMED_OUT);
    for (uint8_t at = 0; at < 4; at++) {
        OK(shm_pool_receiver_recv(all, SECOND, &message));
        CHECK(*shm_pool_message_data(&message) == at);
        shm_pool_message_drop(&message);
    }
    size_t bytes;
    OK(shm_pool_receiver_warm(all, &bytes));
    shm_pool_receiver_destroy(slow);
    shm_pool_receiver_destroy(all);
    shm_pool_publisher_destroy(publisher);
    CHECK(in_use(provider) == 0);
    shm_pool_client_destroy(client);
    shm_pool_provider_destroy(provider);
}

static shm_pool_publisher *make_publisher(const shm_pool_provider *provider, const char *name,
                                          const shm_pool_publisher_options *options) {
    shm_pool_publisher *publisher;
    OK(shm_pool_publisher_create(provider, name, options, 0, &publisher));
    return publisher;
}

static shm_pool_receiver *join(const shm_pool_client *client, const char *name, shm_pool_publisher *publisher) {
    shm_pool_receiver *receiver;
    OK(shm_pool_subscriber_open(client, name, NULL, 0, &receiver));
    OK(shm_pool_publisher_wait_for_receivers(publisher, 1, 60 * SECOND));
    return receiver;
}

static shm_pool_sent send_frame(shm_pool_publisher *publisher, const shm_pool_provider *provider) {
    shm_pool_buf buf = make_buf(provider, "a frame");
    shm_pool_sent sent;
    OK(shm_pool_publisher_send(publisher, &buf, SECOND, &sent)); /* less than the default limit */
    return sent;
}

/* Returns what became of the first message for which there was no room. */
static shm_pool_sent fill(shm_pool_publisher *publisher, const shm_pool_provider *provider) {
    shm_pool_sent sent = send_frame(publisher, provider);
    CHECK(sent.receivers == 1 && sent.skipped == 0);
    for (int at = 0; at < 8 && sent.receivers == 1; at++) sent = send_frame(publisher, provider);
    return sent;
}

static void stalls(void) {
    shm_pool_provider *provider = make_provider();
    shm_pool_client *client = make_client();
    shm_pool_publisher_options options = {.capacity = 1, .on_full = SHM_POOL_BLOCK, .block_limit_ns = SHM_POOL_ZERO};
    shm_pool_publisher *publisher = make_publisher(provider, "stalls", &options);
    shm_pool_receiver *receiver = join(client, "stalls", publisher);
    shm_pool_sent sent = fill(publisher, provider);
    CHECK(sent.receivers == 0 && sent.stalled == 1 && sent.skipped == 1);
    shm_pool_receiver_state state;
    size_t count;
    OK(shm_pool_publisher_receivers(publisher, &state, 1, &count));
    CHECK(count == 1 && state.is_stalled && state.missed.stalled == 1 && state.process == (uint64_t)getpid());
    shm_pool_message message;
    while (shm_pool_receiver_recv(receiver, 0, &message) == SHM_POOL_STATUS_OK) shm_pool_message_drop(&message);
    CHECK(send_frame(publisher, provider).receivers == 1);
    OK(shm_pool_receiver_recv(receiver, SECOND, &message));
    CHECK(shm_pool_message_missed(&message) == 1);
    shm_pool_message_drop(&message);
    shm_pool_receiver_destroy(receiver);
    shm_pool_publisher_destroy(publisher);

    options.on_stall = SHM_POOL_DISCONNECT;
    publisher = make_publisher(provider, "stalls", &options);
    receiver = join(client, "stalls", publisher);
    CHECK(fill(publisher, provider).stalled == 1);
    OK(shm_pool_publisher_receivers(publisher, NULL, 0, &count));
    CHECK(count == 0);
    FAILS(shm_pool_receiver_recv(receiver, SHM_POOL_FOREVER, &message), EVICTED);
    shm_pool_receiver_destroy(receiver);
    shm_pool_publisher_destroy(publisher);

    options.on_stall = 9;
    FAILS(shm_pool_publisher_create(provider, "stalls", &options, 0, &publisher), INVALID_ARGUMENT);
    CHECK(strstr(shm_pool_last_error(), "on_stall"));
    shm_pool_publisher_options mode = {.mode = 0111};
    FAILS(shm_pool_publisher_create(provider, "stalls", &mode, 0, &publisher), INVALID_ARGUMENT);
    CHECK(in_use(provider) == 0);
    shm_pool_client_destroy(client);
    shm_pool_provider_destroy(provider);
}

static void disconnects(void) {
    shm_pool_provider *provider = make_provider();
    shm_pool_client *client = make_client();
    shm_pool_publisher_options options = {.max_subscribers = 1};
    shm_pool_publisher *publisher = make_publisher(provider, "disconnects", &options);
    shm_pool_receiver *receiver = join(client, "disconnects", publisher), *again;
    shm_pool_receiver_state state;
    size_t count;
    OK(shm_pool_publisher_receivers(publisher, &state, 1, &count));
    shm_pool_message held, none;
    CHECK(send_frame(publisher, provider).receivers == 1 && send_frame(publisher, provider).receivers == 1);
    OK(shm_pool_receiver_recv(receiver, SECOND, &held));
    CHECK(!shm_pool_publisher_disconnect(publisher, state.id + 1) && !shm_pool_publisher_disconnect(NULL, state.id));
    CHECK(shm_pool_publisher_disconnect(publisher, state.id) && !shm_pool_publisher_disconnect(publisher, state.id));
    CHECK(send_frame(publisher, provider).receivers == 0);
    FAILS(shm_pool_receiver_recv(receiver, SHM_POOL_FOREVER, &none), EVICTED);
    shm_pool_receiver_destroy(receiver);
    CHECK(has(shm_pool_message_data(&held), shm_pool_message_len(&held), "a frame"));
    FAILS(shm_pool_subscriber_open(client, "disconnects", NULL, 1, &again), TOO_MANY_RECEIVERS);
    shm_pool_message_drop(&held);
    again = join(client, "disconnects", publisher);
    CHECK(send_frame(publisher, provider).receivers == 1);
    shm_pool_receiver_destroy(again);
    shm_pool_publisher_destroy(publisher);
    CHECK(in_use(provider) == 0);
    shm_pool_client_destroy(client);
    shm_pool_provider_destroy(provider);
}

static void bytes_per_receiver(void) {
    shm_pool_provider *provider = make_provider();
    shm_pool_client *client = make_client();
    shm_pool_publisher_options options = {.on_full = SHM_POOL_DROP_NEWEST, .max_bytes_per_receiver = 1};
    shm_pool_publisher *publisher = make_publisher(provider, "bytes", &options);
    shm_pool_receiver *receiver = join(client, "bytes", publisher);
    shm_pool_message held[2], none;
    CHECK(send_frame(publisher, provider).receivers == 1 && send_frame(publisher, provider).receivers == 1);
    OK(shm_pool_receiver_recv(receiver, SECOND, &held[0]));
    OK(shm_pool_receiver_recv(receiver, SECOND, &held[1]));
    shm_pool_sent sent = send_frame(publisher, provider);
    CHECK(sent.receivers == 0 && sent.too_many_borrowed == 1 && sent.skipped == 1);
    FAILS(shm_pool_receiver_recv(receiver, SHM_POOL_FOREVER, &none), TOO_MANY_BORROWED);
    FAILS(shm_pool_receiver_recv(receiver, 0, &none), EMPTY);
    shm_pool_message_drop(&held[0]);
    shm_pool_message_drop(&held[1]);
    CHECK(send_frame(publisher, provider).receivers == 1);
    shm_pool_receiver_destroy(receiver);
    shm_pool_publisher_destroy(publisher);
    shm_pool_client_destroy(client);
    shm_pool_provider_destroy(provider);
}

static void deferred_joins(void) {
    shm_pool_provider *provider = make_provider();
    shm_pool_client *client = make_client();
    shm_pool_publisher_options options = {.defer_joins = true};
    shm_pool_publisher *publisher = make_publisher(provider, "joins", &options);
    shm_pool_receiver *receiver;
    OK(shm_pool_subscriber_open(client, "joins", NULL, 0, &receiver));
    CHECK(send_frame(publisher, provider).receivers == 0);
    CHECK(shm_pool_publisher_serve_joins(publisher) && !shm_pool_publisher_serve_joins(publisher));
    CHECK(send_frame(publisher, provider).receivers == 1);
    shm_pool_receiver_destroy(receiver);
    CHECK(shm_pool_publisher_serve_joins(publisher) && !shm_pool_publisher_serve_joins(publisher));
    CHECK(!shm_pool_publisher_serve_joins(NULL));
    shm_pool_publisher_destroy(publisher);
    shm_pool_client_destroy(client);
    shm_pool_provider_destroy(provider);
}

static uint64_t now(void) {
    struct timespec time;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &time) == 0);
    return (uint64_t)time.tv_sec * SECOND + (uint64_t)time.tv_nsec;
}

static void *succeed(void *provider) {
    shm_pool_publisher *publisher;
    OK(shm_pool_publisher_create(provider, "succeeds", NULL, SHM_POOL_FOREVER, &publisher));
    return publisher;
}

static void successors(void) {
    shm_pool_provider *provider = make_provider();
    shm_pool_sender *sender, *second;
    OK(shm_pool_sender_create(provider, "succeeds", NULL, 0, &sender));
    shm_pool_publisher *other;
    uint64_t start = now();
    FAILS(shm_pool_sender_create(provider, "succeeds", NULL, SECOND / 20, &second), NAME_TAKEN);
    CHECK(second == NULL && now() - start >= SECOND / 20);
    start = now();
    FAILS(shm_pool_publisher_create(provider, "succeeds", NULL, SECOND / 20, &other), NAME_TAKEN);
    CHECK(other == NULL && now() - start >= SECOND / 20);
    pthread_t thread;
    void *publisher;
    CHECK(pthread_create(&thread, NULL, succeed, provider) == 0);
    shm_pool_sender_destroy(sender);
    CHECK(pthread_join(thread, &publisher) == 0);
    shm_pool_publisher_destroy(publisher);
    shm_pool_provider_destroy(provider);
}

static void quotas(void) {
    shm_pool_provider_options options = {.max_bytes_per_peer = 4096, .name_prefix = prefix};
    shm_pool_provider *provider;
    shm_pool_client *client = make_client();
    shm_pool_peer_id peer;
    shm_pool_buf_mut buf;
    shm_pool_buf large;
    shm_pool_descriptor descriptor;
    OK(shm_pool_provider_create(&options, &provider));
    OK(shm_pool_client_connect(client, shm_pool_provider_id(provider), &peer));
    OK(shm_pool_provider_alloc(provider, 4097, &buf));
    OK(shm_pool_buf_mut_freeze(&buf, &large));
    FAILS(shm_pool_buf_grant(&large, &peer, &descriptor), OVER_QUOTA);
    shm_pool_buf_drop(&large);
    shm_pool_client_destroy(client);
    shm_pool_provider_destroy(provider);
}

static int is_readable(int fd, int timeout_ms) {
    struct pollfd events = {.fd = fd, .events = POLLIN};
    CHECK(poll(&events, 1, timeout_ms) >= 0);
    return events.revents != 0;
}

/* Sends when it is told to, by a byte. */
static void *send_samples(void *argument) {
    int *commands = argument;
    shm_pool_provider *provider = make_provider();
    shm_pool_sender *sender;
    char byte;
    OK(shm_pool_sender_create(provider, "event-loop", NULL, 0, &sender));
    CHECK(write(commands[1], ".", 1) == 1);
    while (read(commands[0], &byte, 1) == 1 && byte == 's') OK(shm_pool_sender_send_copy(sender, "s", 1, 0));
    shm_pool_sender_destroy(sender);
    shm_pool_provider_destroy(provider);
    return NULL;
}

static void event_loop(void) {
    int to[2], from[2];
    CHECK(pipe(to) == 0 && pipe(from) == 0);
    int commands[2] = {to[0], from[1]};
    pthread_t thread;
    char byte;
    CHECK(pthread_create(&thread, NULL, send_samples, commands) == 0 && read(from[0], &byte, 1) == 1);
    shm_pool_client *client = make_client();
    shm_pool_receiver *receiver;
    OK(shm_pool_receiver_open(client, "event-loop", NULL, 0, &receiver));
    int fd, again;
    OK(shm_pool_receiver_fd(receiver, &fd));
    OK(shm_pool_receiver_fd(receiver, &again));
    CHECK(fd == again && is_readable(fd, 0));
    shm_pool_message message;
    FAILS(shm_pool_receiver_recv(receiver, 0, &message), EMPTY);
    CHECK(!is_readable(fd, 0));
    int received = 0;
    for (int round = 0; round < 100; round++) {
        CHECK(write(to[1], round < 99 ? "s" : "q", 1) == 1);
        shm_pool_status status;
        int before = received;
        do {
            CHECK(is_readable(fd, 60000));
            while ((status = shm_pool_receiver_recv(receiver, 0, &message)) == SHM_POOL_STATUS_OK) {
                received++;
                shm_pool_message_drop(&message);
            }
        } while (status == SHM_POOL_STATUS_EMPTY && received == before);
        CHECK(status == (round < 99 ? SHM_POOL_STATUS_EMPTY : SHM_POOL_STATUS_DISCONNECTED));
        if (round == 50) { /* a receive that waits in between */
            FAILS(shm_pool_receiver_recv(receiver, 1, &message), TIMED_OUT);
            FAILS(shm_pool_receiver_recv(receiver, 0, &message), EMPTY);
        }
    }
    CHECK(received == 99);
    CHECK(pthread_join(thread, NULL) == 0);
    shm_pool_receiver_destroy(receiver);
    shm_pool_client_destroy(client);
    close(to[0]), close(to[1]), close(from[0]), close(from[1]);
}

/* What a thread sends or creates while another polls. */
struct later {
    shm_pool_provider *provider;
    shm_pool_sender *sender;
    shm_pool_publisher *publisher;
};

static void *send_later(void *argument) {
    struct later *later = argument;
    usleep(20000);
    OK(shm_pool_sender_send_copy(later->sender, "s", 1, 0));
    OK(shm_pool_publisher_send_copy(later->publisher, "s", 1, 0, NULL));
    return NULL;
}

static void *create_later(void *argument) {
    struct later *later = argument;
    usleep(20000);
    OK(shm_pool_sender_create(later->provider, "created later", NULL, 0, &later->sender));
    return NULL;
}

/* The loop polls, after a wait in between, without another receive. */
static void waits_between_polls(void) {
    shm_pool_client *client = make_client();
    struct later later = {.provider = make_provider()};
    shm_pool_receiver *ends[2];
    shm_pool_message message;
    OK(shm_pool_sender_create(later.provider, "polled sender", NULL, 0, &later.sender));
    OK(shm_pool_publisher_create(later.provider, "polled publisher", NULL, 0, &later.publisher));
    OK(shm_pool_receiver_open(client, "polled sender", NULL, 0, &ends[0]));
    OK(shm_pool_subscriber_open(client, "polled publisher", NULL, 0, &ends[1]));
    OK(shm_pool_publisher_wait_for_receivers(later.publisher, 1, 60 * SECOND));
    int fds[2];
    for (int at = 0; at < 2; at++) OK(shm_pool_receiver_fd(ends[at], &fds[at]));
    enum { TIMED, EVENT, ANY, WAITS };
    for (int wait = 0; wait < WAITS; wait++) {
        for (int at = 0; at < 2; at++) {
            /* It may be readable without a reason. */
            do FAILS(shm_pool_receiver_recv(ends[at], 0, &message), EMPTY);
            while (is_readable(fds[at], 20));
        }
        shm_pool_event event;
        size_t index;
        for (int at = 0; at < 2; at++) {
            if (wait == TIMED) FAILS(shm_pool_receiver_recv(ends[at], SECOND / 1000, &message), TIMED_OUT);
            if (wait == EVENT) FAILS(shm_pool_receiver_recv_event(ends[at], SECOND / 1000, &event, &message), TIMED_OUT);
        }
        if (wait == ANY) FAILS(shm_pool_wait_any(ends, 2, SECOND / 1000, &index), TIMED_OUT);
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, send_later, &later) == 0);
        for (int at = 0; at < 2; at++) {
            shm_pool_status status;
            do {
                CHECK(is_readable(fds[at], 10000));
                status = shm_pool_receiver_recv(ends[at], 0, &message);
            } while (status == SHM_POOL_STATUS_EMPTY);
            CHECK(status == SHM_POOL_STATUS_OK);
            shm_pool_message_drop(&message);
        }
        CHECK(pthread_join(thread, NULL) == 0);
    }
    for (int at = 0; at < 2; at++) shm_pool_receiver_destroy(ends[at]);
    shm_pool_sender_destroy(later.sender);
    shm_pool_publisher_destroy(later.publisher);

    shm_pool_watcher *watcher;
    shm_pool_channel_change change;
    int fd;
    OK(shm_pool_watcher_create(client, &watcher));
    OK(shm_pool_watcher_fd(watcher, &fd));
    do FAILS(shm_pool_watcher_recv(watcher, 0, &change), EMPTY);
    while (is_readable(fd, 20));
    FAILS(shm_pool_watcher_recv(watcher, SECOND / 1000, &change), TIMED_OUT);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, create_later, &later) == 0);
    shm_pool_status status;
    do {
        CHECK(is_readable(fd, 10000));
        status = shm_pool_watcher_recv(watcher, 0, &change);
    } while (status == SHM_POOL_STATUS_EMPTY);
    CHECK(status == SHM_POOL_STATUS_OK && strcmp(change.channel.name, "created later") == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    shm_pool_sender_destroy(later.sender);
    shm_pool_watcher_destroy(watcher);
    shm_pool_client_destroy(client);
    shm_pool_provider_destroy(later.provider);
}

enum { ROUNDS = 100 };

/* Receives all messages, late. */
static void *receive_late(void *receiver) {
    for (int round = 0; round < ROUNDS; round++) {
        shm_pool_message message;
        if (round % 10 == 0) usleep(5000);
        OK(shm_pool_receiver_recv(receiver, 60 * SECOND, &message));
        CHECK(*shm_pool_message_data(&message) == round);
        shm_pool_message_drop(&message);
    }
    return NULL;
}

/* Event loops that send to a receiver which is slower. */
static void room_in_an_event_loop(void) {
    shm_pool_provider *provider = make_provider();
    shm_pool_client *client = make_client();
    shm_pool_sender *sender;
    shm_pool_publisher *publisher;
    shm_pool_receiver *receiver, *subscriber;
    shm_pool_sender_options two = {.capacity = 2};
    shm_pool_subscriber_options block = {.capacity = 2, .on_full = SHM_POOL_BLOCK};
    OK(shm_pool_sender_create(provider, "room of a sender", &two, 0, &sender));
    OK(shm_pool_publisher_create(provider, "room of a publisher", NULL, 0, &publisher));
    OK(shm_pool_receiver_open(client, "room of a sender", NULL, 0, &receiver));
    OK(shm_pool_subscriber_open(client, "room of a publisher", &block, 0, &subscriber));
    OK(shm_pool_publisher_wait_for_receivers(publisher, 1, 60 * SECOND));
    int fd, again;
    OK(shm_pool_sender_fd(sender, &fd));
    OK(shm_pool_sender_fd(sender, &again));
    CHECK(fd == again && is_readable(fd, 0));
    OK(shm_pool_publisher_fd(publisher, &again));
    CHECK(fd != again && is_readable(again, 0));
    fd = 0;
    FAILS(shm_pool_sender_fd(NULL, &fd), INVALID_ARGUMENT);
    CHECK(fd == -1);
    FAILS(shm_pool_publisher_fd(NULL, &fd), INVALID_ARGUMENT);
    FAILS(shm_pool_publisher_fd(publisher, NULL), INVALID_ARGUMENT);
    for (int is_publisher = 0; is_publisher < 2; is_publisher++) {
        if (is_publisher) OK(shm_pool_publisher_fd(publisher, &fd));
        else OK(shm_pool_sender_fd(sender, &fd));
        pthread_t thread;
        bool has_waited = false;
        for (uint8_t round = 0; round < ROUNDS; round++) {
            shm_pool_status status;
            for (;;) {
                status = is_publisher ? shm_pool_publisher_send_copy(publisher, &round, 1, 0, NULL)
                                      : shm_pool_sender_send_copy(sender, &round, 1, 0);
                if (status != SHM_POOL_STATUS_FULL) break;
                if (!has_waited) { /* nobody receives yet */
                    if (is_readable(fd, 20)) continue;
                    has_waited = true;
                    /* A wait in between, after which the loop polls without another send. */
                    uint8_t *byte = &round;
                    FAILS(is_publisher ? shm_pool_publisher_send_copy(publisher, byte, 1, SECOND / 1000, NULL)
                                       : shm_pool_sender_send_copy(sender, byte, 1, SECOND / 1000),
                          TIMED_OUT);
                    void *end = is_publisher ? subscriber : receiver;
                    CHECK(pthread_create(&thread, NULL, receive_late, end) == 0);
                }
                CHECK(is_readable(fd, 10000));
            }
            OK(status);
        }
        CHECK(has_waited && pthread_join(thread, NULL) == 0);
    }
    shm_pool_receiver_destroy(receiver);
    shm_pool_receiver_destroy(subscriber);
    shm_pool_sender_destroy(sender);
    shm_pool_publisher_destroy(publisher);
    shm_pool_client_destroy(client);
    shm_pool_provider_destroy(provider);
}

static void *interrupt(void *interrupter) {
    shm_pool_interrupter_interrupt(interrupter);
    return NULL;
}

static void *close_waits(void *provider) {
    shm_pool_provider_close_waits(provider);
    return NULL;
}

static void interrupts(void) {
    shm_pool_provider *provider = make_provider();
    shm_pool_client *client = make_client();
    shm_pool_sender *sender;
    shm_pool_receiver *receiver;
    shm_pool_interrupter *of_sender, *of_receiver;
    OK(shm_pool_sender_create(provider, "interrupts", NULL, 0, &sender));
    OK(shm_pool_receiver_open(client, "interrupts", NULL, 0, &receiver));
    OK(shm_pool_sender_interrupter(sender, &of_sender));
    OK(shm_pool_receiver_interrupter(receiver, &of_receiver));
    pthread_t thread;
    shm_pool_message message;
    CHECK(pthread_create(&thread, NULL, interrupt, of_receiver) == 0);
    FAILS(shm_pool_receiver_recv(receiver, SHM_POOL_FOREVER, &message), INTERRUPTED);
    CHECK(pthread_join(thread, NULL) == 0);
    OK(shm_pool_sender_send_copy(sender, "x", 1, 0));
    shm_pool_interrupter_interrupt(of_sender);
    FAILS(shm_pool_sender_wait_until_received(sender, SHM_POOL_FOREVER), INTERRUPTED);
    shm_pool_sender_destroy(sender);
    shm_pool_receiver_destroy(receiver);
    shm_pool_interrupter_interrupt(of_sender); /* after the end of its sender */
    shm_pool_interrupter_destroy(of_sender);
    shm_pool_interrupter_destroy(of_receiver);
    shm_pool_buf_mut all, more;
    OK(shm_pool_provider_alloc(provider, 1 << 20, &all));
    CHECK(pthread_create(&thread, NULL, close_waits, provider) == 0);
    FAILS(shm_pool_provider_alloc_timeout(provider, 1, 0, SHM_POOL_FOREVER, &more), INTERRUPTED);
    CHECK(pthread_join(thread, NULL) == 0);
    shm_pool_buf_mut_drop(&all);
    shm_pool_client_destroy(client);
    shm_pool_provider_destroy(provider);
}

enum { ALARMS = 5000, CALLS_OF_A_HANDLER = 200 };

static shm_pool_interrupter *to_interrupt;
static volatile long handler_calls;

static void on_alarm(int signal) {
    (void)signal;
    for (int call = 0; call < CALLS_OF_A_HANDLER; call++) {
        shm_pool_interrupter_interrupt(to_interrupt);
        handler_calls++;
    }
}

/* The handler runs in the thread whose wait it ends, at any instruction of it, and interrupts it a million times. */
static void interrupts_from_a_handler(void) {
    shm_pool_provider *provider = make_provider();
    shm_pool_client *client = make_client();
    shm_pool_sender *sender;
    shm_pool_receiver *receiver;
    OK(shm_pool_sender_create(provider, "handler", NULL, 0, &sender));
    OK(shm_pool_receiver_open(client, "handler", NULL, 0, &receiver));
    OK(shm_pool_receiver_interrupter(receiver, &to_interrupt));
    CHECK(signal(SIGALRM, on_alarm) != SIG_ERR);
    struct itimerval often = {{0, 100}, {0, 100}}, never = {{0, 0}, {0, 0}};
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
    shm_pool_message message;
    for (int number = 0; number < ALARMS; number++)
        FAILS(shm_pool_receiver_recv(receiver, SHM_POOL_FOREVER, &message), INTERRUPTED);
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
    CHECK(signal(SIGALRM, SIG_IGN) != SIG_ERR); /* also one that is pending */
    CHECK(handler_calls >= ALARMS * CALLS_OF_A_HANDLER);
    /* The last signal may have come after the last wait. */
    OK(shm_pool_sender_send_copy(sender, "x", 1, 0));
    OK(shm_pool_receiver_recv(receiver, SHM_POOL_FOREVER, &message));
    shm_pool_message_drop(&message);
    shm_pool_sender_destroy(sender);
    shm_pool_receiver_destroy(receiver);
    shm_pool_interrupter_destroy(to_interrupt);
    shm_pool_client_destroy(client);
    shm_pool_provider_destroy(provider);
}

static void versions(void) {
    char header[32];
    snprintf(header, sizeof header, "%d.%d.%d", SHM_POOL_VERSION_MAJOR, SHM_POOL_VERSION_MINOR, SHM_POOL_VERSION_PATCH);
    CHECK(strcmp(shm_pool_version(), header) == 0);
}

static int is_type(const shm_pool_receiver *receiver, const shm_pool_message_type *expected) {
    shm_pool_message_type found;
    OK(shm_pool_receiver_message_type(receiver, &found));
    return strcmp(found.name, expected->name) == 0 && found.version == expected->version &&
           found.size == expected->size && found.align == expected->align &&
           found.element_size == expected->element_size;
}

static void message_types(void) {
    shm_pool_provider *provider = make_provider();
    shm_pool_client *client = make_client();
    shm_pool_message_type pose = {.name = "robot.Pose", .version = 1, .size = 24, .align = 8};
    shm_pool_message_type cloud = {.name = "Cloud", .version = 2, .size = 16, .align = 8, .element_size = 12};
    shm_pool_message_type none = {0};
    shm_pool_publisher *publisher;
    shm_pool_sender *sender;
    shm_pool_receiver *receiver;

    shm_pool_publisher_options typed = {.message_type = pose};
    OK(shm_pool_publisher_create(provider, "pose", &typed, 0, &publisher));
    shm_pool_subscriber_options same = {.message_type = pose}, other = {.message_type = pose};
    other.message_type.version = 3;
    OK(shm_pool_subscriber_open(client, "pose", &same, SECOND, &receiver));
    CHECK(is_type(receiver, &pose));
    shm_pool_receiver_destroy(receiver);
    OK(shm_pool_subscriber_open(client, "pose", NULL, SECOND, &receiver)); /* which takes any */
    CHECK(is_type(receiver, &pose));
    shm_pool_receiver_destroy(receiver);
    FAILS(shm_pool_subscriber_open(client, "pose", &other, SECOND, &receiver), TYPE_MISMATCH);
    CHECK(strstr(shm_pool_last_error(), "robot.Pose"));
    shm_pool_publisher_destroy(publisher);

    shm_pool_sender_options clouds = {.message_type = cloud};
    OK(shm_pool_sender_create(provider, "cloud", &clouds, 0, &sender));
    shm_pool_receiver_options expects = {.message_type = pose};
    FAILS(shm_pool_receiver_open(client, "cloud", &expects, 0, &receiver), TYPE_MISMATCH);
    expects.message_type = cloud;
    OK(shm_pool_receiver_open(client, "cloud", &expects, 0, &receiver));
    CHECK(is_type(receiver, &cloud));
    shm_pool_receiver_destroy(receiver);
    shm_pool_sender_destroy(sender);

    OK(shm_pool_sender_create(provider, "untyped", NULL, 0, &sender));
    FAILS(shm_pool_receiver_open(client, "untyped", &expects, 0, &receiver), TYPE_MISMATCH);
    OK(shm_pool_receiver_open(client, "untyped", NULL, 0, &receiver));
    CHECK(is_type(receiver, &none));
    FAILS(shm_pool_receiver_message_type(receiver, NULL), INVALID_ARGUMENT);
    shm_pool_receiver_destroy(receiver);
    shm_pool_sender_destroy(sender);

    clouds.message_type.align = 3;
    FAILS(shm_pool_sender_create(provider, "cloud", &clouds, 0, &sender), INVALID_ARGUMENT);
    memset(clouds.message_type.name, 'n', sizeof clouds.message_type.name);
    clouds.message_type.align = 8;
    FAILS(shm_pool_sender_create(provider, "cloud", &clouds, 0, &sender), INVALID_ARGUMENT);
    shm_pool_client_destroy(client);
    shm_pool_provider_destroy(provider);
}

/* Gives the object of a channel another version, where all versions have it. */
static void make_newer(const char *channel) {
    char path[256];
    uint32_t version;
    snprintf(path, sizeof path, "/dev/shm/%s.%s.channel", prefix, channel);
    int file = open(path, O_RDWR | O_CLOEXEC);
    CHECK(file >= 0 && pread(file, &version, sizeof version, 8) == sizeof version);
    version++;
    CHECK(pwrite(file, &version, sizeof version, 8) == sizeof version && close(file) == 0);
}

static void other_versions(void) {
    shm_pool_provider *provider = make_provider();
    shm_pool_client *client = make_client();
    shm_pool_sender *sender;
    shm_pool_receiver *receiver;
    shm_pool_publisher *publisher = make_publisher(provider, "newer", NULL);
    make_newer("newer");
    FAILS(shm_pool_publisher_wait_for_receivers(publisher, 1, 1), TIMED_OUT);
    FAILS(shm_pool_subscriber_open(client, "newer", NULL, 0, &receiver), OTHER_VERSION);
    FAILS(shm_pool_publisher_wait_for_receivers(publisher, 1, 1), OTHER_VERSION);
    CHECK(strstr(shm_pool_last_error(), "version"));
    shm_pool_publisher_destroy(publisher);
    OK(shm_pool_sender_create(provider, "newer", NULL, 0, &sender));
    make_newer("newer");
    FAILS(shm_pool_receiver_open(client, "newer", NULL, 0, &receiver), OTHER_VERSION);
    FAILS(shm_pool_sender_wait_for_receiver(sender, 1), OTHER_VERSION);
    shm_pool_sender_destroy(sender);
    shm_pool_client_destroy(client);
    shm_pool_provider_destroy(provider);
}

/* The next change is this one. */
static void expect_change(shm_pool_watcher *watcher, const char *name, bool is_created) {
    shm_pool_channel_change change;
    OK(shm_pool_watcher_recv(watcher, 60 * SECOND, &change));
    CHECK(strcmp(change.channel.name, name) == 0 && change.is_created == is_created);
}

static void discovery(void) {
    shm_pool_provider *provider = make_provider();
    shm_pool_client *client = make_client();
    shm_pool_publisher *publisher;
    shm_pool_sender *sender;
    shm_pool_watcher *watcher;
    size_t count;
    uint64_t process;
    OK(shm_pool_client_channels(client, NULL, 0, &count));
    CHECK(count == 0);
    FAILS(shm_pool_client_channel_process(client, "/lidar/points", &process), NOT_FOUND);
    OK(shm_pool_publisher_create(provider, "/lidar/points", NULL, 0, &publisher));
    OK(shm_pool_watcher_create(client, &watcher));
    expect_change(watcher, "/lidar/points", true);
    OK(shm_pool_sender_create(provider, "odometry", NULL, 0, &sender));
    expect_change(watcher, "odometry", true);

    shm_pool_channel_info channels[3];
    OK(shm_pool_client_channels(client, channels, 3, &count));
    CHECK(count == 2 && strcmp(channels[0].name, "/lidar/points") == 0 && strcmp(channels[1].name, "odometry") == 0);
    CHECK(channels[0].is_publisher && !channels[1].is_publisher);
    CHECK(channels[0].provider == shm_pool_provider_id(provider));
    OK(shm_pool_client_channel_process(client, "/lidar/points", &process));
    CHECK(process == (uint64_t)getpid());
    OK(shm_pool_client_channels(NULL, NULL, 0, &count)); /* those of other programs */
    FAILS(shm_pool_client_channel_process(NULL, "/lidar/points", &process), NOT_FOUND);

    shm_pool_channel_change change;
    FAILS(shm_pool_watcher_recv(watcher, 0, &change), EMPTY);
    FAILS(shm_pool_watcher_recv(watcher, 1, &change), TIMED_OUT);
    shm_pool_publisher_destroy(publisher);
    expect_change(watcher, "/lidar/points", false);
    int fd, again;
    OK(shm_pool_watcher_fd(watcher, &fd));
    OK(shm_pool_watcher_fd(watcher, &again));
    CHECK(fd >= 0 && fd == again);
    FAILS(shm_pool_watcher_recv(watcher, 0, &change), EMPTY);
    shm_pool_sender_destroy(sender);
    shm_pool_status status;
    do {
        struct pollfd events = {.fd = fd, .events = POLLIN};
        CHECK(poll(&events, 1, 60000) == 1);
        status = shm_pool_watcher_recv(watcher, 0, &change);
    } while (status == SHM_POOL_STATUS_EMPTY);
    CHECK(status == SHM_POOL_STATUS_OK && strcmp(change.channel.name, "odometry") == 0 && !change.is_created);

    shm_pool_interrupter *interrupter;
    OK(shm_pool_watcher_interrupter(watcher, &interrupter));
    shm_pool_interrupter_interrupt(interrupter);
    FAILS(shm_pool_watcher_recv(watcher, SHM_POOL_FOREVER, &change), INTERRUPTED);
    shm_pool_interrupter_destroy(interrupter);
    FAILS(shm_pool_watcher_create(client, NULL), INVALID_ARGUMENT);
    shm_pool_watcher_destroy(NULL);
    shm_pool_client_destroy(client);
    shm_pool_provider_destroy(provider);
}

/* NULL stands for a client with the defaults. */
static void default_namespace(void) {
    char sent[80], published[80];
    snprintf(sent, sizeof sent, "%s/sent", prefix);
    snprintf(published, sizeof published, "%s/published", prefix);
    shm_pool_provider_options options = {.max_bytes = 1 << 20};
    shm_pool_provider *provider;
    shm_pool_client *elsewhere = make_client();
    shm_pool_sender *sender;
    shm_pool_publisher *publisher;
    shm_pool_receiver *receiver, *subscriber;
    shm_pool_watcher *watcher;
    shm_pool_message message;
    uint64_t process;
    OK(shm_pool_provider_create(&options, &provider));
    OK(shm_pool_sender_create(provider, sent, NULL, 0, &sender));
    OK(shm_pool_publisher_create(provider, published, NULL, 0, &publisher));
    OK(shm_pool_receiver_open(NULL, sent, NULL, 0, &receiver));
    OK(shm_pool_subscriber_open(NULL, published, NULL, SECOND, &subscriber));
    OK(shm_pool_publisher_wait_for_receivers(publisher, 1, 60 * SECOND));
    OK(shm_pool_sender_send_copy(sender, "a", 1, 0));
    OK(shm_pool_publisher_send_copy(publisher, "b", 1, 0, NULL));
    OK(shm_pool_receiver_recv(receiver, 0, &message));
    shm_pool_message_drop(&message);
    OK(shm_pool_receiver_recv(subscriber, 0, &message));
    shm_pool_message_drop(&message);
    OK(shm_pool_client_channel_process(NULL, sent, &process));
    CHECK(process == (uint64_t)getpid());
    FAILS(shm_pool_client_channel_process(elsewhere, sent, &process), NOT_FOUND);
    OK(shm_pool_watcher_create(NULL, &watcher));
    shm_pool_channel_change change;
    do OK(shm_pool_watcher_recv(watcher, 60 * SECOND, &change)); /* also those of other programs */
    while (strcmp(change.channel.name, sent) != 0);
    shm_pool_watcher_destroy(watcher);
    shm_pool_receiver_destroy(receiver);
    shm_pool_receiver_destroy(subscriber);
    shm_pool_sender_destroy(sender);
    shm_pool_publisher_destroy(publisher);
    shm_pool_client_destroy(elsewhere);
    shm_pool_provider_destroy(provider);
}

static void events(void) {
    shm_pool_provider *provider = make_provider();
    shm_pool_client *client = make_client();
    shm_pool_publisher *publisher;
    shm_pool_receiver *subscriber;
    shm_pool_event event;
    shm_pool_message message;
    OK(shm_pool_subscriber_open(client, "events", NULL, 0, &subscriber));
    CHECK(!shm_pool_receiver_is_connected(subscriber) && shm_pool_receiver_provider(subscriber) == 0);
    FAILS(shm_pool_receiver_recv_event(subscriber, 0, &event, &message), EMPTY);
    FAILS(shm_pool_receiver_last_error(subscriber), NOT_FOUND);
    for (int round = 0; round < 2; round++) {
        OK(shm_pool_publisher_create(provider, "events", NULL, 60 * SECOND, &publisher));
        OK(shm_pool_receiver_recv_event(subscriber, 60 * SECOND, &event, &message));
        CHECK(event.kind == SHM_POOL_EVENT_CONNECTED && event.provider == shm_pool_provider_id(provider));
        CHECK(shm_pool_message_data(&message) == NULL);
        CHECK(shm_pool_receiver_provider(subscriber) == shm_pool_provider_id(provider));
        OK(shm_pool_receiver_last_error(subscriber));
        OK(shm_pool_publisher_wait_for_receivers(publisher, 1, 60 * SECOND));
        CHECK(shm_pool_receiver_is_connected(subscriber));
        OK(shm_pool_publisher_send_copy(publisher, "hello", 5, 0, NULL));
        OK(shm_pool_receiver_recv_event(subscriber, SHM_POOL_FOREVER, &event, &message));
        CHECK(event.kind == SHM_POOL_EVENT_MESSAGE && event.provider == 0);
        CHECK(has(shm_pool_message_data(&message), shm_pool_message_len(&message), "hello"));
        shm_pool_message_drop(&message);
        shm_pool_publisher_destroy(publisher);
        OK(shm_pool_receiver_recv_event(subscriber, 60 * SECOND, &event, &message));
        CHECK(event.kind == SHM_POOL_EVENT_DISCONNECTED);
        int fd; /* the second round, with a descriptor */
        OK(shm_pool_receiver_fd(subscriber, &fd));
        FAILS(shm_pool_receiver_recv_event(subscriber, 0, &event, &message), EMPTY);
    }
    FAILS(shm_pool_receiver_recv_event(subscriber, 0, NULL, &message), INVALID_ARGUMENT);
    FAILS(shm_pool_receiver_recv_event(subscriber, 0, &event, NULL), INVALID_ARGUMENT);
    FAILS(shm_pool_receiver_last_error(NULL), INVALID_ARGUMENT);
    shm_pool_receiver_destroy(subscriber);
    shm_pool_client_destroy(client);
    shm_pool_provider_destroy(provider);
}

static void getters(void) {
    shm_pool_provider *provider = make_provider();
    shm_pool_client *client = make_client();
    shm_pool_sender *sender;
    shm_pool_publisher *publisher;
    shm_pool_receiver *receiver, *subscriber;
    shm_pool_sender_options one = {.capacity = 4, .max_borrowed = 8};
    shm_pool_publisher_options many = {.capacity = 8, .max_borrowed = 16, .on_full = SHM_POOL_DROP_NEWEST};
    OK(shm_pool_sender_create(provider, "a sender", &one, 0, &sender));
    OK(shm_pool_publisher_create(provider, "a publisher", &many, 0, &publisher));
    CHECK(!shm_pool_publisher_has_receivers(publisher));
    OK(shm_pool_receiver_open(client, "a sender", NULL, 0, &receiver));
    OK(shm_pool_subscriber_open(client, "a publisher", NULL, SECOND, &subscriber));
    OK(shm_pool_publisher_wait_for_receivers(publisher, 1, 60 * SECOND));
    CHECK(shm_pool_publisher_has_receivers(publisher) && !shm_pool_publisher_has_receivers(NULL));

    CHECK(strcmp(shm_pool_sender_name(sender), "a sender") == 0 && shm_pool_sender_name(NULL) == NULL);
    CHECK(strcmp(shm_pool_publisher_name(publisher), "a publisher") == 0 && shm_pool_publisher_name(NULL) == NULL);
    CHECK(strcmp(shm_pool_receiver_name(subscriber), "a publisher") == 0 && shm_pool_receiver_name(NULL) == NULL);
    CHECK(shm_pool_sender_capacity(sender) == 4 && shm_pool_sender_max_borrowed(sender) == 8);
    CHECK(shm_pool_publisher_capacity(publisher) == 8 && shm_pool_publisher_max_borrowed(publisher) == 16);
    CHECK(shm_pool_receiver_capacity(receiver) == 4 && shm_pool_receiver_max_borrowed(receiver) == 8);
    CHECK(shm_pool_receiver_on_full(receiver) == SHM_POOL_BLOCK && shm_pool_receiver_on_full(subscriber) == SHM_POOL_DROP_NEWEST);
    CHECK(shm_pool_sender_capacity(NULL) == 0 && shm_pool_publisher_max_borrowed(NULL) == 0);

    char sample[100] = {1};
    shm_pool_message first, clone;
    shm_pool_missed missed;
    for (int at = 0; at < 10; at++) OK(shm_pool_publisher_send_copy(publisher, sample, sizeof sample, 0, NULL));
    OK(shm_pool_receiver_missed(subscriber, &missed));
    CHECK(missed.full == 1 && missed.withdrawn == 0); /* one more than the capacity fits */
    OK(shm_pool_receiver_recv(subscriber, SECOND, &first));
    CHECK(!shm_pool_message_is_inline(&first));
    OK(shm_pool_message_clone(&first, &clone));
    shm_pool_message_drop(&first);
    CHECK(shm_pool_message_len(&clone) == sizeof sample && memcmp(shm_pool_message_data(&clone), sample, sizeof sample) == 0);
    shm_pool_message_drop(&clone);
    FAILS(shm_pool_message_clone(&first, &clone), INVALID_ARGUMENT);

    OK(shm_pool_sender_send_copy(sender, sample, SHM_POOL_MAX_INLINE, 0));
    OK(shm_pool_sender_send_copy(sender, sample, sizeof sample, SECOND));
    OK(shm_pool_receiver_recv(receiver, SECOND, &first));
    CHECK(shm_pool_message_is_inline(&first) && shm_pool_message_len(&first) == SHM_POOL_MAX_INLINE);
    shm_pool_message_drop(&first);
    OK(shm_pool_receiver_recv(receiver, SECOND, &first));
    CHECK(!shm_pool_message_is_inline(&first) && shm_pool_message_len(&first) == sizeof sample);
    shm_pool_message_drop(&first);

    shm_pool_client_destroy(client);
    shm_pool_provider_destroy(provider);
    shm_pool_buf_mut buf; /* of a provider that was destroyed */
    shm_pool_buf frozen;
    OK(shm_pool_sender_alloc(sender, 7, &buf));
    OK(shm_pool_buf_mut_freeze(&buf, &frozen));
    OK(shm_pool_sender_send(sender, &frozen, 0));
    OK(shm_pool_publisher_alloc(publisher, 7, &buf));
    shm_pool_buf_mut_drop(&buf);
    FAILS(shm_pool_sender_alloc(NULL, 7, &buf), INVALID_ARGUMENT);
    FAILS(shm_pool_publisher_alloc(publisher, 2 << 20, &buf), TOO_LARGE);
    shm_pool_receiver_destroy(receiver);
    shm_pool_receiver_destroy(subscriber);
    shm_pool_sender_destroy(sender);
    shm_pool_publisher_destroy(publisher);
}

/* The provider has room for exactly the frames that the publisher and its subscribers need. */
static void sizing(void) {
    shm_pool_sender_options four = {.capacity = 4};
    size_t buffers;
    OK(shm_pool_sender_buffers(&four, 2, &buffers));
    CHECK(buffers == 4 + 1 + 2 + 1);
    shm_pool_publisher_options two = {.capacity = 2};
    shm_pool_expected_subscriber expected[] = {{.views = 1}, {.options = {.on_full = SHM_POOL_BLOCK}, .views = 4}};
    OK(shm_pool_publisher_buffers(&two, expected, 2, &buffers));
    CHECK(buffers == 1 + 3 + 1 + 4);
    FAILS(shm_pool_publisher_buffers(&two, NULL, 2, &buffers), INVALID_ARGUMENT);
    expected[0].options.on_full = 9;
    FAILS(shm_pool_publisher_buffers(&two, expected, 2, &buffers), INVALID_ARGUMENT);
    expected[0].options.on_full = 0;

    enum { FRAME = 1000000 };
    CHECK(shm_pool_chunk_size(FRAME) >= FRAME && shm_pool_chunk_size(1) == 64);
    shm_pool_room room = {.len = FRAME, .count = 3};
    shm_pool_provider_options options = {.room = &room, .room_count = 1, .name_prefix = prefix};
    shm_pool_provider *provider;
    OK(shm_pool_provider_create(&options, &provider));
    shm_pool_buf_mut frames[4];
    for (int at = 0; at < 3; at++) OK(shm_pool_provider_alloc(provider, FRAME, &frames[at]));
    FAILS(shm_pool_provider_alloc(provider, FRAME, &frames[3]), EXHAUSTED);
    memset(shm_pool_buf_mut_data(&frames[0]), 1, FRAME);
    for (int at = 0; at < 3; at++) shm_pool_buf_mut_drop(&frames[at]);
    OK(shm_pool_provider_alloc_zeroed(provider, FRAME, &frames[0]));
    for (size_t at = 0; at < FRAME; at++) CHECK(shm_pool_buf_mut_data(&frames[0])[at] == 0);
    shm_pool_buf_mut_drop(&frames[0]);

    two.expected = expected;
    two.expected_count = 2;
    shm_pool_publisher *publisher = make_publisher(provider, "sizing", &two);
    shm_pool_publisher_destroy(publisher);
    two.expected = NULL;
    FAILS(shm_pool_publisher_create(provider, "sizing", &two, 0, &publisher), INVALID_ARGUMENT);
    shm_pool_provider_destroy(provider);
    options.room = NULL;
    FAILS(shm_pool_provider_create(&options, &provider), INVALID_ARGUMENT);
    CHECK(strstr(shm_pool_last_error(), "room"));
}

static int is_tagged(const shm_pool_message *message, const shm_pool_tag *expected) {
    shm_pool_tag tag;
    return shm_pool_message_tag(message, &tag) && memcmp(&tag, expected, sizeof tag) == 0;
}

static void tags(void) {
    shm_pool_provider *provider = make_provider();
    shm_pool_client *client = make_client();
    shm_pool_tag tag = {.bytes = "fifteen letters"};
    shm_pool_sender *sender;
    shm_pool_publisher *publisher = make_publisher(provider, "published tags", NULL);
    shm_pool_receiver *receiver, *subscriber = join(client, "published tags", publisher);
    shm_pool_message message;
    shm_pool_sent sent;
    OK(shm_pool_sender_create(provider, "tags", NULL, 0, &sender));
    OK(shm_pool_receiver_open(client, "tags", NULL, 0, &receiver));

    shm_pool_buf buf = make_buf(provider, "a frame");
    OK(shm_pool_sender_send_tagged(sender, &buf, &tag, SECOND));
    CHECK(shm_pool_buf_data(&buf) == NULL);
    OK(shm_pool_sender_send_copy_tagged(sender, "a sample", 8, &tag, 0));
    buf = make_buf(provider, "untagged");
    OK(shm_pool_sender_send_tagged(sender, &buf, NULL, 0));
    OK(shm_pool_receiver_recv(receiver, SECOND, &message));
    CHECK(has(shm_pool_message_data(&message), shm_pool_message_len(&message), "a frame") && is_tagged(&message, &tag));
    shm_pool_message_drop(&message);
    OK(shm_pool_receiver_recv(receiver, SECOND, &message));
    CHECK(has(shm_pool_message_data(&message), shm_pool_message_len(&message), "a sample") && is_tagged(&message, &tag));
    CHECK(shm_pool_message_is_inline(&message) && shm_pool_message_tag(&message, NULL));
    shm_pool_message_drop(&message);
    CHECK(!shm_pool_message_tag(&message, NULL) && !shm_pool_message_tag(NULL, NULL));
    OK(shm_pool_receiver_recv(receiver, SECOND, &message));
    CHECK(!shm_pool_message_tag(&message, NULL));
    shm_pool_message_drop(&message);

    buf = make_buf(provider, "a frame");
    OK(shm_pool_publisher_send_tagged(publisher, &buf, &tag, SHM_POOL_FOREVER, &sent));
    CHECK(sent.receivers == 1);
    OK(shm_pool_publisher_send_copy_tagged(publisher, "a sample", 8, &tag, 0, &sent));
    CHECK(sent.receivers == 1);
    for (int at = 0; at < 2; at++) {
        OK(shm_pool_receiver_recv(subscriber, SECOND, &message));
        CHECK(is_tagged(&message, &tag));
        shm_pool_message_drop(&message);
    }
    FAILS(shm_pool_sender_send_tagged(sender, &buf, &tag, 0), INVALID_ARGUMENT);
    FAILS(shm_pool_publisher_send_copy_tagged(NULL, "a sample", 8, &tag, 0, NULL), INVALID_ARGUMENT);
    shm_pool_receiver_destroy(receiver);
    shm_pool_receiver_destroy(subscriber);
    shm_pool_sender_destroy(sender);
    shm_pool_publisher_destroy(publisher);
    CHECK(in_use(provider) == 0);
    shm_pool_client_destroy(client);
    shm_pool_provider_destroy(provider);
}

static void *has_no_error(void *argument) {
    CHECK(shm_pool_last_status() == SHM_POOL_STATUS_OK && *shm_pool_last_error() == 0);
    return argument;
}

static void statuses_have_names(void) {
    CHECK(strcmp(shm_pool_status_name(SHM_POOL_STATUS_NOT_FOUND), "SHM_POOL_STATUS_NOT_FOUND") == 0);
    CHECK(strcmp(shm_pool_status_name(SHM_POOL_STATUS_NOT_A_SENDER), "SHM_POOL_STATUS_NOT_A_SENDER") == 0);
    CHECK(strcmp(shm_pool_status_name(SHM_POOL_STATUS_MESSAGE_LOST), "SHM_POOL_STATUS_MESSAGE_LOST") == 0);
    CHECK(strcmp(shm_pool_status_name(-1), "SHM_POOL_STATUS_OTHER") == 0);
}

static void errors_are_per_thread(void) {
    pthread_t thread;
    FAILS(shm_pool_client_create(NULL, NULL), INVALID_ARGUMENT);
    CHECK(pthread_create(&thread, NULL, has_no_error, NULL) == 0 && pthread_join(thread, NULL) == 0);
    FAILS(shm_pool_sender_send(NULL, NULL, 0), INVALID_ARGUMENT);
    CHECK(strstr(shm_pool_last_error(), "sender"));
}

static void forked_child(void) {
    shm_pool_provider *provider = make_provider();
    shm_pool_sender *sender;
    OK(shm_pool_sender_create(provider, "forked", NULL, 0, &sender));
    shm_pool_buf buf = make_buf(provider, "kept");
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        shm_pool_buf_mut mine;
        FAILS(shm_pool_provider_alloc(provider, 1, &mine), FORKED);
        FAILS(shm_pool_sender_send(sender, &buf, 0), FORKED);
        shm_pool_buf_drop(&buf);
        shm_pool_sender_destroy(sender);
        shm_pool_provider_destroy(provider);
        /* Not `_exit`: what the child leaves to its parent would count as lost. */
        execlp("true", "true", (char *)NULL);
        _exit(1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(has(shm_pool_buf_data(&buf), shm_pool_buf_len(&buf), "kept"));
    OK(shm_pool_sender_send(sender, &buf, 0));
    shm_pool_sender_destroy(sender);
    shm_pool_provider_destroy(provider);
}

/* A buffer that was just written is sent without freezing it, and can still be written if it is not sent. */
static void written_buffers(void) {
    shm_pool_provider *provider = make_provider();
    shm_pool_client *client = make_client();
    shm_pool_sender *sender;
    shm_pool_publisher *publisher;
    shm_pool_receiver *receiver, *subscriber;
    shm_pool_sender_options few = {.capacity = 2};
    OK(shm_pool_sender_create(provider, "written", &few, 0, &sender));
    OK(shm_pool_publisher_create(provider, "written to many", NULL, 0, &publisher));
    OK(shm_pool_receiver_open(client, "written", NULL, 0, &receiver));
    OK(shm_pool_subscriber_open(client, "written to many", NULL, 0, &subscriber));
    OK(shm_pool_publisher_wait_for_receivers(publisher, 1, 60 * SECOND));

    shm_pool_buf_mut buf;
    shm_pool_sent sent;
    shm_pool_message message;
    OK(shm_pool_publisher_alloc(publisher, 3, &buf));
    memcpy(shm_pool_buf_mut_data(&buf), "abc", 3);
    OK(shm_pool_publisher_send_mut(publisher, &buf, SHM_POOL_FOREVER, &sent));
    CHECK(sent.receivers == 1 && shm_pool_buf_mut_data(&buf) == NULL);
    FAILS(shm_pool_publisher_send_mut(publisher, &buf, 0, NULL), INVALID_ARGUMENT);
    OK(shm_pool_receiver_recv(subscriber, 60 * SECOND, &message));
    CHECK(memcmp(shm_pool_message_data(&message), "abc", 3) == 0);
    shm_pool_message_drop(&message);

    shm_pool_status status = SHM_POOL_STATUS_OK;
    for (char at = 0; status == SHM_POOL_STATUS_OK; at++) {
        OK(shm_pool_sender_alloc(sender, 100, &buf));
        memset(shm_pool_buf_mut_data(&buf), at, 100);
        status = shm_pool_sender_send_mut(sender, &buf, 0);
    }
    CHECK(status == SHM_POOL_STATUS_FULL && shm_pool_buf_mut_len(&buf) == 100);
    memset(shm_pool_buf_mut_data(&buf), 7, 100);
    while (shm_pool_receiver_recv(receiver, 0, &message) == SHM_POOL_STATUS_OK) shm_pool_message_drop(&message);
    OK(shm_pool_sender_send_mut(sender, &buf, 60 * SECOND));
    OK(shm_pool_receiver_recv(receiver, 60 * SECOND, &message));
    CHECK(shm_pool_message_len(&message) == 100 && *shm_pool_message_data(&message) == 7);
    shm_pool_message_drop(&message);
    FAILS(shm_pool_sender_send_mut(NULL, &buf, 0), INVALID_ARGUMENT);

    shm_pool_receiver_destroy(receiver);
    shm_pool_receiver_destroy(subscriber);
    shm_pool_sender_destroy(sender);
    shm_pool_publisher_destroy(publisher);
    shm_pool_client_destroy(client);
    shm_pool_provider_destroy(provider);
}

int main(void) {
    snprintf(prefix, sizeof prefix, "interface-c-%d", (int)getpid());
    options();
    buffers();
    descriptors();
    channel();
    publisher();
    written_buffers();
    stalls();
    disconnects();
    bytes_per_receiver();
    deferred_joins();
    successors();
    quotas();
    event_loop();
    waits_between_polls();
    room_in_an_event_loop();
    versions();
    message_types();
    other_versions();
    discovery();
    default_namespace();
    events();
    getters();
    tags();
    sizing();
    interrupts();
    interrupts_from_a_handler();
    errors_are_per_thread();
    statuses_have_names();
    forked_child();
    shm_pool_swept swept;
    OK(shm_pool_sweep(NULL, prefix, &swept));
    CHECK(swept.objects == 0);
    FAILS(shm_pool_sweep("relative", NULL, NULL), INVALID_ARGUMENT);
    return 0;
}
