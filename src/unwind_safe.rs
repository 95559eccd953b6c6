//! Handles may cross a [`catch_unwind`](std::panic::catch_unwind), as those of other concurrent
//! containers may.
//!
//! No code of the user runs while an operation has changed a part of its state: allocators,
//! closures and wakers are called before or after. So a panic of the user leaves no handle half
//! changed. What is shared with other processes is consistent after every single store anyway,
//! because a process may be killed there.

#![forbid(unsafe_code)]

use crate::backend::{Backend, Chunk, SegmentFile};
use crate::channel::{
    Interrupter, IntoIter, Message, Publisher, Receiver, Sender, Subscriber, Watcher,
};
use crate::os::wake_fd::WakeFd;
use crate::owner::buf::{ShmBytes, ShmBytesMut};
use crate::owner::pool::Reservation;
use crate::owner::provider::Provider;
use crate::peer::client::Client;
use crate::peer::view::ShmView;
use std::panic::{RefUnwindSafe, UnwindSafe};

macro_rules! unwind_safe {
    ($($type:ty),+ $(,)?) => { $(
        impl UnwindSafe for $type {}
        impl RefUnwindSafe for $type {}
    )+ };
}

unwind_safe!(
    Backend,
    Chunk,
    Client,
    Interrupter,
    Message,
    Provider,
    Reservation,
    SegmentFile,
    ShmBytes,
    ShmBytesMut,
    ShmView,
    WakeFd,
    Watcher,
);

macro_rules! unwind_safe_ends {
    ($($end:ident),+ $(,)?) => { $(
        impl<T: ?Sized> UnwindSafe for $end<T> {}
        impl<T: ?Sized> RefUnwindSafe for $end<T> {}
    )+ };
}

unwind_safe_ends!(IntoIter, Publisher, Receiver, Sender, Subscriber);
