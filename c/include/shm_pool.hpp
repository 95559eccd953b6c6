// shm-pool for C++17: classes that own what shm_pool.h hands out, and exceptions for its errors.
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
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace shm_pool {

using nanoseconds = std::chrono::nanoseconds;
using descriptor = shm_pool_descriptor;
using peer_id = shm_pool_peer_id;

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

// Throws an `error` unless `status` is SHM_POOL_STATUS_OK.
inline void check(shm_pool_status status) {
    if (status != SHM_POOL_STATUS_OK) throw error(status, shm_pool_last_errno(), shm_pool_last_error());
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
    default: check(status); return true;
    }
}

// Calls a function of C whose last argument is the result, and returns that.
template <class R, class F, class... A>
R result(F function, A... arguments) {
    R made;
    check(function(arguments..., &made));
    return made;
}

// The same for a result that is a class of this header.
template <class R, class F, class... A>
R wrapped(F function, A... arguments) {
    R made;
    check(function(arguments..., made.get()));
    return made;
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
    void resize(std::size_t len) { check(shm_pool_buf_mut_resize(get(), len)); }
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
    void close_waits() const { shm_pool_provider_close_waits(get()); }
    reservation reserve(std::size_t len, std::size_t count) const { return {get(), len, count}; }
    shm_pool_stats stats() const { return detail::result<shm_pool_stats>(shm_pool_provider_stats, get()); }
    shm_pool_counters counters() const { return detail::result<shm_pool_counters>(shm_pool_provider_counters, get()); }
    std::size_t trim(std::size_t to = 0) const { return shm_pool_provider_trim_to(get(), to); }
    std::size_t reclaim() const { return shm_pool_provider_reclaim(get()); }
    void disconnect(const peer_id &peer) const { check(shm_pool_provider_disconnect(get(), &peer)); }
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
};

// Ends the waits of one sender, publisher or receiver, from any thread.
class interrupter : public detail::object<shm_pool_interrupter, shm_pool_interrupter_destroy> {
public:
    template <class F, class End>
    interrupter(F make, End *end) : object(make, end) {}
    void interrupt() const { shm_pool_interrupter_interrupt(get()); }
};

// The sends and waits of this class and the next return false if there was no room in time. The message
// then stays as it is, as it does when they throw.
class sender : public detail::object<shm_pool_sender, shm_pool_sender_destroy> {
public:
    // Waits while a live sender has the name, for at most `timeout`, as a publisher does.
    sender(const provider &from, const std::string &name, const shm_pool_sender_options &options = {},
           nanoseconds timeout = nanoseconds::zero())
        : object(shm_pool_sender_create, from.get(), name.c_str(), &options, detail::ns(timeout)) {}
    bool send(buf &message, nanoseconds timeout = forever) {
        return detail::succeeded(shm_pool_sender_send(get(), message.get(), detail::ns(timeout)));
    }
    bool send_bytes(const void *bytes, std::size_t len, nanoseconds timeout = forever) {
        return detail::succeeded(shm_pool_sender_send_bytes(get(), bytes, len, detail::ns(timeout)));
    }
    bool wait_for_receiver(nanoseconds timeout = forever) {
        return detail::succeeded(shm_pool_sender_wait_for_receiver(get(), detail::ns(timeout)));
    }
    bool wait_until_received(nanoseconds timeout = forever) {
        return detail::succeeded(shm_pool_sender_wait_until_received(get(), detail::ns(timeout)));
    }
    interrupter make_interrupter() const { return {shm_pool_sender_interrupter, get()}; }
};

