// Receives frames and samples in one event loop, and checks every byte: detector CAMERA IMU. Several may run
// at a time; a killed one is no loss to the others.
#include <shm_pool.hpp>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <optional>
#include <poll.h>

using namespace std::chrono_literals;

// Counts what arrives on one channel.
class channel {
public:
    channel(const shm_pool::client &client, const char *name)
        : name_(name), receiver_(client, name, options(), 60s), fd_(receiver_.fd()) {}

    int fd() const { return is_open_ ? fd_ : -1; }
    bool is_open() const { return is_open_; }

    // Receives until there is nothing more.
    template <class F>
    void drain(F handle) {
        try {
            while (auto message = receiver_.try_recv()) {
                count(*message);
                handle(*message);
            }
        } catch (const shm_pool::error &error) {
            if (error.status() != SHM_POOL_STATUS_DISCONNECTED) throw;
            is_open_ = false;
        }
    }

    void report() const { std::printf("detector: %s: %lu messages, %lu missed\n", name_, count_, missed_); }

private:
    void count(const shm_pool::message &message) {
        std::uint64_t first = 0;
        std::memcpy(&first, message.data(), 8);
        const auto number = first >> 32;
        for (std::uint64_t at = 0; at < message.size() / 8; at++) {
            std::uint64_t word = 0;
            std::memcpy(&word, message.data() + 8 * at, 8);
            if (word != (number << 32 | at)) throw std::runtime_error("not what was sent");
        }
        if (next_ && number != *next_ + message.missed()) throw std::runtime_error("a gap that was not reported");
        missed_ += next_ ? message.missed() : 0;
        next_ = number + 1;
        count_++;
    }

    // The program ends with its publishers.
    static shm_pool_subscriber_options options() {
        shm_pool_subscriber_options options{};
        options.on_end = SHM_POOL_RETURN;
        return options;
    }

    const char *name_;
    shm_pool::subscriber receiver_;
    int fd_;
    bool is_open_ = true;
    std::optional<std::uint64_t> next_;
    std::uint64_t count_ = 0, missed_ = 0;
};

int main(int argc, char **argv) try {
    if (argc != 3) {
        std::fprintf(stderr, "usage: %s CAMERA IMU\n", argv[0]);
        return 2;
    }
    shm_pool::client client;
    channel camera(client, argv[1]), imu(client, argv[2]);
    shm_pool::message in_hand; // the newest frame, until the next one
    while (camera.is_open() || imu.is_open()) {
        pollfd events[] = {{camera.fd(), POLLIN, 0}, {imu.fd(), POLLIN, 0}};
        if (poll(events, 2, -1) < 0) throw std::runtime_error("poll");
        if (events[0].revents != 0) {
            camera.drain([&](shm_pool::message &frame) {
                if (in_hand.size() == 0) {
                    std::puts("detector: has a frame");
                    std::fflush(stdout);
                }
                in_hand = std::move(frame);
            });
        }
        if (events[1].revents != 0) imu.drain([](shm_pool::message &) {});
    }
    camera.report();
    imu.report();
    return 0;
} catch (const std::exception &error) {
    std::fprintf(stderr, "detector: %s\n", error.what());
    return 1;
}
