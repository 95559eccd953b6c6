/* A program that loads the library as a plug-in, uses it, and unloads it: plugin_host LIBRARY PREFIX THREADS.
 * Afterwards it makes every thread of the process run: setuid interrupts them all. */
#define CHECK_WITHOUT_LIBRARY
#include "check.h"
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

enum { LOADS = 5, SETUIDS = 10 };

static const char *library;
static const char *prefix;

/* Sets a variable of the function's name to the function. */
#define FIND(name)                                                                                           \
    __typeof__(&name) name##_;                                                                               \
    do {                                                                                                     \
        void *found = dlsym(handle, #name);                                                                  \
        CHECK(found != NULL);                                                                                \
        memcpy(&name##_, &found, sizeof found);                                                              \
    } while (0)

static void use_and_unload(int number) {
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    CHECK(handle != NULL);
    FIND(shm_pool_provider_create);
    FIND(shm_pool_publisher_create);
    FIND(shm_pool_publisher_destroy);
    FIND(shm_pool_provider_destroy);

    char channel[32];
    snprintf(channel, sizeof channel, "channel%d", number);
    shm_pool_provider_options options = {.max_bytes = 1 << 20, .name_prefix = prefix};
    shm_pool_provider *provider;
    shm_pool_publisher *publisher;
    CHECK(shm_pool_provider_create_(&options, &provider) == SHM_POOL_STATUS_OK);
    CHECK(shm_pool_publisher_create_(provider, channel, NULL, 0, &publisher) == SHM_POOL_STATUS_OK);
    shm_pool_publisher_destroy_(publisher);
    shm_pool_provider_destroy_(provider);
    CHECK(dlclose(handle) == 0);
}

static void *run(void *number) {
    use_and_unload((int)(size_t)number);
    return NULL;
}

int main(int count, char **arguments) {
    CHECK(count == 4);
    library = arguments[1];
    prefix = arguments[2];
    if (strcmp(arguments[3], "several") == 0) {
        pthread_t threads[LOADS];
        for (size_t at = 0; at < LOADS; at++) CHECK(pthread_create(&threads[at], NULL, run, (void *)at) == 0);
        for (size_t at = 0; at < LOADS; at++) CHECK(pthread_join(threads[at], NULL) == 0);
    } else {
        for (int number = 0; number < LOADS; number++) use_and_unload(number);
    }
    for (int at = 0; at < SETUIDS; at++) CHECK(setuid(getuid()) == 0);
    return 0;
}
