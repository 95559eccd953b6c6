//! Embedded and real-time publishers: everything that costs memory or time comes before the first
//! message. For the words see the crate's [vocabulary](crate#vocabulary).
//!
//! # The steps
//!
//! 1. **Size the pool.** [`room_for`](crate::ProviderBuilder::room_for) adds up the cap for numbers of
//!    messages. [`buffers`](crate::channel::PublisherBuilder::buffers) says how many messages can be
//!    under way at a time: being written, queued and read.
//! 2. **Lock the pool** into RAM with [`lock_memory`](crate::ProviderBuilder::lock_memory).
//! 3. **Reserve.** [`reserve`](crate::Provider::reserve) makes the chunks with everything that
//!    their messages need. [`Reservation::keep`](crate::Reservation::keep) keeps them until
//!    the provider is dropped.
//! 4. **Limit the receivers.** Set
//!    [`allow_blocking(false)`](crate::channel::PublisherBuilder::allow_blocking), so that no receiver
//!    can make a send wait. The pool is sized for [what a stopped receiver
//!    holds](crate::channel#slow-and-stopped-receivers).
//! 5. **Warm the receivers** with [`Subscriber::warm`](crate::channel::Subscriber::warm), after the
//!    publisher has reserved.
//! 6. **Run the loop a few times,** which touches code, stack and channel, and then lock all of this
//!    with `mlockall`. Finally, give the thread a fixed priority with `SCHED_FIFO`.
//!
//! Steps 2 and 6 need a privilege. Without it, the programs below print what is missing and go on.
//!
//! # In Rust
//!
//! The program publishes a sample of 1800 bytes each millisecond. It measures the latency from the
//! intended time of each sample until a subscriber can read it. Besides this crate it needs the
//! crate `libc`.
//!
//! ```
//! use shm_pool::channel::{ChannelEvent, OnEnd, OnFull, Publisher, Subscriber};
//! use shm_pool::{BuildError, Provider, Tuning};
//! use std::error::Error;
//! use std::io;
//! use std::thread;
//! use std::time::{Duration, Instant};
//!
//! const LEN: usize = 1800;
//! const PERIOD: Duration = Duration::from_millis(1);
//! const WARM_UP: u32 = 10;
//! const SAMPLES: u32 = 200;
//!
//! fn main() -> Result<(), Box<dyn Error>> {
//!     let name = "imu";
//! #   let name = &format!("imu-{}", std::process::id());
//!
//!     // 1. What the subscriber may have queued, the one that it reads, and the one being written.
//!     let for_subscriber = Subscriber::builder().capacity(4).on_full(OnFull::DropOldest);
//!     let for_publisher = Publisher::builder().allow_blocking(false);
//!     let for_publisher = for_publisher.share_among([(&for_subscriber, 1)]);
//!     let buffers = for_publisher.buffers([(&for_subscriber, 1)]);
//!     let builder = Provider::builder().room_for(LEN, buffers).max_idle_per_class(buffers);
//!     let builder = builder.max_shared(16); // each takes 128 bytes, which are locked too
//!     let builder = builder.tuning(Tuning::new().idle_window(0)); // what is idle stays
//!
//!     // 2.
//!     let provider = match builder.clone().lock_memory(true).build() {
//!         Err(error @ BuildError::LockMemory { .. }) => {
//!             println!("the pool is not locked: {error}");
//!             builder.build()?
//!         }
//!         built => built?,
//!     };
//!
//!     // 3. and 4.
//!     provider.reserve(LEN, buffers)?.keep();
//!     let mut publisher = for_publisher.create(&provider, name)?;
//!
//!     // 5. The subscriber, usually in another process.
//!     let subscriber = for_subscriber.on_end(OnEnd::Return).open(name)?;
//!     let epoch = Instant::now();
//!     let subscriber = thread::spawn(move || subscribe(subscriber, epoch));
//!     publisher.wait_for_receivers(1, Duration::MAX)?;
//!
//!     // 6.
//!     publish(&mut publisher, epoch, WARM_UP)?;
//!     if let Err(error) = lock_what_was_touched() {
//!         println!("the rest of the process is not locked: {error}");
//!     }
//!     if let Err(error) = raise_priority(50) {
//!         println!("the priority is not raised: {error}");
//!     }
//!
//!     let before = provider.counters();
//!     publish(&mut publisher, epoch, SAMPLES)?;
//!     let after = provider.counters();
//!     assert_eq!(after.misses, before.misses); // no chunk was made
//!     assert_eq!(after.bytes_held, before.bytes_held);
//!
//!     drop(publisher); // the subscriber gets what was sent, and ends
//!     let mut latencies = subscriber.join().unwrap();
//!     latencies.sort();
//!     let median = latencies[latencies.len() / 2];
//!     let worst = latencies[latencies.len() - 1];
//!     println!("{} samples, median {median:?}, worst {worst:?}", latencies.len());
//!     Ok(())
//! }
//!
//! fn publish(publisher: &mut Publisher, epoch: Instant, samples: u32) -> Result<(), Box<dyn Error>> {
//!     let first = Instant::now();
//!     for number in 0..samples {
//!         // The time that was intended, rather than a pause after the last sample: the rate does
//!         // not drift, and a late wake-up counts as latency.
//!         let due = first + PERIOD * number;
//!         thread::sleep(due.saturating_duration_since(Instant::now()));
//!         let mut sample = publisher.alloc(LEN)?; // one that was reserved
//!         let stamp = (due - epoch).as_nanos() as u64;
//!         sample.fill(7);
//!         sample[..8].copy_from_slice(&stamp.to_le_bytes());
//!         publisher.send(sample)?;
//!     }
//!     Ok(())
//! }
//!
//! fn subscribe(mut subscriber: Subscriber, epoch: Instant) -> Vec<Duration> {
//!     let mut latencies = Vec::with_capacity((WARM_UP + SAMPLES) as usize);
//!     while let Ok(event) = subscriber.recv_event() {
//!         match event {
//!             ChannelEvent::Connected(_) => {
//!                 subscriber.warm().unwrap(); // maps and faults in the reserved memory
//!             }
//!             ChannelEvent::Message(sample) => {
//!                 let stamp = u64::from_le_bytes(sample[..8].try_into().unwrap());
//!                 latencies.push(epoch.elapsed() - Duration::from_nanos(stamp));
//!             }
//!             _ => {}
//!         }
//!     }
//!     latencies
//! }
//!
//! /// Locks the pages that this process has used. Later ones are not locked.
//! fn lock_what_was_touched() -> io::Result<()> {
//!     // SAFETY: it changes no memory.
//!     if unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_ONFAULT) } != 0 {
//!         return Err(io::Error::last_os_error());
//!     }
//!     Ok(())
//! }
//!
//! /// Gives the calling thread a fixed priority, above all threads without one.
//! fn raise_priority(priority: i32) -> io::Result<()> {
//!     // SAFETY: the type has only numbers.
//!     let mut parameters: libc::sched_param = unsafe { std::mem::zeroed() };
//!     parameters.sched_priority = priority;
//!     // SAFETY: the thread exists, and the parameters are valid for the call.
//!     let error = unsafe {
//!         libc::pthread_setschedparam(libc::pthread_self(), libc::SCHED_FIFO, &parameters)
//!     };
//!     match error {
//!         0 => Ok(()),
//!         error => Err(io::Error::from_raw_os_error(error)),
//!     }
//! }
//! ```
//!
//! # In C
//!
//! The same program is `c/examples/embedded.c` in the repository. Its start-up:
//!
//! ```c
//! /* 1. The size: what the subscriber may have queued, the one that it reads, and the one being written. */
//! shm_pool_expected_subscriber expected = {
//!     .options = {.capacity = 4, .on_full = SHM_POOL_DROP_OLDEST, .on_end = SHM_POOL_RETURN},
//!     .views = 1,
//! };
//! shm_pool_publisher_options publisher_options = {
//!     .refuse_blocking = true, .expected = &expected, .expected_count = 1};
//! size_t buffers;
//! check(shm_pool_publisher_buffers(&publisher_options, &expected, 1, &buffers));
//! shm_pool_room room = {.len = LEN, .count = buffers};
//! shm_pool_provider_options options = {
//!     .room = &room,
//!     .room_count = 1,
//!     .max_idle_per_class = buffers,
//!     .max_shared = 16, /* each takes 128 bytes, which are locked too */
//!     .idle_window = SHM_POOL_ZERO, /* what is idle stays */
//!     .lock_memory = true,
//! };
//!
//! /* 2. to 4. */
//! check(shm_pool_provider_create(&options, &provider));
//! check(shm_pool_provider_reserve(provider, LEN, buffers, &reservation));
//! check(shm_pool_publisher_create(provider, name, &publisher_options, 0, &publisher));
//!
//! /* 5. The subscriber calls shm_pool_receiver_warm() when it is connected. */
//! /* 6. After the first samples. */
//! mlockall(MCL_CURRENT | MCL_ONFAULT);
//! pthread_setschedparam(pthread_self(), SCHED_FIFO, &(struct sched_param){.sched_priority = 50});
//! ```
//!
//! # Privileges
//!
//! | for | the process needs | in a systemd unit | in a container |
//! |---|---|---|---|
//! | `lock_memory`, `mlockall` | `RLIMIT_MEMLOCK` as large as what it locks (the default is often 8 MiB, and was 64 KiB), or `CAP_IPC_LOCK` | `LimitMEMLOCK=` | `--ulimit memlock=` |
//! | `SCHED_FIFO` | `RLIMIT_RTPRIO` as high as the priority, or `CAP_SYS_NICE` | `LimitRTPRIO=` | `--ulimit rtprio=` |
//!
//! With `MCL_FUTURE`, each later mapping counts against the limit in full, and fails above it. Use it
//! only without a limit, and with `MCL_ONFAULT`: otherwise it takes memory for whole segments.
//!
//! # Measuring
//!
//! * Measure from the *intended* time of each sample. Otherwise a publisher that is held up sends
//!   later, and the delay does not show.
//! * Look at the worst of many samples, on the real machine under its real load.
//! * Compare [`Provider::counters`](crate::Provider::counters) before and after: `misses` and
//!   `bytes_held` must not change. Nor may the page faults of the thread, which
//!   `getrusage(RUSAGE_THREAD)` counts: see `examples/embedded.rs`.
//! * A side that waits sleeps after 20 microseconds at most, and waking it takes some more. A thread
//!   that has a CPU of its own may [spin](crate::channel#spinning) for as long as it waits.
//!
//! # What the warm path costs
//!
//! As long as messages fit the reservation, sending causes no page fault, takes no lock and does not use the heap. The
//! only system call is the one that wakes a side that sleeps.
//!
//! [`Sent`](crate::channel::Sent), which each send returns, and
//! [`Provider::counters`](crate::Provider::counters) take no lock;
//! [`Provider::stats`](crate::Provider::stats) and
//! [`Publisher::receivers`](crate::channel::Publisher::receivers) do.
//!
//! Leave these to a thread without a deadline:
//!
//! * allocating an unreserved length, or more messages than were reserved;
//! * [`trim`](crate::Provider::trim) and [`reclaim`](crate::Provider::reclaim);
//! * dropping the provider.
//!
//! # While receivers join and leave
//!
//! A send connects the receivers that have joined since the last one, and drops what it shares with
//! those that have left, which takes some 20 system calls for each. With
//! [`joins_in_send(false)`](crate::channel::PublisherBuilder::joins_in_send), only
//! [`serve_joins`](crate::channel::Publisher::serve_joins) does, one receiver at a time.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use std::time::{Duration, Instant};
//! # let name = format!("docs-joins-{}", std::process::id());
//! # let provider = shm_pool::Provider::builder().build()?;
//! # let options = shm_pool::channel::Publisher::builder().allow_blocking(false);
//! let mut publisher = options.joins_in_send(false).create(&provider, &name)?;
//! for _ in 0..10 {
//!     let deadline = Instant::now() + Duration::from_millis(1);
//!     publisher.send(provider.alloc(1800)?)?; // in time, whichever receivers join
//!     while Instant::now() < deadline && publisher.serve_joins() {}
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # How much memory
//!
//! Maximum size of a provider's objects, in bytes, each rounded up to whole pages:
//!
//! * **Payload segments,** all together: [`max_bytes`](crate::ProviderBuilder::max_bytes).
//! * **Control object,** one: 4096 + 128 × [`max_shared`](crate::ProviderBuilder::max_shared).
//! * **Channel,** each: 4096 + 64 × ([`capacity`](crate::channel::SenderBuilder::capacity) + 1) + 16 ×
//!   [`max_borrowed`](crate::channel::SenderBuilder::max_borrowed), which is rounded up to a power of
//!   two, at least 8.
//! * **Publisher,** each: 4096, and for each receiver the size of a channel with [its capacity and
//!   borrowed buffers](crate::channel::SubscriberBuilder::capacity).
//!
//! A message is [rounded up to its class](super::limits#memory-near-the-cap). Private memory, which no
//! cap covers, is at most 180 bytes for each chunk, and 0.8 % of its length.
//!
//! # A file system of its own
//!
//! Another program cannot fill a tmpfs that only yours uses: `mount -t tmpfs -o size=1m,mode=0700 none
//! /run/frames`, and [`Namespace::in_directory("/run/frames")`](crate::Namespace::in_directory).
//!
//! # Locked memory
//!
//! The lock ends with the owner. Memory that peers read after its death may be swapped, unless they
//! lock their mappings with `mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT)`.
//!
//! # Huge pages
//!
//! [`huge_pages`](crate::Tuning::huge_pages) helps with messages of megabytes that are accessed at
//! random, not with copies from front to back. Huge pages cannot be required: on hugetlbfs, a cap
//! in bytes would not hold.
#![forbid(unsafe_code)]
