// The C++ classes: moves, exceptions, empty results, and a thread for each side.
#include <shm_pool.hpp>

#include "check.h"
#include <algorithm>
#include <cstring>
#include <poll.h>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <unistd.h>

using namespace std::chrono_literals;

static_assert(!std::is_copy_constructible_v<shm_pool::buf> && std::is_nothrow_move_constructible_v<shm_pool::buf>);
static_assert(!std::is_copy_constructible_v<shm_pool::provider> && std::is_nothrow_move_assignable_v<shm_pool::provider>);
static_assert(sizeof(shm_pool::message) == sizeof(shm_pool_message));

static const std::string prefix = "interface-cpp-" + std::to_string(getpid());

static shm_pool::provider make_provider() {
    shm_pool_provider_options options{};
    options.max_bytes = 1 << 20;
    options.name_prefix = prefix.c_str();
    return shm_pool::provider(options);
}

static shm_pool::client make_client() {
    shm_pool_client_options options{};
    options.name_prefix = prefix.c_str();
    return shm_pool::client(options);
}

static shm_pool::buf make_buf(const shm_pool::provider &provider, std::string_view content) {
    auto buf = provider.alloc(content.size());
    std::copy(content.begin(), content.end(), buf.begin());
    return buf.freeze();
}

template <class Bytes>
static bool has(const Bytes &bytes, std::string_view content) {
    return bytes.size() == content.size() && std::equal(bytes.begin(), bytes.end(), content.begin());
}

template <class F>
static void throws(shm_pool_status status, F function) {
    try {
        function();
    } catch (const shm_pool::error &error) {
        CHECK(error.status() == status && std::strlen(error.what()) > 0);
        CHECK(std::strcmp(error.name(), shm_pool_status_name(status)) == 0);
        return;
    }
    CHECK(!"an exception");
}

static void buffers() {
    auto provider = make_provider();
    auto buf = provider.alloc(100);
    buf.resize(5);
    std::memcpy(buf.data(), "hello", 5);
    CHECK(buf.size() == 5 && buf.capacity() >= 100 && buf[0] == 'h');
    throws(SHM_POOL_STATUS_TOO_LARGE, [&] { buf.resize(1 << 20); });
    auto frozen = buf.freeze();
    CHECK(buf.data() == nullptr && has(frozen, "hello"));
    auto moved = std::move(frozen);
    CHECK(frozen.size() == 0 && has(moved, "hello"));
    moved = moved.clone();
    CHECK(has(moved, "hello") && moved[4] == 'o');
    moved = shm_pool::buf();
    CHECK(provider.stats().bytes_in_use == 0);
    auto all = provider.alloc(1 << 20);
    throws(SHM_POOL_STATUS_EXHAUSTED, [&] { provider.alloc(1); });
    throws(SHM_POOL_STATUS_TIMED_OUT, [&] { provider.alloc(1, 1ms); });
    all = {};
    auto reservation = provider.reserve(1000, 2);
    auto other = std::move(provider);
    CHECK(!provider && other && other.alloc(10).size() == 10);
}

static void descriptors() {
    auto provider = make_provider();
    auto client = make_client();
    auto buf = make_buf(provider, "hello");
    auto view = client.attach(buf.describe());
    auto second = view.clone();
    CHECK(has(view, "hello") && has(second, "hello") && buf.is_leased());
    auto peer = client.connect(provider.id());
    auto granted = client.attach(buf.grant(peer));
    buf = make_buf(provider, "other");
    CHECK(has(granted, "hello") && client.warm(provider.id()) > 0);
    buf.grant(peer);
    CHECK(buf.revoke(peer));
    provider.disconnect(peer);
    throws(SHM_POOL_STATUS_PEER_DISCONNECTED, [&] { buf.grant(peer); });
}

