//! A waker backed by a file descriptor, so that an event loop can wait for a future.
//!
//! It is an eventfd, readable at first and from then on whenever the last poll was ready or a waker
//! has been called since. It serves one future: Q2 for one could consume the wake-up of another.
//!
//! | step | [`WakeFd::poll`] | step | a waker |
//! |---|---|---|---|
//! | Q1 | poll; if ready, write the eventfd if Q3 has cleared it, and return | V1 | `is_woken` = true |
//! | Q2 | exchange `is_woken` for false; if it was true, return | V2 | write the eventfd |
//! | Q3 | read the eventfd: it is not readable any more | | |
//! | Q4 | if `is_woken`, write the eventfd | | |
//!
//! **No wake-up is lost.** Q3 erases only writes that precede it. The kernel's lock of the eventfd
//! orders V1 and V2 before such a Q3, so Q4 or the Q2 before it has seen V1. If Q2 saw it, Q3 does
//! not take place. A write that follows Q3 remains.

use crate::error::OsError;
use crate::sync::{AtomicU32, Ordering};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

#[cfg(all(test, loom))]
use models::EventFd;
#[cfg(not(all(test, loom)))]
use real::EventFd;

#[cfg(all(test, loom))]
#[path = "../models/wake_fd.rs"]
mod models;

/// A file descriptor that is readable whenever a future should be polled again, for event loops.
///
/// It works with everything that can be awaited: [`Receiver::poll_recv`], [`Sender::poll_ready`],
/// [`Publisher::poll_ready`], [`Request::wait_async`]. Each end of a channel also has one of its
/// own, for calls that do not wait: [`Receiver::wake_fd`], [`Sender::wake_fd`].
///
/// Spurious wake-ups happen. When the descriptor is readable, call `poll` or a `try_` method, never one
/// that blocks.
///
/// Create one `WakeFd` for each future or receiver, and remove it from the event loop before you drop
/// it: a registered waker keeps the descriptor open.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shm_pool::channel::{Receiver, Sender};
/// use shm_pool::{Provider, WakeFd};
/// use std::os::fd::{AsFd, AsRawFd};
/// use std::task::Poll;
///
/// # let name = format!("doc-wake-fd-{}", std::process::id());
/// # let provider = Provider::builder().build()?;
/// # let mut sender = Sender::create(&provider, &name)?;
/// let mut receiver = Receiver::open(&name)?;
/// let mut ready = WakeFd::new()?;
/// # sender.send_copy(b"a sample")?;
/// let mut events = [libc::pollfd {
///     fd: ready.as_fd().as_raw_fd(),
///     events: libc::POLLIN,
///     revents: 0,
/// }];
/// // In the loop, with other descriptors and a timeout:
/// unsafe { libc::poll(events.as_mut_ptr(), 1, -1) };
/// while let Poll::Ready(message) = ready.poll(|context| receiver.poll_recv(context)) {
///     println!("{} bytes", message?.len());
/// }
/// # Ok(())
/// # }
/// ```
///
/// [`Publisher::poll_ready`]: crate::channel::Publisher::poll_ready
/// [`Receiver::poll_recv`]: crate::channel::Receiver::poll_recv
/// [`Request::wait_async`]: crate::Request::wait_async
/// [`Receiver::wake_fd`]: crate::channel::Receiver::wake_fd
/// [`Sender::poll_ready`]: crate::channel::Sender::poll_ready
/// [`Sender::wake_fd`]: crate::channel::Sender::wake_fd
// The models poll `Shared` without a waker.
#[cfg_attr(all(test, loom), allow(dead_code))]
pub struct WakeFd {
    shared: Arc<Shared>,
    waker: Waker,
    /// Set by Q3, and cleared by the write of Q1.
    is_cleared: bool,
}

/// The [`WakeFd`] of an end of a channel, which the end itself polls. It does not exist until an
/// event loop asks for it.
#[derive(Default)]
pub(crate) struct EndFd(Option<Box<WakeFd>>);

impl EndFd {
    /// Returns the descriptor; the first call creates it.
    pub(crate) fn get(&mut self) -> Result<BorrowedFd<'_>, OsError> {
        let wake = match self.0.take() {
            Some(wake) => wake,
            None => Box::new(WakeFd::new()?),
        };
        let wake: &WakeFd = self.0.insert(wake);
        Ok(wake.as_fd())
    }

    #[inline]
    pub(crate) fn exists(&self) -> bool {
        self.0.is_some()
    }

    /// Calls a poll function with a waker that makes the descriptor readable. Does nothing without
    /// a descriptor.
    pub(crate) fn poll<T>(
        &mut self,
        poll: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Option<Poll<T>> {
        let wake = self.0.as_mut()?;
        Some(wake.poll(poll))
    }

    /// Something else has replaced the waker of the last poll, or is about to: makes the descriptor
    /// readable, so that the event loop calls the end, which polls again.
    #[inline]
    pub(crate) fn renew(&mut self) {
        if let Some(wake) = &mut self.0 {
            let _ = wake.poll(|_| Poll::Ready(()));
        }
    }
}

