// A provider and a publisher in static variables, whose destructors run after `finalize`: statics PREFIX.
#include "shm_pool.hpp"

#include <optional>

static std::optional<shm_pool::provider> provider;
static std::optional<shm_pool::publisher> publisher;

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    shm_pool_provider_options options = {};
    options.name_prefix = argv[1];
    provider.emplace(options);
    publisher.emplace(*provider, "channel");
    shm_pool::finalize();
    return 0;
}