static void channel() {
    auto client = make_client();
    throws(SHM_POOL_STATUS_NOT_FOUND, [&] { shm_pool::receiver(client, "pair"); });
    std::thread sending([] {
        auto provider = make_provider();
        shm_pool_sender_options options{};
        options.capacity = 2;
        shm_pool::sender sender(provider, "pair", options);
        CHECK(sender.wait_for_receiver(60s));
        for (int number = 0; number < 1000; number++) {
            auto buf = make_buf(provider, std::to_string(number));
            CHECK(sender.send(std::move(buf)) && buf.size() == 0);
        }
        CHECK(sender.wait_until_received(60s));
        for (int at = 0; at < 3; at++) CHECK(sender.send_copy("filler", 6));
    });
    shm_pool::receiver receiver(client, "pair", {}, 60s);
    for (int number = 0; number < 1000; number++) {
        auto message = receiver.recv();
        CHECK(message && has(*message, std::to_string(number)) && message->missed() == 0);
    }
    int fd = receiver.fd();
    int fillers = 0;
    bool is_open = true;
    while (is_open) {
        pollfd events = {fd, POLLIN, 0};
        CHECK(poll(&events, 1, 60000) == 1);
        try {
            for (; auto message = receiver.try_recv(); fillers++) CHECK(has(*message, "filler"));
        } catch (const shm_pool::error &error) {
            CHECK(error.status() == SHM_POOL_STATUS_DISCONNECTED);
            is_open = false;
        }
    }
    CHECK(fillers == 3);
    sending.join();
}

static void full_channel() {
    auto provider = make_provider();
    shm_pool::sender sender(provider, "full");
    auto kept = make_buf(provider, "kept");
    while (sender.send_copy("filler", 6, 0s)) {}
    CHECK(!sender.send(std::move(kept), 0s) && !sender.send(std::move(kept), 1ms) && has(kept, "kept"));
    CHECK(sender.fd() >= 0 && shm_pool::publisher(provider, "never full").fd() >= 0);
    auto interrupter = sender.make_interrupter();
    interrupter.interrupt();
    throws(SHM_POOL_STATUS_INTERRUPTED, [&] { sender.send(std::move(kept)); });
    CHECK(has(kept, "kept"));
}

static void publisher() {
    auto provider = make_provider();
    auto client = make_client();
    shm_pool::publisher publisher(provider, "many");
    CHECK(!publisher.wait_for_receivers(1, 1ms));
    shm_pool_subscriber_options options{};
    options.capacity = 1;
    shm_pool::subscriber first(client, "many"), second(client, "many", options);
    CHECK(publisher.wait_for_receivers(2, 60s));
    auto buf = make_buf(provider, "a frame");
    shm_pool_sent sent;
    CHECK(publisher.send(std::move(buf), shm_pool::forever, &sent) && sent.receivers == 2);
    CHECK(publisher.send_copy("a sample", 8));
    auto frame = first.try_recv();
    auto newest = second.recv(1s);
    CHECK(frame && has(*frame, "a frame") && newest && has(*newest, "a sample") && newest->missed() == 1);
}

static void disconnected() {
    auto provider = make_provider();
    auto client = make_client();
    shm_pool_publisher_options options{};
    options.max_bytes_per_receiver = 1;
    options.on_full = SHM_POOL_DROP_NEWEST;
    shm_pool::publisher publisher(provider, "evicts", options, 1s);
    throws(SHM_POOL_STATUS_NAME_TAKEN, [&] { shm_pool::sender(provider, "evicts", {}, 1ns); });
    shm_pool::subscriber receiver(client, "evicts");
    CHECK(publisher.serve_joins() && !publisher.serve_joins());
    shm_pool_sent sent;
    for (std::uint64_t at = 0; at < 3; at++) {
        auto buf = make_buf(provider, "a frame");
        CHECK(publisher.send(std::move(buf), 1s, &sent) && sent.too_many_borrowed == at / 2);
    }
    auto first = receiver.try_recv(), second = receiver.try_recv();
    throws(SHM_POOL_STATUS_TOO_MANY_BORROWED, [&] { receiver.recv(); });
    CHECK(!receiver.try_recv());
    auto states = publisher.receivers();
    CHECK(states.size() == 1 && publisher.disconnect(states[0].id) && !publisher.disconnect(states[0].id));
    throws(SHM_POOL_STATUS_EVICTED, [&] { receiver.recv(); });
    CHECK(has(*second, "a frame"));
}

