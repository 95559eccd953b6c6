// Publishes the time, once a second. Run it in one terminal, and `subscriber` in another, in any order.
// README.md says how to build both.
#include <shm_pool.hpp>

#include <chrono>
#include <cstring>
#include <ctime>
#include <exception>
#include <iostream>
#include <thread>
#include <utility>

int main() try {
    shm_pool::provider provider;
    shm_pool::publisher publisher(provider, "time");
    for (;;) {
        const std::uint64_t seconds = std::time(nullptr);
        auto buffer = provider.alloc_zeroed(1 << 20); // a megabyte, which is not copied
        std::memcpy(buffer.data(), &seconds, sizeof seconds);

        shm_pool_sent sent;
        publisher.send(std::move(buffer), shm_pool::forever, &sent);
        std::cout << "sent to " << sent.receivers << " subscribers" << std::endl;
        std::this_thread::sleep_for(std::chrono::seconds(1));
    }
} catch (const std::exception &error) {
    std::cerr << "error: " << error.what() << '\n';
    return 1;
}