class publisher : public detail::object<shm_pool_publisher, shm_pool_publisher_destroy> {
public:
    publisher(const provider &from, const std::string &name, const shm_pool_publisher_options &options = {},
              nanoseconds timeout = nanoseconds::zero())
        : object(shm_pool_publisher_create, from.get(), name.c_str(), &options, detail::ns(timeout)) {}
    // `sent`: set to what became of the message.
    bool send(buf &message, nanoseconds timeout = forever, shm_pool_sent *sent = nullptr) {
        return detail::succeeded(shm_pool_publisher_send(get(), message.get(), detail::ns(timeout), sent));
    }
    bool send_bytes(const void *bytes, std::size_t len, nanoseconds timeout = forever,
                    shm_pool_sent *sent = nullptr) {
        return detail::succeeded(shm_pool_publisher_send_bytes(get(), bytes, len, detail::ns(timeout), sent));
    }
    bool wait_for_receivers(std::size_t count, nanoseconds timeout = forever) {
        return detail::succeeded(shm_pool_publisher_wait_for_receivers(get(), count, detail::ns(timeout)));
    }
    bool wait_until_received(nanoseconds timeout = forever) {
        return detail::succeeded(shm_pool_publisher_wait_until_received(get(), detail::ns(timeout)));
    }
    bool serve_joins() { return shm_pool_publisher_serve_joins(get()); }
    // `id`: from shm_pool_publisher_receivers.
    bool disconnect(std::uint64_t id) { return shm_pool_publisher_disconnect(get(), id); }
    interrupter make_interrupter() const { return {shm_pool_publisher_interrupter, get()}; }
};

class message
    : public detail::bytes<shm_pool_message, shm_pool_message_drop, shm_pool_message_data, shm_pool_message_len> {
public:
    std::uint32_t missed() const noexcept { return shm_pool_message_missed(get()); }
};

// Receives from a sender; see subscriber for a publisher.
class receiver : public detail::object<shm_pool_receiver, shm_pool_receiver_destroy> {
public:
    // Waits until the channel exists, for at most `timeout`.
    receiver(const client &of, const std::string &name, const shm_pool_receiver_options &options = {},
             nanoseconds timeout = nanoseconds::zero())
        : object(shm_pool_receiver_open, of.get(), name.c_str(), &options, detail::ns(timeout)) {}
    // Returns nothing if no message arrives in time. Throws DISCONNECTED or EVICTED at the end, and
    // TOO_MANY_BORROWED if it arrives only once other messages are dropped.
    std::optional<message> recv(nanoseconds timeout = forever) {
        message next;
        auto status = shm_pool_receiver_recv(get(), detail::ns(timeout), next.get());
        if (status == SHM_POOL_STATUS_TOO_MANY_BORROWED) check(status); // no matter of time
        if (!detail::succeeded(status)) return std::nullopt;
        return next;
    }
    std::optional<message> try_recv() { return recv(nanoseconds::zero()); }
    // For event loops; wait for it after try_recv has returned nothing.
    int fd() { return detail::result<int>(shm_pool_receiver_fd, get()); }
    std::size_t warm() { return detail::result<std::size_t>(shm_pool_receiver_warm, get()); }
    interrupter make_interrupter() const { return {shm_pool_receiver_interrupter, get()}; }

protected:
    template <class F, class... Args>
    explicit receiver(F open, const client &of, const Args &...args) : object(open, of.get(), args...) {}
};

// Receives from a publisher, and by default from each later one of that name.
class subscriber : public receiver {
public:
    // Without a timeout, there need not be a publisher yet.
    subscriber(const client &of, const std::string &name, const shm_pool_subscriber_options &options = {},
               nanoseconds timeout = nanoseconds::zero())
        : receiver(shm_pool_subscriber_open, of, name.c_str(), &options, detail::ns(timeout)) {}
};

// Ends all objects that exist. Destructors that run later have no other effect.
inline void finalize() noexcept { shm_pool_finalize(); }

// Removes what killed providers have left.
inline shm_pool_swept sweep(const char *directory = nullptr, const char *name_prefix = nullptr) {
    return detail::result<shm_pool_swept>(shm_pool_sweep, directory, name_prefix);
}

} // namespace shm_pool

#endif // SHM_POOL_HPP