struct pose {
    double x, y, angle;
};

static void message_types() {
    auto provider = make_provider();
    auto client = make_client();
    shm_pool_publisher_options typed{};
    typed.message_type = shm_pool::type_of<pose>("robot.Pose", 1);
    shm_pool::publisher publisher(provider, "pose", typed);
    shm_pool_subscriber_options expects{};
    expects.message_type = typed.message_type;
    shm_pool::subscriber subscriber(client, "pose", expects);
    CHECK(subscriber.type() == typed.message_type && subscriber.type().size == sizeof(pose));
    expects.message_type = shm_pool::type_of<float>("robot.Pose", 1);
    throws(SHM_POOL_STATUS_TYPE_MISMATCH, [&] { shm_pool::subscriber(client, "pose", expects, 1s); });
    shm_pool_sender_options long_name{};
    long_name.message_type = shm_pool::type_of<pose>(std::string(200, 'n'), 1);
    throws(SHM_POOL_STATUS_INVALID_ARGUMENT, [&] { shm_pool::sender(provider, "long", long_name); });
}

static void discovery() {
    auto provider = make_provider();
    auto client = make_client();
    shm_pool::watcher watcher(client);
    CHECK(!watcher.try_recv() && client.channels().empty());
    std::optional<shm_pool::sender> sender;
    sender.emplace(provider, "found");
    auto created = watcher.recv(60s);
    CHECK(created && created->is_created && std::string(created->channel.name) == "found");
    CHECK(client.channels().size() == 1 && client.process_of("found") == static_cast<std::uint64_t>(getpid()));
    sender.reset();
    auto ended = watcher.recv(60s);
    CHECK(ended && !ended->is_created && watcher.fd() >= 0 && !watcher.recv(1ms));
    watcher.make_interrupter().interrupt();
    throws(SHM_POOL_STATUS_INTERRUPTED, [&] { watcher.recv(); });
    throws(SHM_POOL_STATUS_NOT_FOUND, [&] { client.process_of("found"); });
}

static void default_namespace() {
    const shm_pool::provider provider;
    const std::string sent = prefix + "/sent", published = prefix + "/published";
    shm_pool::sender sender(provider, sent);
    shm_pool::publisher publisher(provider, published);
    shm_pool::receiver receiver(sent, {}, 60s);
    shm_pool::subscriber subscriber(published);
    CHECK(publisher.wait_for_receivers(1, 60s) && publisher.send_copy("a", 1) && sender.send_copy("b", 1));
    CHECK(subscriber.recv() && receiver.recv());
    CHECK(shm_pool::process_of(sent) == static_cast<std::uint64_t>(getpid()));
    CHECK(shm_pool::channels().size() >= 2);
    CHECK(shm_pool::watcher().recv(60s));
    throws(SHM_POOL_STATUS_NOT_FOUND, [&] { shm_pool::receiver(make_client(), sent); });
    // An empty client does not stand for it.
    auto empty = make_client();
    const auto other = std::move(empty);
    throws(SHM_POOL_STATUS_INVALID_ARGUMENT, [&] { shm_pool::subscriber(empty, published); });
    throws(SHM_POOL_STATUS_INVALID_ARGUMENT, [&] { shm_pool::receiver(empty, sent); });
    throws(SHM_POOL_STATUS_INVALID_ARGUMENT, [&] { shm_pool::watcher watcher(empty); });
    throws(SHM_POOL_STATUS_INVALID_ARGUMENT, [&] { empty.channels(); });
    throws(SHM_POOL_STATUS_INVALID_ARGUMENT, [&] { empty.process_of(sent); });
}

