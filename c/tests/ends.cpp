// Sends messages, and ends: ends PREFIX KIND HOW, like ends.c, with the classes of shm_pool.hpp.
#include "shm_pool.hpp"

#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <unistd.h>

static bool wait_for_the_test() {
    char byte = '.';
    return write(0, &byte, 1) == 1 && read(0, &byte, 1) == 0;
}

int main(int argc, char **argv) {
    constexpr std::size_t len = 65536;
    if (argc != 4) return 2;
    const std::string kind = argv[2], how = argv[3];
    shm_pool_provider_options options = {};
    options.max_bytes = 8 << 20;
    options.name_prefix = argv[1];
    std::optional<shm_pool::provider> provider(options);
    std::optional<shm_pool::sender> sender;
    std::optional<shm_pool::publisher> publisher;
    shm_pool::peer_id peer = {};
    if (kind == "sender") {
        sender.emplace(*provider, "channel");
        if (!sender->wait_for_receiver()) return 3;
    } else if (kind == "publisher") {
        publisher.emplace(*provider, "channel");
        if (!publisher->wait_for_receivers(1)) return 3;
    } else {
        const std::uint64_t id = provider->id();
        if (write(0, &id, sizeof id) != sizeof id) return 3;
        if (read(0, peer.bytes, sizeof peer.bytes) != sizeof peer.bytes) return 3;
    }
    for (int number = 0; number < 8; number++) {
        shm_pool::buf_mut frame = provider->alloc(len);
        std::memset(frame.data(), number, len);
        if (sender) {
            if (!sender->send(frame.freeze())) return 4;
        } else if (publisher) {
            if (!publisher->send(frame.freeze())) return 4;
        } else {
            const shm_pool::descriptor descriptor = frame.freeze().grant(peer);
            if (write(0, descriptor.bytes, sizeof descriptor.bytes) != sizeof descriptor.bytes) return 4;
        }
    }
    if (how == "kill") wait_for_the_test();
    if (how == "abort") std::abort();
    if (how == "exit") std::exit(0);
    if (how == "drop") {
        provider.reset();
        sender.reset();
        publisher.reset();
        if (!wait_for_the_test()) return 5;
    }
    return 0;
}
