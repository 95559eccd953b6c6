/* A program that sets the attributes of the library's threads: threads PREFIX. */
#include "check.h"
#include <pthread.h>
#include <sched.h>
#include <string.h>

static int started;

/* Each of them runs on the first CPU that the program may use, and only when no other thread wants it. */
static void hook(const char *name, void *context) {
    cpu_set_t *cpus = context;
    struct sched_param none = {0};
    CHECK(strncmp(name, "shm-pool-", 9) == 0);
    CHECK(pthread_setaffinity_np(pthread_self(), sizeof *cpus, cpus) == 0);
    CHECK(pthread_setschedparam(pthread_self(), SCHED_IDLE, &none) == 0);
    __atomic_fetch_add(&started, 1, __ATOMIC_RELEASE);
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    cpu_set_t all;
    cpu_set_t first;
    CHECK(sched_getaffinity(0, sizeof all, &all) == 0);
    CPU_ZERO(&first);
    for (size_t cpu = 0; CPU_COUNT(&first) == 0; cpu++) {
        if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &first);
    }
    FAILS(shm_pool_on_thread_start(NULL, NULL), INVALID_ARGUMENT);
    OK(shm_pool_on_thread_start(hook, &first));
    FAILS(shm_pool_on_thread_start(hook, &first), OTHER);
    CHECK(strstr(shm_pool_last_error(), "once") != NULL);

    shm_pool_provider_options options = {.max_bytes = 1 << 20, .name_prefix = arguments[1]};
    shm_pool_provider *provider;
    shm_pool_publisher *publisher;
    OK(shm_pool_provider_create(&options, &provider));
    OK(shm_pool_publisher_create(provider, "channel", NULL, 0, &publisher));
    while (__atomic_load_n(&started, __ATOMIC_ACQUIRE) == 0) sched_yield();
    int policy;
    struct sched_param parameters;
    CHECK(pthread_getschedparam(pthread_self(), &policy, &parameters) == 0);
    CHECK(policy != SCHED_IDLE);
    shm_pool_publisher_destroy(publisher);
    shm_pool_provider_destroy(provider);
    return 0;
}