static void ends() {
    auto provider = make_provider();
    auto client = make_client();
    shm_pool::subscriber subscriber(client, "ends");
    CHECK(!subscriber.recv_event(0s) && subscriber.last_error() == SHM_POOL_STATUS_NOT_FOUND);
    std::optional<shm_pool::publisher> publisher;
    publisher.emplace(provider, "ends");
    auto connected = subscriber.recv_event(60s);
    CHECK(connected && connected->kind == SHM_POOL_EVENT_CONNECTED && connected->provider == provider.id());
    CHECK(subscriber.provider() == provider.id());
    CHECK(subscriber.on_full() == SHM_POOL_DROP_OLDEST && subscriber.missed().withdrawn == 0);
    CHECK(subscriber.last_error() == SHM_POOL_STATUS_OK);
    CHECK(publisher->wait_for_receivers(1, 60s) && publisher->has_receivers() && subscriber.is_connected());
    CHECK(std::string(publisher->name()) == "ends" && std::string(subscriber.name()) == "ends");
    CHECK(publisher->capacity() == subscriber.capacity() && publisher->max_borrowed() == subscriber.max_borrowed());

    shm_pool::sender sender(provider, "one");
    shm_pool::receiver receiver(client, "one");
    CHECK(std::string(sender.name()) == "one" && sender.capacity() == 256 && sender.max_borrowed() == 2048);
    CHECK(!shm_pool::wait_any({&subscriber, &receiver}, 1ms));
    const std::string text(1000, 't'); // more than a slot holds
    CHECK(sender.send_copy(text.data(), text.size()));
    CHECK(shm_pool::wait_any({&subscriber, &receiver}, 60s) == 1);
    auto message = receiver.recv();
    auto clone = message->clone();
    message.reset();
    CHECK(has(clone, text) && !clone.is_inline());
    auto zeros = provider.alloc_zeroed(3);
    CHECK(zeros && zeros[2] == 0 && sender.alloc(3) && publisher->alloc(3));
    auto written = publisher->alloc(text.size());
    std::memcpy(written.data(), text.data(), text.size());
    CHECK(publisher->send(std::move(written)) && sender.send(sender.alloc(3)));
    auto event = subscriber.recv_event(60s);
    CHECK(event && event->kind == SHM_POOL_EVENT_MESSAGE && has(event->message, text));
    publisher.reset();
    event = subscriber.recv_event(60s);
    CHECK(event && event->kind == SHM_POOL_EVENT_DISCONNECTED);
    CHECK(!provider.class_stats().empty() && client.unmap_unused() == 0);
    CHECK(std::string(shm_pool::version()) == shm_pool_version());
}

static void tags() {
    auto provider = make_provider();
    auto client = make_client();
    const shm_pool::tag tag{{1, 2, 3}};
    auto is_tagged = [&](const std::optional<shm_pool::message> &message) {
        auto found = message->tag();
        return found && std::memcmp(&*found, &tag, sizeof tag) == 0;
    };
    shm_pool::sender sender(provider, "tags");
    shm_pool::receiver receiver(client, "tags");
    CHECK(sender.send(make_buf(provider, "a frame"), tag) && sender.send_copy("a sample", 8, tag, 1s));
    CHECK(is_tagged(receiver.recv()) && is_tagged(receiver.recv()));
    CHECK(sender.send(make_buf(provider, "untagged")) && !receiver.recv()->tag());
    shm_pool::publisher publisher(provider, "published tags");
    shm_pool::subscriber subscriber(client, "published tags");
    CHECK(publisher.wait_for_receivers(1, 60s));
    CHECK(publisher.send(make_buf(provider, "a frame"), tag) && publisher.send_copy("a sample", 8, tag));
    CHECK(is_tagged(subscriber.recv()) && is_tagged(subscriber.recv()));
}

int main() {
    buffers();
    descriptors();
    channel();
    full_channel();
    publisher();
    disconnected();
    message_types();
    discovery();
    default_namespace();
    ends();
    tags();
    CHECK(shm_pool::sweep(nullptr, prefix.c_str()).objects == 0);
    return 0;
}
