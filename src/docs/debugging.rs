//! Finding the process that holds the memory, the receiver that is stuck, and the files of dead processes.
//!
//! The command `shm-pool` answers these questions from outside, without disturbing any process. It
//! needs Rust 1.88. From the repository:
//!
//! ```console
//! $ cargo install --path cli
//! ```
//!
//! | symptom | look at |
//! |---|---|
//! | [`AllocError::Os`](crate::AllocError::Os), `No space left on device` | [`/dev/shm` is full](#devshm-is-full) |
//! | `stalled` in [`Sent`](crate::channel::Sent), or a `send` that takes seconds | [a stuck receiver](#a-stuck-receiver) |
//! | `too_many_borrowed` in [`Sent`](crate::channel::Sent), [`AllocError::Exhausted`](crate::AllocError::Exhausted) | [a leaked message](#a-leaked-message) |
//! | files that no process owns | [a killed process](#a-killed-process) |
//!
//! # /dev/shm is full
//!
//! The error names the file system and its free space:
//!
//! ```text
//! posix_fallocate on /dev/shm/shm_pool.57e193ddd81719ef.2 (4194304 bytes) failed: No space left on
//! device (os error 28); /dev/shm has 3665920 of 67108864 bytes free; make room or enlarge it (in a
//! container: docker run --shm-size, or a sized emptyDir with medium Memory), or lower max_bytes
//! ```
//!
//! `shm-pool ls` lists the providers with what each one holds:
//!
//! ```console
//! $ df -h /dev/shm
//! Filesystem      Size  Used Avail Use% Mounted on
//! tmpfs            64M   61M  3.5M  95% /dev/shm
//! $ shm-pool ls
//! /dev/shm: 3.5 MiB free
//!
//! PROVIDER                   STATE  OWNER       HELD      LEASED  BORROWED  PEERS
//! shm_pool.57e193ddd81719ef  alive  4630 lidar  60.0 MiB  -       -         0
//! ```
//!
//! * If the provider is `alive`, its process uses the memory, or keeps it idle.
//!   [`Provider::trim`](crate::Provider::trim) returns what is idle, and a lower
//!   [`max_bytes`](crate::ProviderBuilder::max_bytes) limits it.
//! * If it is an `orphan`, [sweep](#a-killed-process) it.
//! * If it is `dead, read`, its process is dead, and a receiver still reads its messages. A sweep leaves it.
//! * If `HELD` of all providers is less than what `df` shows, other programs use the rest.
//!
//! # A stuck receiver
//!
//! A camera publishes with a `block_limit` of two seconds. Its sends have become slow:
//!
//! ```console
//! $ shm-pool who
//! PROCESS               OWNS      LEASES  BORROWS       FOR   MAPS
//! 4673 STOPPED viewer   -         -       9.0 MiB in 9  ≥ 1s  10.0 MiB
//! 4672 camera           10.0 MiB  -       -             -     10.0 MiB
//!
//! CHANNEL                END       WAITING  PROCESS
//! shm_pool.camera/front  sender    -        4672 camera
//! shm_pool.camera/front  receiver  8/8      4673 STOPPED viewer
//! $ shm-pool show camera/front
//! channel   shm_pool.camera/front
//! state     alive
//! sender    4672 camera
//! provider  2bb5a1e71b1cd9c9
//! kind      publisher
//! type      -
//!
//! RECEIVER              LINK       WHEN FULL  WAITING  SENT  MISSED  BUFFERS  BORROWED
//! 4673 STOPPED viewer   connected  block      8/8      10    30      9/2048   9.0 MiB
//! 35ad8b630f97a9ae
//! ```
//!
//! * `8/8`: all eight places of its queue are taken. `block`: the publisher waits for it. `STOPPED`:
//!   by a signal or a debugger. `kill -CONT 4673` continues it, and it receives the eight messages.
//! * `30` messages have skipped it since it stalled. It learns that from
//!   [`Message::missed`](crate::channel::Message::missed).
//! * A receiver with a full queue that is not stopped is too slow, or does not call `recv`.
//!
//! The publisher decides what a stuck receiver may cost: see [`OnStall`](crate::channel::OnStall),
//! [`block_limit`](crate::channel::PublisherBuilder::block_limit) and
//! [`disconnect`](crate::channel::Publisher::disconnect).
//!
//! # A leaked message
//!
//! A logger keeps every message that it receives. By default one subscriber may hold a quarter of the
//! publisher's memory. Above that it receives nothing more:
//!
//! ```console
//! $ shm-pool who --for 3s
//! PROCESS      OWNS      LEASES  BORROWS         FOR   MAPS
//! 4782 logger  -         -       12.0 MiB in 12  ≥ 3s  13.0 MiB
//! 4781 camera  13.0 MiB  -       -               -     13.0 MiB
//!
//! CHANNEL                END       WAITING  PROCESS
//! shm_pool.camera/front  sender    -        4781 camera
//! shm_pool.camera/front  receiver  0/256    4782 logger
//! ```
//!
//! * `0/256`: it has received everything, so it does not lag behind.
//! * `≥ 3s`: it held the same messages for as long as the command looked. Messages that only
//!   pass through show no such time. A longer `--for` tells slow from stuck.
//! * `shm-pool show` counts what it `MISSED` since. [`recv`](crate::channel::Subscriber::recv)
//!   returns [`RecvError::TooManyBorrowed`](crate::channel::RecvError::TooManyBorrowed) in the logger.
//!
//! Messages that a process attached to by descriptor are in the column `LEASES`.
//!
//! # A killed process
//!
//! What a killed process held returns to the pool when the pool needs memory. What it *owned* is an
//! orphan until its last reader ends, a program creates a provider with the same prefix, or you sweep:
//!
//! ```console
//! $ shm-pool ls --check; echo $?
//! /dev/shm: 3.5 MiB free
//!
//! PROVIDER                   STATE   OWNER  HELD      LEASED  BORROWED  PEERS
//! shm_pool.57e193ddd81719ef  orphan  -      60.0 MiB  -       -         0
//!
//! orphans: 3 objects, 60.5 MiB; `shm-pool sweep` removes them
//! 4
//! $ shm-pool sweep
//! would remove 3 objects, 60.5 MiB:
//!   shm_pool.57e193ddd81719ef: 3 objects, 60.5 MiB
//! nothing was changed; `shm-pool sweep --yes` removes them
//! $ shm-pool sweep --yes
//! removed 3 objects, 60.5 MiB
//!   prefix shm_pool: 3 objects, 60.5 MiB
//! ```
//!
//! A sweep never removes what a living process owns or still reads. The exit code 4 of `ls --check`
//! is for scripts.
//!
//! # From inside a program
//!
//! The module [`inspect`](crate::inspect) has the same figures for your own monitoring, and a
//! publisher knows its receivers. This program finds a subscriber that leaks. It starts itself again
//! as that subscriber.
//!
//! ```
//! use shm_pool::channel::{Publisher, RecvError, Subscriber};
//! use shm_pool::inspect::Inspector;
//! use shm_pool::Provider;
//! use std::error::Error;
//! use std::process::Command;
//! use std::time::Duration;
//!
//! const LEN: usize = 1 << 20;
//! const FRAMES: usize = 16;
//!
//! fn main() -> Result<(), Box<dyn Error>> {
//!     match std::env::args().nth(1) {
//!         Some(name) => leak(&name),
//!         None => publish(&format!("camera/leak/{}", std::process::id())),
//!     }
//! }
//!
//! fn leak(name: &str) -> Result<(), Box<dyn Error>> {
//!     let mut subscriber = Subscriber::open(name)?;
//!     let mut kept = Vec::new();
//!     loop {
//!         match subscriber.recv() {
//!             Ok(frame) => kept.push(frame),
//!             Err(RecvError::TooManyBorrowed { .. }) => std::thread::park(), // until it is killed
//!             Err(error) => return Err(error.into()),
//!         }
//!     }
//! }
//!
//! fn publish(name: &str) -> Result<(), Box<dyn Error>> {
//!     let provider = Provider::builder().room_for(LEN, FRAMES).build()?;
//!     let mut camera = Publisher::create(&provider, name)?;
//!     let mut logger = Command::new(std::env::current_exe()?).arg(name).spawn()?;
//!     camera.wait_for_receivers(1, Duration::MAX)?;
//!
//!     while camera.send(camera.alloc(LEN)?)?.skipped() == 0 {}
//!     for receiver in camera.receivers() {
//!         println!("process {:?} holds {} frames", receiver.process, receiver.borrowed);
//!         assert_eq!(receiver.process, Some(logger.id()));
//!     }
//!
//!     // Any other process can find out the same.
//!     let report = Inspector::new().namespace(provider.namespace()).report()?;
//!     let channel = report.channels.iter().find(|channel| channel.name == name);
//!     let held = channel.ok_or("no such channel")?.receivers[0].bytes_borrowed;
//!     assert!(held >= 2 * LEN as u64);
//!
//!     // When it is killed, its frames return as soon as they are needed.
//!     logger.kill()?;
//!     logger.wait()?;
//!     let mut frames = Vec::new();
//!     for _ in 0..FRAMES {
//!         frames.push(provider.alloc_timeout(LEN, Duration::from_secs(60))?);
//!     }
//!     Ok(())
//! }
//! ```
//!
//! [`Provider::report`](crate::Provider::report) adds what only the owner knows. `examples/metrics.rs`
//! exports the figures for Prometheus. With the feature `tracing`, the crate reports segments, sweeps
//! and reclaimed memory as events.
#![forbid(unsafe_code)]