struct Shared {
    is_woken: AtomicU32,
    fd: EventFd,
}

impl Shared {
    fn new(fd: EventFd) -> Self {
        Self {
            is_woken: AtomicU32::new(0),
            fd,
        }
    }

    fn poll<T>(&self, is_cleared: &mut bool, poll: impl FnOnce() -> Poll<T>) -> Poll<T> {
        // Q1.
        let polled = poll();
        if polled.is_ready() {
            // The poll may have dropped the waker that would have set it.
            if std::mem::take(is_cleared) {
                self.fd.set();
            }
            return polled;
        }
        // Q2. The waker's stores before V1 are visible to the next poll.
        if self.is_woken.swap(0, Ordering::AcqRel) != 0 {
            return polled;
        }
        // Q3.
        self.fd.clear();
        *is_cleared = true;
        // Q4, after V1 of any waker whose write Q3 has erased. Acquire: the next poll sees that
        // waker's stores.
        if self.is_woken.load(Ordering::Acquire) != 0 {
            self.fd.set();
        }
        polled
    }

    fn wake(&self) {
        // V1. Release: partner of Q2 and Q4. A swap, so that another waker's release sequence
        // continues.
        self.is_woken.swap(1, Ordering::AcqRel);
        self.fd.set(); // V2
    }
}

#[cfg(not(all(test, loom)))]
mod real {
    use super::*;
    use crate::os::fork::ForkGuard;
    use crate::os::locks;
    use std::fmt;
    use std::fs::File;
    use std::io::{self, Read, Write};
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
    use std::task::Wake;

    pub(super) struct EventFd {
        file: File,
        /// A forked child shares the counter with its parent, and must not clear it (D11).
        fork: ForkGuard,
    }

    impl EventFd {
        fn new() -> Result<Self, OsError> {
            locks::require_fork_handlers()?;
            // SAFETY: the call has no pointers.
            let fd = unsafe { libc::eventfd(1, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
            if fd < 0 {
                let error = io::Error::last_os_error();
                let advice = match error.raw_os_error() {
                    Some(libc::EMFILE | libc::ENFILE) => {
                        "the limit of open files is reached (ulimit -n)"
                    }
                    _ => "",
                };
                return Err(OsError::new("eventfd", "this process", error).with_advice(advice));
            }
            // SAFETY: the descriptor is new, and has no other owner.
            let file = unsafe { OwnedFd::from_raw_fd(fd) }.into();
            Ok(Self {
                file,
                fork: ForkGuard::new(),
            })
        }

        fn is_inherited(&self) -> bool {
            !self.fork.is_ours()
        }

        pub(super) fn set(&self) {
            if !self.is_inherited() {
                // It fails if the counter would overflow: then it is readable.
                let _full = (&self.file).write(&1_u64.to_ne_bytes());
            }
        }

        pub(super) fn clear(&self) {
            if !self.is_inherited() {
                // It fails if it is not readable.
                let _empty = (&self.file).read(&mut [0; 8]);
            }
        }
    }

    impl WakeFd {
        /// Creates the descriptor, which is closed by `exec`. A forked child needs one of its own.
        ///
        /// # Errors
        ///
        /// [`OsError`] if the process or the system has too many descriptors, or too little memory.
        pub fn new() -> Result<Self, OsError> {
            let shared = Arc::new(Shared::new(EventFd::new()?));
            let waker = Waker::from(shared.clone());
            Ok(Self {
                shared,
                waker,
                is_cleared: false,
            })
        }

        /// Calls a poll function, such as
        /// [`Receiver::poll_recv`](crate::channel::Receiver::poll_recv) or that of a pinned future,
        /// with a waker that makes this descriptor readable.
        pub fn poll<T>(&mut self, poll: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
            self.shared.poll(&mut self.is_cleared, || {
                poll(&mut Context::from_waker(&self.waker))
            })
        }
    }

    impl Wake for Shared {
        fn wake(self: Arc<Self>) {
            Shared::wake(&self);
        }

        fn wake_by_ref(self: &Arc<Self>) {
            Shared::wake(self);
        }
    }

    impl fmt::Debug for WakeFd {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("WakeFd")
                .field("fd", &self.as_raw_fd())
                .finish_non_exhaustive()
        }
    }

    impl AsFd for WakeFd {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.shared.fd.file.as_fd()
        }
    }

    impl AsRawFd for WakeFd {
        fn as_raw_fd(&self) -> RawFd {
            self.as_fd().as_raw_fd()
        }
    }
}
