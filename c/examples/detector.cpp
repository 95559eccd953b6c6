// Receives frames and samples in one event loop, and checks every byte: detector CAMERA IMU. Several may run
// at a time; a killed one is no loss to the others.
#include <shm_pool.hpp>

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <optional>
#include <poll.h>
#include <stdexcept>

using namespace std::chrono_literals;

static std::uint64_t word_at(const shm_pool::message &message, std::size_t position) {
    std::uint64_t word;
    std::memcpy(&word, message.data() + 8 * position, 8);
    return word;
}

// Checks and counts what arrives on one channel.
class channel {
public:
    channel(const shm_pool::client &client, const char *name)
        : name_(name), subscriber_(client, name, options(), 60s), fd_(subscriber_.fd()) {}

    bool is_open() const { return is_open_; }

    // For poll, which ignores a negative one.
    int fd() const { return is_open_ ? fd_ : -1; }

    // Returns the next message; nothing if none has arrived, or the publisher has ended.
    std::optional<shm_pool::message> next() {
        try {
            auto message = subscriber_.try_recv();
            if (message) check(*message);
            return message;
        } catch (const shm_pool::error &error) {
            if (error.status() != SHM_POOL_STATUS_DISCONNECTED) throw;
            is_open_ = false;
            return std::nullopt;
        }
    }

    void report() const {
        std::printf("detector: %s: %" PRIu64 " messages, %" PRIu64 " missed\n", name_, received_, missed_);
    }

private:
    // The program ends with its publishers.
    static shm_pool_subscriber_options options() {
        shm_pool_subscriber_options options{};
        options.on_end = SHM_POOL_RETURN;
        return options;
    }

    // Each eight bytes are the message's number and their position.
    void check(const shm_pool::message &message) {
        const std::uint64_t number = word_at(message, 0) >> 32;
        for (std::uint64_t position = 0; position < message.size() / 8; position++) {
            if (word_at(message, position) != (number << 32 | position)) throw std::runtime_error("not what was sent");
        }
        if (last_) {
            if (number != *last_ + message.missed() + 1) throw std::runtime_error("a gap that was not reported");
            missed_ += message.missed();
        }
        last_ = number;
        received_++;
    }

    const char *name_;
    shm_pool::subscriber subscriber_;
    int fd_;
    bool is_open_ = true;
    std::optional<std::uint64_t> last_;
    std::uint64_t received_ = 0;
    std::uint64_t missed_ = 0;
};

int main(int argc, char **argv) try {
    if (argc != 3) {
        std::fprintf(stderr, "usage: %s CAMERA IMU\n", argv[0]);
        return 2;
    }
    shm_pool::client client;
    channel camera(client, argv[1]);
    channel imu(client, argv[2]);
    shm_pool::message in_hand; // the newest frame, until the next one
    while (camera.is_open() || imu.is_open()) {
        pollfd camera_event = {camera.fd(), POLLIN, 0};
        pollfd imu_event = {imu.fd(), POLLIN, 0};
        pollfd events[] = {camera_event, imu_event};
        if (poll(events, 2, -1) < 0) throw std::runtime_error("poll");

        // Until there is nothing more: only then the descriptors are readable again when there is.
        while (auto frame = camera.next()) {
            if (in_hand.size() == 0) {
                std::puts("detector: has a frame");
                std::fflush(stdout);
            }
            in_hand = std::move(*frame);
        }
        while (imu.next()) {
        }
    }
    camera.report();
    imu.report();
    return 0;
} catch (const std::exception &error) {
    std::fprintf(stderr, "detector: %s\n", error.what());
    return 1;
}
