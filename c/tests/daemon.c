/* A daemon that blocks SIGTERM and reads it from a descriptor: daemon PREFIX. It starts the library's threads
 * before the signal comes. None of them may take it. */
#include "check.h"
#include <dirent.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

/* Waits until the thread has its name: its first instructions, in the C library, block all signals. */
static void wait_until_named(const char *thread) {
    char path[300];
    char name[32] = "";
    snprintf(path, sizeof path, "/proc/self/task/%s/comm", thread);
    while (strncmp(name, "shm-pool-", 9) != 0) {
        FILE *comm = fopen(path, "r");
        CHECK(comm != NULL && fgets(name, sizeof name, comm) != NULL);
        fclose(comm);
    }
}

/* Whether the thread blocks a signal, by a line such as "SigBlk:\t0000000000004000" of its status. */
static bool blocks(const char *thread, int signal) {
    char path[300];
    char line[256];
    unsigned long long mask = 0;
    snprintf(path, sizeof path, "/proc/self/task/%s/status", thread);
    FILE *status = fopen(path, "r");
    CHECK(status != NULL);
    while (fgets(line, sizeof line, status) != NULL) sscanf(line, "SigBlk: %llx", &mask);
    fclose(status);
    return (mask >> (signal - 1) & 1) != 0;
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    shm_pool_provider_options options = {.max_bytes = 1 << 20, .name_prefix = arguments[1]};
    shm_pool_client_options of_prefix = {.name_prefix = arguments[1]};
    shm_pool_provider *provider;
    shm_pool_publisher *publisher;
    shm_pool_client *client;
    shm_pool_receiver *subscriber;
    shm_pool_watcher *watcher;
    int fd;
    OK(shm_pool_provider_create(&options, &provider));
    OK(shm_pool_publisher_create(provider, "channel", NULL, 0, &publisher)); /* the keeper */
    OK(shm_pool_client_create(&of_prefix, &client));
    OK(shm_pool_watcher_create(client, &watcher));
    OK(shm_pool_watcher_fd(watcher, &fd)); /* waits for names */
    shm_pool_channel_change change;
    OK(shm_pool_watcher_recv(watcher, 0, &change));
    FAILS(shm_pool_watcher_recv(watcher, 0, &change), EMPTY);
    OK(shm_pool_subscriber_open(client, "channel", NULL, SECOND, &subscriber));
    OK(shm_pool_receiver_fd(subscriber, &fd)); /* wakes tasks */
    shm_pool_message message;
    FAILS(shm_pool_receiver_recv(subscriber, 0, &message), EMPTY);

    int threads = 0;
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks != NULL);
    for (struct dirent *task = readdir(tasks); task != NULL; task = readdir(tasks)) {
        if (task->d_name[0] == '.' || atoi(task->d_name) == getpid()) continue;
        threads++;
        wait_until_named(task->d_name);
        CHECK(blocks(task->d_name, SIGTERM) && blocks(task->d_name, SIGALRM) && blocks(task->d_name, SIGRTMAX));
        CHECK(!blocks(task->d_name, SIGSEGV) && !blocks(task->d_name, SIGBUS));
    }
    closedir(tasks);
    CHECK(threads == 3);

    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGTERM);
    CHECK(sigprocmask(SIG_BLOCK, &mask, NULL) == 0);
    int signals = signalfd(-1, &mask, SFD_CLOEXEC);
    CHECK(signals != -1);
    for (int at = 0; at < 100; at++) {
        struct signalfd_siginfo info;
        CHECK(kill(getpid(), SIGTERM) == 0);
        CHECK(read(signals, &info, sizeof info) == sizeof info && info.ssi_signo == SIGTERM);
    }

    shm_pool_receiver_destroy(subscriber);
    shm_pool_watcher_destroy(watcher);
    shm_pool_client_destroy(client);
    shm_pool_publisher_destroy(publisher);
    shm_pool_provider_destroy(provider);
    return 0;
}
