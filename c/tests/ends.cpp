// Sends messages, and ends: ends PREFIX KIND HOW, like ends.c, with the classes of shm_pool.hpp.
#include "shm_pool.hpp"

#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>

int main(int argc, char **argv) {
    constexpr std::size_t len = 65536;
    if (argc != 4) return 2;
    const std::string kind = argv[2], how = argv[3];
    shm_pool_provider_options options = {};
    options.max_bytes = 8 << 20;
    options.name_prefix = argv[1];
    shm_pool::provider provider(options);
    std::optional<shm_pool::sender> sender;
    std::optional<shm_pool::publisher> publisher;
    if (kind == "sender") {
        sender.emplace(provider, "channel");
        if (!sender->wait_for_receiver()) return 3;
    } else {
        publisher.emplace(provider, "channel");
        if (!publisher->wait_for_receivers(1)) return 3;
    }
    for (int number = 0; number < 8; number++) {
        shm_pool::buf_mut frame = provider.alloc(len);
        std::memset(frame.data(), number, len);
        if (sender ? !sender->send(frame.freeze()) : !publisher->send(frame.freeze())) return 4;
    }
    if (how == "abort") std::abort();
    if (how == "exit") std::exit(0);
    return 0;
}
