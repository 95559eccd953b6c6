// shm-pool for C++17: classes that own what shm_pool.h hands out, and exceptions for its errors.
//
// Without exceptions (-fno-exceptions), a call that fails has an empty result: an object that converts to
// false, an empty value, nothing (std::nullopt), `false`, or zeros. last_status() and last_error() say why.
// Later calls of an empty object fail, too, so that a program may check once, at the end.
//
// Each class moves and does not copy; a moved-from object is empty, and may only be destroyed or assigned
// to. What shm_pool.h says about threads, forks and lifetimes holds here too. Methods without a comment
// do what the C function of their name does.
#ifndef SHM_POOL_HPP
#define SHM_POOL_HPP

#include "shm_pool.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

// In the namespace of its arguments, where C++ looks for it.
inline bool operator==(const shm_pool_message_type &left, const shm_pool_message_type &right) noexcept {
    return std::strcmp(left.name, right.name) == 0 && left.version == right.version && left.size == right.size &&
           left.align == right.align && left.element_size == right.element_size;
}

namespace shm_pool {

using nanoseconds = std::chrono::nanoseconds;
using descriptor = shm_pool_descriptor;
using peer_id = shm_pool_peer_id;
using message_type = shm_pool_message_type;
using tag = shm_pool_tag;

// For waits without a limit.
inline constexpr nanoseconds forever = nanoseconds::max();

// A call that failed. what() is the library's message.
class error : public std::runtime_error {
public:
    error(shm_pool_status status, int number, const char *text)
        : std::runtime_error(text), status_(status), errno_(number) {}
    shm_pool_status status() const noexcept { return status_; }
    // The name of the status, such as SHM_POOL_STATUS_FULL.
    const char *name() const noexcept { return shm_pool_status_name(status_); }
    // The errno of a failed system call, or 0.
    int number() const noexcept { return errno_; }

private:
    shm_pool_status status_;
    int errno_;
};

// Of the last call of this thread that failed.
inline shm_pool_status last_status() noexcept { return shm_pool_last_status(); }
inline const char *last_error() noexcept { return shm_pool_last_error(); }

// Throws an `error` unless `status` is SHM_POOL_STATUS_OK. Without exceptions, returns whether it is.
inline bool check(shm_pool_status status) {
#if defined(__cpp_exceptions)
    if (status != SHM_POOL_STATUS_OK) throw error(status, shm_pool_last_errno(), shm_pool_last_error());
#endif
    return status == SHM_POOL_STATUS_OK;
}

// The version of the library that runs, such as "0.1.0".
inline const char *version() noexcept { return shm_pool_version(); }

// The type of messages that are a T. `version`: any number that changes when the meaning of the bytes does.
// A name above 96 bytes is an error when the type is declared.
template <class T>
message_type type_of(const std::string &name, std::uint64_t version) {
    static_assert(std::is_trivially_copyable_v<T>, "a message is plain bytes");
    message_type made{};
    std::strncpy(made.name, name.c_str(), sizeof made.name - 1);
    made.version = version;
    made.size = sizeof(T);
    made.align = alignof(T);
    return made;
}

namespace detail {

inline std::uint64_t ns(nanoseconds time) {
    if (time == forever) return SHM_POOL_FOREVER;
    return time.count() < 0 ? 0 : static_cast<std::uint64_t>(time.count());
}

// Returns false if there was nothing to wait for, or no time.
inline bool succeeded(shm_pool_status status) {
    switch (status) {
    case SHM_POOL_STATUS_EMPTY:
    case SHM_POOL_STATUS_FULL:
    case SHM_POOL_STATUS_TOO_MANY_BORROWED:
    case SHM_POOL_STATUS_TIMED_OUT: return false;
    default: return check(status);
    }
}

// Calls a function of C whose last argument is the result, and returns that.
template <class R, class F, class... A>
R result(F function, A... arguments) {
    R made{};
    check(function(arguments..., &made));
    return made;
}

// Returns a function of C that takes a client first, where NULL means the defaults. An empty client does not:
// it is an error, as with every other function.
template <class F>
auto not_empty(F function) {
    return [function](const shm_pool_client *of, auto... arguments) {
        peer_id unused;
        return of == nullptr ? shm_pool_client_connect(of, 0, &unused) : function(of, arguments...);
    };
}

// `result`, for one that is a class of this header.
template <class R, class F, class... A>
R wrapped(F function, A... arguments) {
    R made;
    check(function(arguments..., made.get()));
    return made;
}

// Calls a function of C that fills an array of `R`, with room for all.
template <class R, class F, class A>
std::vector<R> all(F function, A argument) {
    std::vector<R> found;
    std::size_t count = 0;
    do { // there may be more meanwhile
        found.resize(count);
        if (!check(function(argument, found.data(), found.size(), &count))) return {};
    } while (count > found.size());
    found.resize(count);
    return found;
}

// An object of the C interface. D destroys it.
template <class T, void (*D)(T *)>
class object {
public:
    T *get() const noexcept { return pointer_.get(); }
    explicit operator bool() const noexcept { return pointer_ != nullptr; }

protected:
    template <class F, class... A>
    explicit object(F create, A... arguments) : pointer_(result<T *>(create, arguments...)) {}

private:
    struct destroy {
        void operator()(T *pointer) const noexcept { D(pointer); }
    };
    std::unique_ptr<T, destroy> pointer_;
};

// A value of the C interface. D drops it.
template <class T, void (*D)(T *)>
class value {
public:
    value() = default;
    value(value &&other) noexcept : value_(std::exchange(other.value_, T{})) {}
    value &operator=(value &&other) noexcept {
        if (this != &other) {
            D(&value_);
            value_ = std::exchange(other.value_, T{});
        }
        return *this;
    }
    ~value() { D(&value_); }
    T *get() noexcept { return &value_; }
    const T *get() const noexcept { return &value_; }

private:
    T value_{};
};

// The bytes of a value. They stay where they are until it is moved.
template <class T, void (*D)(T *), const std::uint8_t *(*Data)(const T *), std::size_t (*Len)(const T *)>
class bytes : public value<T, D> {
public:
    const std::uint8_t *data() const noexcept { return Data(this->get()); }
    std::size_t size() const noexcept { return Len(this->get()); }
    const std::uint8_t *begin() const noexcept { return data(); }
    const std::uint8_t *end() const noexcept { return data() + size(); }
    const std::uint8_t &operator[](std::size_t at) const noexcept { return data()[at]; }
};

} // namespace detail

// A message: bytes in shared memory that are not written any more.
class buf : public detail::bytes<shm_pool_buf, shm_pool_buf_drop, shm_pool_buf_data, shm_pool_buf_len> {
public:
    buf clone() const { return detail::wrapped<buf>(shm_pool_buf_clone, get()); }
    descriptor describe() const { return detail::result<descriptor>(shm_pool_buf_descriptor, get()); }
    descriptor grant(const peer_id &peer) const { return detail::result<descriptor>(shm_pool_buf_grant, get(), &peer); }
    bool revoke(const peer_id &peer) const { return shm_pool_buf_revoke(get(), &peer); }
    bool is_leased() const { return shm_pool_buf_is_leased(get()); }
    explicit operator bool() const noexcept { return data() != nullptr; }
};

// A buffer to fill.
class buf_mut : public detail::value<shm_pool_buf_mut, shm_pool_buf_mut_drop> {
public:
    std::uint8_t *data() noexcept { return shm_pool_buf_mut_data(get()); }
    std::size_t size() const noexcept { return shm_pool_buf_mut_len(get()); }
    std::size_t capacity() const noexcept { return shm_pool_buf_mut_capacity(get()); }
    std::uint8_t *begin() noexcept { return data(); }
    std::uint8_t *end() noexcept { return data() + size(); }
    std::uint8_t &operator[](std::size_t at) noexcept { return data()[at]; }
    explicit operator bool() noexcept { return data() != nullptr; }
    bool resize(std::size_t len) { return check(shm_pool_buf_mut_resize(get(), len)); }
    // Ends writing; this buffer is empty afterwards.
    buf freeze() { return detail::wrapped<buf>(shm_pool_buf_mut_freeze, get()); }
};

class reservation : public detail::object<shm_pool_reservation, shm_pool_reservation_destroy> {
public:
    reservation(const shm_pool_provider *provider, std::size_t len, std::size_t count)
        : object(shm_pool_provider_reserve, provider, len, count) {}
};

class provider : public detail::object<shm_pool_provider, shm_pool_provider_destroy> {
public:
    explicit provider(const shm_pool_provider_options &options = {}) : object(shm_pool_provider_create, &options) {}
    std::uint64_t id() const { return shm_pool_provider_id(get()); }
    buf_mut alloc(std::size_t len) const { return detail::wrapped<buf_mut>(shm_pool_provider_alloc, get(), len); }
    // Waits for memory; throws TIMED_OUT.
    buf_mut alloc(std::size_t len, nanoseconds timeout, std::size_t align = 0) const {
        return detail::wrapped<buf_mut>(shm_pool_provider_alloc_timeout, get(), len, align, detail::ns(timeout));
    }
    buf_mut alloc_zeroed(std::size_t len) const {
        return detail::wrapped<buf_mut>(shm_pool_provider_alloc_zeroed, get(), len);
    }
    void close_waits() const { shm_pool_provider_close_waits(get()); }
    reservation reserve(std::size_t len, std::size_t count) const { return {get(), len, count}; }
    shm_pool_stats stats() const { return detail::result<shm_pool_stats>(shm_pool_provider_stats, get()); }
    shm_pool_counters counters() const { return detail::result<shm_pool_counters>(shm_pool_provider_counters, get()); }
    std::size_t trim(std::size_t to = 0) const { return shm_pool_provider_trim_to(get(), to); }
    std::size_t reclaim() const { return shm_pool_provider_reclaim(get()); }
    std::vector<shm_pool_class_stats> class_stats() const {
        return detail::all<shm_pool_class_stats>(shm_pool_provider_class_stats, get());
    }
    bool disconnect(const peer_id &peer) const noexcept { return shm_pool_provider_disconnect(get(), &peer); }
};

class view : public detail::bytes<shm_pool_view, shm_pool_view_drop, shm_pool_view_data, shm_pool_view_len> {
public:
    view clone() const { return detail::wrapped<view>(shm_pool_view_clone, get()); }
};

class client : public detail::object<shm_pool_client, shm_pool_client_destroy> {
public:
    explicit client(const shm_pool_client_options &options = {}) : object(shm_pool_client_create, &options) {}
    peer_id connect(std::uint64_t provider) const {
        return detail::result<peer_id>(shm_pool_client_connect, get(), provider);
    }
    std::size_t warm(std::uint64_t provider) const {
        return detail::result<std::size_t>(shm_pool_client_warm, get(), provider);
    }
    view attach(const descriptor &message) const {
        return detail::wrapped<view>(shm_pool_client_attach, get(), &message);
    }
    std::size_t unmap_unused() const { return shm_pool_client_unmap_unused(get()); }
    // The channels whose senders and publishers are alive, by name.
    std::vector<shm_pool_channel_info> channels() const {
        return detail::all<shm_pool_channel_info>(detail::not_empty(shm_pool_client_channels), get());
    }
    std::uint64_t process_of(const std::string &channel) const {
        return detail::result<std::uint64_t>(detail::not_empty(shm_pool_client_channel_process), get(),
                                             channel.c_str());
    }
};

// client().channels() and client().process_of(channel).
inline std::vector<shm_pool_channel_info> channels() {
    return detail::all<shm_pool_channel_info>(shm_pool_client_channels, static_cast<const shm_pool_client *>(nullptr));
}
inline std::uint64_t process_of(const std::string &channel) {
    return detail::result<std::uint64_t>(shm_pool_client_channel_process, nullptr, channel.c_str());
}

// Ends the waits of one sender, publisher, receiver or watcher, from any thread.
class interrupter : public detail::object<shm_pool_interrupter, shm_pool_interrupter_destroy> {
public:
    template <class F, class End>
    interrupter(F make, End *end) : object(make, end) {}
    void interrupt() const { shm_pool_interrupter_interrupt(get()); }
};

// The sends and waits of this class and the next return false if there was no room in time. The buffer
// then stays as it is, as it does when they throw; otherwise it is empty afterwards:
//
//     publisher.send(frame.freeze());
//     while (!publisher.send(std::move(message), 1s)) std::puts("still no room");
class sender : public detail::object<shm_pool_sender, shm_pool_sender_destroy> {
public:
    // Waits while a live sender has the name, for at most `timeout`, as a publisher does.
    sender(const provider &from, const std::string &name, const shm_pool_sender_options &options = {},
           nanoseconds timeout = nanoseconds::zero())
        : object(shm_pool_sender_create, from.get(), name.c_str(), &options, detail::ns(timeout)) {}
    const char *name() const noexcept { return shm_pool_sender_name(get()); }
    std::size_t capacity() const { return shm_pool_sender_capacity(get()); }
    std::size_t max_borrowed() const { return shm_pool_sender_max_borrowed(get()); }
    // Allocates from the provider, which may have been destroyed.
    buf_mut alloc(std::size_t len) const { return detail::wrapped<buf_mut>(shm_pool_sender_alloc, get(), len); }
    bool send(buf_mut &&message, nanoseconds timeout = forever) {
        return detail::succeeded(shm_pool_sender_send_mut(get(), message.get(), detail::ns(timeout)));
    }
    bool send(buf &&message, nanoseconds timeout = forever) {
        return detail::succeeded(shm_pool_sender_send(get(), message.get(), detail::ns(timeout)));
    }
    bool send(buf &&message, const tag &beside, nanoseconds timeout = forever) {
        return detail::succeeded(shm_pool_sender_send_tagged(get(), message.get(), &beside, detail::ns(timeout)));
    }
    // Sends a copy of the bytes.
    bool send_copy(const void *bytes, std::size_t len, const tag &beside, nanoseconds timeout = forever) {
        return detail::succeeded(shm_pool_sender_send_copy_tagged(get(), bytes, len, &beside, detail::ns(timeout)));
    }
    bool send_copy(const void *bytes, std::size_t len, nanoseconds timeout = forever) {
        return detail::succeeded(shm_pool_sender_send_copy(get(), bytes, len, detail::ns(timeout)));
    }
    bool wait_for_receiver(nanoseconds timeout = forever) {
        return detail::succeeded(shm_pool_sender_wait_for_receiver(get(), detail::ns(timeout)));
    }
    bool wait_until_received(nanoseconds timeout = forever) {
        return detail::succeeded(shm_pool_sender_wait_until_received(get(), detail::ns(timeout)));
    }
    // For event loops; wait for it after a send without a wait has returned false.
    int fd() { return detail::result<int>(shm_pool_sender_fd, get()); }
    interrupter make_interrupter() const { return {shm_pool_sender_interrupter, get()}; }
};

class publisher : public detail::object<shm_pool_publisher, shm_pool_publisher_destroy> {
public:
    publisher(const provider &from, const std::string &name, const shm_pool_publisher_options &options = {},
              nanoseconds timeout = nanoseconds::zero())
        : object(shm_pool_publisher_create, from.get(), name.c_str(), &options, detail::ns(timeout)) {}
    const char *name() const noexcept { return shm_pool_publisher_name(get()); }
    std::size_t capacity() const { return shm_pool_publisher_capacity(get()); }
    std::size_t max_borrowed() const { return shm_pool_publisher_max_borrowed(get()); }
    // Allocates from the provider, which may have been destroyed.
    buf_mut alloc(std::size_t len) const { return detail::wrapped<buf_mut>(shm_pool_publisher_alloc, get(), len); }
    // `sent`: set to what became of the message.
    bool send(buf_mut &&message, nanoseconds timeout = forever, shm_pool_sent *sent = nullptr) {
        return detail::succeeded(shm_pool_publisher_send_mut(get(), message.get(), detail::ns(timeout), sent));
    }
    bool send(buf &&message, nanoseconds timeout = forever, shm_pool_sent *sent = nullptr) {
        return detail::succeeded(shm_pool_publisher_send(get(), message.get(), detail::ns(timeout), sent));
    }
    bool send(buf &&message, const tag &beside, nanoseconds timeout = forever, shm_pool_sent *sent = nullptr) {
        return detail::succeeded(
            shm_pool_publisher_send_tagged(get(), message.get(), &beside, detail::ns(timeout), sent));
    }
    // Sends a copy of the bytes.
    bool send_copy(const void *bytes, std::size_t len, const tag &beside, nanoseconds timeout = forever,
                   shm_pool_sent *sent = nullptr) {
        return detail::succeeded(
            shm_pool_publisher_send_copy_tagged(get(), bytes, len, &beside, detail::ns(timeout), sent));
    }
    bool send_copy(const void *bytes, std::size_t len, nanoseconds timeout = forever,
                   shm_pool_sent *sent = nullptr) {
        return detail::succeeded(shm_pool_publisher_send_copy(get(), bytes, len, detail::ns(timeout), sent));
    }
    bool wait_for_receivers(std::size_t count, nanoseconds timeout = forever) {
        return detail::succeeded(shm_pool_publisher_wait_for_receivers(get(), count, detail::ns(timeout)));
    }
    bool wait_until_received(nanoseconds timeout = forever) {
        return detail::succeeded(shm_pool_publisher_wait_until_received(get(), detail::ns(timeout)));
    }
    bool serve_joins() { return shm_pool_publisher_serve_joins(get()); }
    bool has_receivers() { return shm_pool_publisher_has_receivers(get()); }
    std::vector<shm_pool_receiver_state> receivers() {
        return detail::all<shm_pool_receiver_state>(shm_pool_publisher_receivers, get());
    }
    // `id`: from receivers().
    bool disconnect(std::uint64_t id) { return shm_pool_publisher_disconnect(get(), id); }
    // For event loops; wait for it after a send without a wait has returned false.
    int fd() { return detail::result<int>(shm_pool_publisher_fd, get()); }
    interrupter make_interrupter() const { return {shm_pool_publisher_interrupter, get()}; }
};

class message
    : public detail::bytes<shm_pool_message, shm_pool_message_drop, shm_pool_message_data, shm_pool_message_len> {
public:
    std::uint32_t missed() const noexcept { return shm_pool_message_missed(get()); }
    bool is_inline() const noexcept { return shm_pool_message_is_inline(get()); }
    // The 16 bytes that it was sent with; nothing if it was sent without.
    std::optional<shm_pool::tag> tag() const noexcept {
        shm_pool::tag found;
        if (!shm_pool_message_tag(get(), &found)) return std::nullopt;
        return found;
    }
    message clone() const { return detail::wrapped<message>(shm_pool_message_clone, get()); }
};

// What recv_event returns: `kind` is SHM_POOL_EVENT_MESSAGE, _CONNECTED or _DISCONNECTED.
struct event {
    std::uint64_t kind;
    // Of a message.
    shm_pool::message message;
    // The id of the provider that the receiver has connected to.
    std::uint64_t provider;
};

// Receives from a sender; see subscriber for a publisher.
class receiver : public detail::object<shm_pool_receiver, shm_pool_receiver_destroy> {
public:
    // Waits until the channel exists, for at most `timeout`. Without a client, in the default place.
    explicit receiver(const std::string &name, const shm_pool_receiver_options &options = {},
                      nanoseconds timeout = nanoseconds::zero())
        : object(shm_pool_receiver_open, nullptr, name.c_str(), &options, detail::ns(timeout)) {}
    receiver(const client &of, const std::string &name, const shm_pool_receiver_options &options = {},
             nanoseconds timeout = nanoseconds::zero())
        : object(detail::not_empty(shm_pool_receiver_open), of.get(), name.c_str(), &options, detail::ns(timeout)) {}
    // Returns nothing if no message arrives in time. Throws DISCONNECTED or EVICTED at the end, MESSAGE_LOST
    // if the next message may be good, and TOO_MANY_BORROWED if it arrives only once other messages are dropped.
    std::optional<message> recv(nanoseconds timeout = forever) {
        message next;
        if (!received(shm_pool_receiver_recv(get(), detail::ns(timeout), next.get()))) return std::nullopt;
        return next;
    }
    std::optional<message> try_recv() { return recv(nanoseconds::zero()); }
    // Also returns the beginnings and ends of senders and publishers, in between.
    std::optional<event> recv_event(nanoseconds timeout = forever) {
        shm_pool_event what;
        message next;
        if (!received(shm_pool_receiver_recv_event(get(), detail::ns(timeout), &what, next.get()))) return std::nullopt;
        return event{what.kind, std::move(next), what.provider};
    }
    const char *name() const noexcept { return shm_pool_receiver_name(get()); }
    bool is_connected() const { return shm_pool_receiver_is_connected(get()); }
    std::uint64_t provider() const { return shm_pool_receiver_provider(get()); }
    std::size_t capacity() const { return shm_pool_receiver_capacity(get()); }
    std::size_t max_borrowed() const { return shm_pool_receiver_max_borrowed(get()); }
    std::uint64_t on_full() const { return shm_pool_receiver_on_full(get()); }
    shm_pool_missed missed() const { return detail::result<shm_pool_missed>(shm_pool_receiver_missed, get()); }
    // Empty if none is declared.
    message_type type() const { return detail::result<message_type>(shm_pool_receiver_message_type, get()); }
    // Why the channel could not be opened at the last attempt, or SHM_POOL_STATUS_OK.
    shm_pool_status last_error() const { return shm_pool_receiver_last_error(get()); }
    // For event loops; wait for it after try_recv has returned nothing.
    int fd() { return detail::result<int>(shm_pool_receiver_fd, get()); }
    std::size_t warm() { return detail::result<std::size_t>(shm_pool_receiver_warm, get()); }
    interrupter make_interrupter() const { return {shm_pool_receiver_interrupter, get()}; }

private:
    static bool received(shm_pool_status status) {
        if (status == SHM_POOL_STATUS_TOO_MANY_BORROWED) return check(status); // no matter of time
        return detail::succeeded(status);
    }

protected:
    struct of_publisher {};
    template <class F, class... A>
    receiver(of_publisher, F open, A... arguments) : object(open, arguments...) {}
};

// Receives from a publisher, and by default from each later one of that name.
class subscriber : public receiver {
public:
    // Without a timeout, there need not be a publisher yet. Without a client, in the default place.
    explicit subscriber(const std::string &name, const shm_pool_subscriber_options &options = {},
                        nanoseconds timeout = nanoseconds::zero())
        : receiver(of_publisher(), shm_pool_subscriber_open, nullptr, name.c_str(), &options, detail::ns(timeout)) {}
    subscriber(const client &of, const std::string &name, const shm_pool_subscriber_options &options = {},
               nanoseconds timeout = nanoseconds::zero())
        : receiver(of_publisher(), detail::not_empty(shm_pool_subscriber_open), of.get(), name.c_str(), &options,
                   detail::ns(timeout)) {}
};

// Returns the place of a receiver that has a message or an error to report, or whose sender or publisher has
// ended, unless it waits for the next one; nothing if there is none in time.
inline std::optional<std::size_t> wait_any(const std::vector<receiver *> &receivers, nanoseconds timeout = forever) {
    std::vector<shm_pool_receiver *> pointers;
    for (const receiver *each : receivers) pointers.push_back(each == nullptr ? nullptr : each->get());
    std::size_t at = 0;
    const auto status = shm_pool_wait_any(pointers.data(), pointers.size(), detail::ns(timeout), &at);
    if (!detail::succeeded(status)) return std::nullopt;
    return at;
}

// Reports the channels that there are, and then each one that is created or ends.
class watcher : public detail::object<shm_pool_watcher, shm_pool_watcher_destroy> {
public:
    // Without a client, of the default place.
    watcher() : object(shm_pool_watcher_create, nullptr) {}
    explicit watcher(const client &of) : object(detail::not_empty(shm_pool_watcher_create), of.get()) {}
    // Returns nothing if nothing changes in time.
    std::optional<shm_pool_channel_change> recv(nanoseconds timeout = forever) {
        shm_pool_channel_change change;
        if (!detail::succeeded(shm_pool_watcher_recv(get(), detail::ns(timeout), &change))) return std::nullopt;
        return change;
    }
    std::optional<shm_pool_channel_change> try_recv() { return recv(nanoseconds::zero()); }
    // For event loops; wait for it after try_recv has returned nothing.
    int fd() { return detail::result<int>(shm_pool_watcher_fd, get()); }
    interrupter make_interrupter() const { return {shm_pool_watcher_interrupter, get()}; }
};

// Has each thread of the library call `hook` when it starts, for its scheduling. It must let no exception out.
inline bool on_thread_start(void (*hook)(const char *name, void *context), void *context = nullptr) {
    return check(shm_pool_on_thread_start(hook, context));
}

// Ends all objects that exist. Destructors that run later have no other effect.
inline void finalize() noexcept { shm_pool_finalize(); }

// Removes what killed providers have left.
inline shm_pool_swept sweep(const char *directory = nullptr, const char *name_prefix = nullptr) {
    return detail::result<shm_pool_swept>(shm_pool_sweep, directory, name_prefix);
}

} // namespace shm_pool

#endif // SHM_POOL_HPP
