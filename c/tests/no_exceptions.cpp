// The C++ classes in a program without exceptions: a call that fails has an empty result.
#include <shm_pool.hpp>

#include "check.h"
#include <string>
#include <unistd.h>

using namespace std::chrono_literals;

#if defined(__cpp_exceptions)
#error "this program is compiled with -fno-exceptions"
#endif

int main() {
    const std::string prefix = "no-exceptions-" + std::to_string(getpid());
    shm_pool_provider_options memory{};
    memory.name_prefix = prefix.c_str();
    memory.max_bytes = 1 << 20;
    shm_pool::provider provider(memory);
    CHECK(provider);
    shm_pool_client_options where{};
    where.name_prefix = prefix.c_str();
    shm_pool::client client(where);

    shm_pool_provider_options impossible{};
    impossible.mode = 0111;
    shm_pool::provider none(impossible);
    CHECK(!none && shm_pool::last_status() == SHM_POOL_STATUS_INVALID_ARGUMENT && *shm_pool::last_error() != 0);
    CHECK(!none.alloc(10) && none.id() == 0);
    shm_pool::publisher unmade(none, "unmade");
    CHECK(!unmade && !unmade.send(none.alloc(10).freeze()) && !unmade.send_copy("x", 1));

    shm_pool::receiver absent(client, "absent");
    CHECK(!absent && shm_pool::last_status() == SHM_POOL_STATUS_NOT_FOUND && !absent.recv());
    where.directory = "relative";
    shm_pool::client nowhere(where);
    CHECK(!nowhere && !shm_pool::subscriber(nowhere, "frames") && nowhere.channels().empty());

    shm_pool::publisher publisher(provider, "frames");
    shm_pool::subscriber subscriber(client, "frames");
    CHECK(publisher && subscriber && publisher.wait_for_receivers(1, 60s));
    auto frame = publisher.alloc(10);
    CHECK(frame && !frame.resize(1 << 20) && shm_pool::last_status() == SHM_POOL_STATUS_TOO_LARGE);
    CHECK(!provider.alloc(2 << 20) && shm_pool::last_status() == SHM_POOL_STATUS_TOO_LARGE);
    frame[0] = 7;
    CHECK(publisher.send(frame.freeze()));
    auto message = subscriber.recv(60s);
    CHECK(message && (*message)[0] == 7 && !subscriber.recv(1ms));
    return 0;
}
