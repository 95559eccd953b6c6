/* Request and response: a client and a server with a channel in each direction. A request is a buffer that
 * the server reads in place. Responses arrive in the order of the requests. For several clients, give each
 * one two channels of its own, and let the server wait for all requests at a time, as in many_producers.c.
 * cc -std=gnu11 request_response.c -o request_response $(pkg-config --cflags --libs shm-pool) && ./request_response */
#include <inttypes.h>
#include <shm_pool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define REQUESTS 100
#define LEN (1 << 20)
#define TIMEOUT UINT64_C(60000000000) /* long enough for a busy machine to start a process */

static void check(shm_pool_status status) {
    if (status != SHM_POOL_STATUS_OK) {
        fprintf(stderr, "error: %s\n", shm_pool_last_error());
        exit(1);
    }
}

static shm_pool_provider *provider;
static shm_pool_sender *to_other;
static shm_pool_receiver *from_other;

/* Creates the one channel, and waits for the other. */
static void connect_to_other(const char *service, const char *to, const char *from) {
    char name[64];
    check(shm_pool_provider_create(NULL, &provider));
    snprintf(name, sizeof name, "%s/%s", service, to);
    check(shm_pool_sender_create(provider, name, NULL, 0, &to_other));
    snprintf(name, sizeof name, "%s/%s", service, from);
    check(shm_pool_receiver_open(NULL, name, NULL, TIMEOUT, &from_other));
}

static void disconnect(void) {
    shm_pool_receiver_destroy(from_other);
    shm_pool_sender_destroy(to_other);
    shm_pool_provider_destroy(provider);
}

/* Answers each request with the sum of its bytes. */
static void serve(const char *service) {
    connect_to_other(service, "response", "request");
    for (;;) {
        shm_pool_message request;
        shm_pool_status status = shm_pool_receiver_recv(from_other, SHM_POOL_FOREVER, &request);
        if (status == SHM_POOL_STATUS_DISCONNECTED) break; /* the client has ended */
        check(status);
        const uint8_t *bytes = shm_pool_message_data(&request);
        uint64_t sum = 0;
        for (size_t at = 0; at < shm_pool_message_len(&request); at++) sum += bytes[at];
        shm_pool_message_drop(&request);
        check(shm_pool_sender_send_copy(to_other, &sum, sizeof sum, SHM_POOL_FOREVER));
    }
    disconnect();
}

static void request(const char *service) {
    connect_to_other(service, "request", "response");
    for (unsigned number = 0; number < REQUESTS; number++) {
        shm_pool_buf_mut buffer;
        shm_pool_buf message;
        check(shm_pool_provider_alloc(provider, LEN, &buffer));
        memset(shm_pool_buf_mut_data(&buffer), (int)number, LEN);
        check(shm_pool_buf_mut_freeze(&buffer, &message));
        check(shm_pool_sender_send(to_other, &message, SHM_POOL_FOREVER));

        shm_pool_message response;
        uint64_t sum;
        /* A server that is killed ends this wait, too, with DISCONNECTED. */
        check(shm_pool_receiver_recv(from_other, TIMEOUT, &response));
        memcpy(&sum, shm_pool_message_data(&response), sizeof sum);
        shm_pool_message_drop(&response);
        if (sum != (uint64_t)number * LEN) {
            fprintf(stderr, "error: a sum of %" PRIu64 "\n", sum);
            exit(1);
        }
    }
    disconnect();
}

int main(int argc, char **argv) {
    if (argc > 1) {
        serve(argv[1]);
        return 0;
    }
    char service[32];
    snprintf(service, sizeof service, "sum-%d", (int)getpid());
    /* Starts this program again, as the server. */
    pid_t server = fork();
    if (server == 0) execl("/proc/self/exe", "request_response", service, (char *)NULL);
    if (server <= 0) {
        perror("the server does not start");
        _exit(1);
    }
    request(service);
    int result;
    if (waitpid(server, &result, 0) != server || result != 0) return 1;
    printf("%d requests of %d bytes were answered\n", REQUESTS, LEN);
}
