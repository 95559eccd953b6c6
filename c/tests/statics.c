/* Keeps objects and a message in static variables, and exits: statics PREFIX ROLE HOW. ROLE is "own", or
 * "read" (standard input ends when the owner has ended). HOW is "call" (finalize at the end of main),
 * "atexit", "fork" (a forked child finalizes, and its parent does not) or "nothing". */
#include "check.h"
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LEN = 65536, MESSAGES = 8 };

static shm_pool_provider *provider;
static shm_pool_reservation *reservation;
static shm_pool_sender *sender;
static shm_pool_publisher *publisher;
static shm_pool_client *client;
static shm_pool_receiver *receiver;
static shm_pool_message message;

static void destroy_late(void) {
    /* As destructors of static C++ objects do, after shm_pool_finalize. */
    shm_pool_receiver_destroy(receiver);
    shm_pool_client_destroy(client);
    shm_pool_publisher_destroy(publisher);
    shm_pool_sender_destroy(sender);
    shm_pool_reservation_destroy(reservation);
    shm_pool_provider_destroy(provider);
}

static bool is_whole(void) {
    const uint8_t *data = shm_pool_message_data(&message);
    for (size_t at = 0; at < LEN; at++)
        if (data[at] != 0) return false;
    return shm_pool_message_len(&message) == LEN;
}

static void own(const char *prefix) {
    shm_pool_provider_options options = {.max_bytes = 8 << 20, .name_prefix = prefix};
    OK(shm_pool_provider_create(&options, &provider));
    OK(shm_pool_provider_reserve(provider, LEN, MESSAGES, &reservation));
    OK(shm_pool_publisher_create(provider, "unheard", NULL, 0, &publisher));
    OK(shm_pool_sender_create(provider, "channel", NULL, 0, &sender));
    OK(shm_pool_sender_wait_for_receiver(sender, 60 * SECOND));
    for (uint8_t number = 0; number < MESSAGES; number++) {
        shm_pool_buf_mut buf;
        shm_pool_buf frozen;
        OK(shm_pool_provider_alloc(provider, LEN, &buf));
        memset(shm_pool_buf_mut_data(&buf), number, LEN);
        OK(shm_pool_buf_mut_freeze(&buf, &frozen));
        OK(shm_pool_sender_send(sender, &frozen, SHM_POOL_FOREVER));
    }
}

static void read_first(const char *prefix) {
    shm_pool_client_options options = {.name_prefix = prefix};
    OK(shm_pool_client_create(&options, &client));
    OK(shm_pool_receiver_open(client, "channel", NULL, 60 * SECOND, &receiver));
    OK(shm_pool_receiver_recv(receiver, 60 * SECOND, &message));
    CHECK(is_whole());
    /* Until the owner has ended. */
    CHECK(getchar() == EOF);
}

int main(int argc, char **argv) {
    CHECK(argc == 4);
    if (strcmp(argv[3], "atexit") == 0) {
        /* Runs last. */
        CHECK(atexit(destroy_late) == 0);
        CHECK(atexit(shm_pool_finalize) == 0);
    }
    if (strcmp(argv[2], "own") == 0) own(argv[1]);
    else read_first(argv[1]);
    if (strcmp(argv[3], "fork") == 0) {
        pid_t child = fork();
        if (child == 0) {
            shm_pool_finalize();
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    if (strcmp(argv[3], "call") == 0) {
        shm_pool_finalize();
        if (receiver) CHECK(is_whole());
        shm_pool_finalize();
        destroy_late();
        shm_pool_message_drop(&message);
    }
    if (receiver && strcmp(argv[3], "call") != 0) CHECK(is_whole());
    return 0;
}
