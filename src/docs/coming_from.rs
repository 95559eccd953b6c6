//! The counterparts of calls that you know from other libraries, and the differences.
//!
//! # `shared_memory` and `memmap2`
//!
//! | there | here |
//! |---|---|
//! | `ShmemConf::new().size(n).create()` | [`Provider::builder`](crate::Provider::builder), once per process; [`Publisher::create`](crate::channel::Publisher::create), once per name |
//! | `ShmemConf::new().os_id(name).open()` | [`Subscriber::open`](crate::channel::Subscriber::open) |
//! | `unsafe { shmem.as_slice_mut() }`, `MmapMut` | [`alloc`](crate::channel::Publisher::alloc): a `&mut [u8]` that no other process can see yet |
//! | `unsafe { shmem.as_slice() }`, `Mmap` | [`recv`](crate::channel::Subscriber::recv): a `&[u8]` that no process writes |
//! | an atomic flag or `raw_sync` event beside the data | [`send`](crate::channel::Publisher::send) and `recv`, which wake each other |
//! | one block of fixed size | messages of any length, as many as fit [`max_bytes`](crate::ProviderBuilder::max_bytes) |
//!
//! Different here:
//!
//! * A message cannot be changed after it is sent. To update a value, send the next message. With
//!   [`history(1)`](crate::channel::PublisherBuilder::history), a reader that starts later gets the
//!   last one, as the program below shows.
//! * After a crash, the last reader or the next provider removes the files, and `shm-pool sweep` does
//!   if there is neither: see [`guarantees`](super::guarantees).
//! * Reading and writing need no `unsafe`.
//!
//! This program replaces a named block that one process writes and others read. It starts itself
//! again as the reader.
//!
//! ```
//! use shm_pool::channel::{Publisher, Subscriber};
//! use shm_pool::Provider;
//! use std::error::Error;
//! use std::process::Command;
//!
//! fn main() -> Result<(), Box<dyn Error>> {
//!     match std::env::args().nth(1) {
//!         Some(name) => read(&name),
//!         None => write(&format!("robot/state/{}", std::process::id())),
//!     }
//! }
//!
//! fn write(name: &str) -> Result<(), Box<dyn Error>> {
//!     let provider = Provider::builder().max_bytes(1 << 20).build()?;
//!     let mut state = Publisher::builder().history(1).create(&provider, name)?;
//!     for version in 1..=3 {
//!         let mut next = state.alloc(4096)?;
//!         next.fill(version);
//!         state.send(next)?; // nothing waits for a reader
//!     }
//!
//!     let mut reader = Command::new(std::env::current_exe()?).arg(name).spawn()?;
//!     // It gets the last state when the publisher has found it.
//!     state.wait_for_receivers(1, std::time::Duration::MAX)?;
//!     assert!(reader.wait()?.success());
//!     Ok(())
//! }
//!
//! fn read(name: &str) -> Result<(), Box<dyn Error>> {
//!     let mut state = Subscriber::open(name)?;
//!     let last = state.recv()?; // read in place
//!     assert_eq!(last[..], [3; 4096]);
//!     Ok(())
//! }
//! ```
//!
//! # iceoryx2
//!
//! | there | here |
//! |---|---|
//! | `NodeBuilder`, `ServiceBuilder` | none: a [`Provider`](crate::Provider) for the memory, and a name |
//! | `publisher_builder().create()` | [`Publisher::create`](crate::channel::Publisher::create) |
//! | `loan_slice_uninit(n)`, `write_from_slice` | [`alloc(n)`](crate::channel::Publisher::alloc), and write |
//! | `sample.send()` | [`publisher.send(buffer)`](crate::channel::Publisher::send) |
//! | `subscriber_builder().create()` | [`Subscriber::open`](crate::channel::Subscriber::open) |
//! | `subscriber.receive()`, an `Option` | [`try_recv`](crate::channel::Subscriber::try_recv), or [`recv`](crate::channel::Subscriber::recv), which waits |
//! | an event service and its `Listener`, `WaitSet` | nothing for one channel; [`wait_any`](crate::channel::wait_any()) for several; [`wake_fd`](crate::channel::Subscriber::wake_fd) for event loops |
//! | `history_size` | [`history`](crate::channel::PublisherBuilder::history) |
//! | `subscriber_max_buffer_size` | [`capacity`](crate::channel::SubscriberBuilder::capacity), per subscriber |
//! | `subscriber_max_borrowed_samples` | [`max_borrowed`](crate::channel::PublisherBuilder::max_borrowed) |
//! | `enable_safe_overflow`, `BackpressureStrategy` | [`OnFull`](crate::channel::OnFull), per subscriber |
//! | `publish_subscribe::<T>` | `Publisher<T>` with the feature `zerocopy` |
//! | blackboard | [`history(1)`](crate::channel::PublisherBuilder::history) and a [`capacity`](crate::channel::SubscriberBuilder::capacity) of 1 |
//!
//! Different here:
//!
//! * One publisher per name. For more, use a name for each and [`wait_any`](crate::channel::wait_any()).
//! * `recv` waits by itself: no second service has to wake the receiver.
//! * A subscriber learns what it missed ([`Message::missed`](crate::channel::Message::missed)).
//! * Lengths differ from message to message without a maximum that is allocated in advance.
//! * Linux only.
//!
//! # Python's `multiprocessing.shared_memory`
//!
//! | there | here, in Python |
//! |---|---|
//! | `SharedMemory(create=True, size=n)` | `Provider()` once, and `Publisher(provider, name)` |
//! | `shm.buf[:] = …` | `with publisher.alloc(n) as buffer:` and `buffer[:] = …` |
//! | `np.ndarray(…, buffer=shm.buf)` | `np.asarray(buffer)` |
//! | a `Lock`, `Event` or `Queue` to tell the reader | `publisher.send(buffer)` |
//! | `SharedMemory(name)` | `Subscriber(name)`, and `for message in subscriber:` |
//! | `shm.close()`, `shm.unlink()` | the `with` block of each; nothing has to be unlinked |
//!
//! Different here:
//!
//! * No resource tracker removes memory that another process still uses.
//! * A received message is read-only.
//! * The other side may be written in Rust, C or C++.
//!
//! The guide is `python/README.md` in the repository.
//!
//! # `ipc-channel`
//!
//! | there | here |
//! |---|---|
//! | `IpcOneShotServer::new`, `IpcSender::connect` | [`Sender::create`](crate::channel::Sender::create), [`Receiver::open`](crate::channel::Receiver::open), by a name of your choice |
//! | `ipc::bytes_channel` | the same |
//! | `ipc::channel::<T>` | `Sender<T>` with the feature `zerocopy`; for other types, serialize into the buffer, which is an [`io::Write`](std::io::Write) |
//! | `IpcSharedMemory::from_bytes` | [`alloc`](crate::channel::Sender::alloc), and write in place |
//! | `IpcReceiverSet::select` | [`wait_any`](crate::channel::wait_any()) |
//! | `IpcReceiver::recv`, `try_recv` | [`recv`](crate::channel::Receiver::recv), [`try_recv`](crate::channel::Receiver::try_recv) |
//! | one sender, cloned into many | a [`Sender`](crate::channel::Sender) for each producer |
//!
//! Different here:
//!
//! * Nothing is serialized or copied. A message is bytes, or a type with a fixed layout.
//! * Channels cannot be sent in messages: send a name.
//! * The memory of large messages is reused. There is no mapping and no descriptor for each message.
//!
//! # zenoh's shared memory
//!
//! If zenoh stays the transport, `shm-pool-zenoh` changes one line and this table does not apply.
//! Without zenoh:
//!
//! | there | here |
//! |---|---|
//! | `ShmProviderBuilder::default_backend(n)` | [`Provider::builder`](crate::Provider::builder) and [`max_bytes(n)`](crate::ProviderBuilder::max_bytes) |
//! | `provider.alloc(n)`, a `ZShmMut` | [`alloc`](crate::Provider::alloc), a [`ShmBytesMut`](crate::ShmBytesMut) |
//! | `ZShm` | [`ShmBytes`](crate::ShmBytes) |
//! | `GarbageCollect`, `Defragment` | nothing: done when it is needed |
//! | `BlockOn` | [`alloc_timeout`](crate::Provider::alloc_timeout), [`request`](crate::Provider::request) |
//! | `publisher.put(buffer)` | [`Publisher::send`](crate::channel::Publisher::send) |
//! | `sample.payload().as_shm()` | [`Message`](crate::channel::Message), a `&[u8]` |
//! | `CongestionControl` | [`OnFull`](crate::channel::OnFull), per subscriber |
//! | `session.liveliness()` | [`recv_event`](crate::channel::Subscriber::recv_event), [`Watcher`](crate::channel::Watcher) |
//!
//! Different here:
//!
//! * One machine, and no session, router or discovery by network.
//! * The memory is taken when it is needed, and not locked unless you ask for that.
//! * A message that was sent stays readable when the publisher ends.
#![forbid(unsafe_code)]
