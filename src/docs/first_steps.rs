//! From an empty folder to two programs that talk, in ten minutes.
//!
//! # A package with two programs
//!
//! You need 64-bit Linux and Rust 1.75 or newer. Until the crate is on the registry, add it from a
//! clone of its repository:
//!
//! ```console
//! $ cargo new camera && cd camera
//! $ cargo add shm-pool --path ../shm-pool     # the path of the clone
//! $ mkdir src/bin && rm src/main.rs
//! ```
//!
//! `cargo add shm-pool --git URL` takes it from a repository that cargo can reach instead. Later
//! `cargo add shm-pool` is enough.
//!
//! # The publisher
//!
//! A [`Provider`](crate::Provider) allocates the shared memory of a process. A
//! [`Publisher`](crate::channel::Publisher) sends messages under a name, which may be any text, such as
//! `/front/image_raw`. (Its file has the name `shm_pool.%2Ffront%2Fimage_raw.channel`.) Write this to
//! `src/bin/publisher.rs`:
//!
//! ```
//! # mod publisher {
//! use shm_pool::channel::Publisher;
//! use shm_pool::Provider;
//! use std::error::Error;
//! use std::thread::sleep;
//! use std::time::Duration;
//!
//! # /*
//! fn main() -> Result<(), Box<dyn Error>> {
//! # */
//! # pub fn main() -> Result<(), Box<dyn Error>> {
//!     let provider = Provider::builder().build()?;
//! # /*
//!     let mut camera = Publisher::create(&provider, "camera/front")?;
//! # */
//! #   let mut camera = Publisher::create(&provider, &super::channel())?;
//! # /*
//!     for number in 0u64.. {
//! # */
//! #   for number in super::first().. {
//!         let mut frame = camera.alloc(640 * 480 * 3)?; // in shared memory
//!         frame.fill(0x7f); // a plain &mut [u8]
//!         frame[..8].copy_from_slice(&number.to_le_bytes());
//!         let sent = camera.send(frame)?; // without a copy
//!         println!("frame {number} to {} subscribers", sent.receivers);
//!         sleep(Duration::from_millis(33));
//!     }
//!     Ok(())
//! }
//! # }
//! # mod subscriber {
//! # use shm_pool::channel::Subscriber;
//! # use std::error::Error;
//! # pub fn main() -> Result<(), Box<dyn Error>> {
//! #     let mut camera = Subscriber::open(&super::channel())?;
//! #     loop {
//! #         let frame = camera.recv()?;
//! #         let number = u64::from_le_bytes(frame[..8].try_into()?);
//! #         println!("frame {number}: {} bytes, {} missed before it", frame.len(), frame.missed());
//! #     }
//! # }
//! # }
//! #
//! # // This test starts itself as each of the two programs, in the order of the page.
//! # use std::error::Error;
//! # use std::io::{BufRead, BufReader, Lines};
//! # use std::process::{Child, ChildStdout, Command, Stdio};
//! #
//! # fn channel() -> String {
//! #     std::env::args().nth(2).unwrap()
//! # }
//! #
//! # fn first() -> u64 {
//! #     std::env::args().nth(3).unwrap().parse().unwrap()
//! # }
//! #
//! # struct Program {
//! #     process: Child,
//! #     lines: Lines<BufReader<ChildStdout>>,
//! # }
//! #
//! # impl Program {
//! #     fn start(which: &str, first: u64) -> Result<Self, Box<dyn Error>> {
//! #         let mut command = Command::new(std::env::current_exe()?);
//! #         command.arg(which).arg(format!("camera/front/{}", std::process::id()));
//! #         let mut process = command.arg(first.to_string()).stdout(Stdio::piped()).spawn()?;
//! #         let lines = BufReader::new(process.stdout.take().unwrap()).lines();
//! #         Ok(Self { process, lines })
//! #     }
//! #
//! #     /// Reads lines until one has this text.
//! #     fn expect(&mut self, text: &str) -> Result<(), Box<dyn Error>> {
//! #         for line in &mut self.lines {
//! #             if line?.contains(text) {
//! #                 return Ok(());
//! #             }
//! #         }
//! #         Err(format!("the program ended without {text:?}").into())
//! #     }
//! # }
//! #
//! # impl Drop for Program {
//! #     fn drop(&mut self) {
//! #         self.process.kill().unwrap();
//! #         self.process.wait().unwrap();
//! #     }
//! # }
//! #
//! # fn main() -> Result<(), Box<dyn Error>> {
//! #     match std::env::args().nth(1).as_deref() {
//! #         Some("publisher") => return publisher::main(),
//! #         Some("subscriber") => return subscriber::main(),
//! #         _ => {}
//! #     }
//! #     let mut subscriber = Program::start("subscriber", 0)?; // before the publisher
//! #     let mut publisher = Program::start("publisher", 0)?;
//! #     publisher.expect("to 1 subscribers")?;
//! #     subscriber.expect("921600 bytes, 0 missed before it")?;
//! #     let mut late = Program::start("subscriber", 0)?; // after it
//! #     publisher.expect("to 2 subscribers")?;
//! #     late.expect("921600 bytes")?;
//! #     drop(late);
//! #     publisher.expect("to 1 subscribers")?; // it goes on
//! #     drop(publisher);
//! #     let mut publisher = Program::start("publisher", 1_000_000)?;
//! #     publisher.expect("to 1 subscribers")?;
//! #     subscriber.expect("frame 1000")?; // the same subscriber, the next publisher
//! #     drop(publisher);
//! #     drop(subscriber);
//! #     shm_pool::Namespace::default().sweep()?;
//! #     Ok(())
//! # }
//! ```
//!
//! # The subscriber
//!
//! And this to `src/bin/subscriber.rs`:
//!
//! ```no_run
//! use shm_pool::channel::Subscriber;
//! use std::error::Error;
//!
//! fn main() -> Result<(), Box<dyn Error>> {
//!     let mut camera = Subscriber::open("camera/front")?;
//!     loop {
//!         let frame = camera.recv()?; // read in place: a plain &[u8]
//!         let number = u64::from_le_bytes(frame[..8].try_into()?);
//!         println!("frame {number}: {} bytes, {} missed before it", frame.len(), frame.missed());
//!     }
//! }
//! ```
//!
//! # Run them
//!
//! Start one program in one terminal and the other in a second one. The order does not matter: a
//! subscriber waits until its publisher starts.
//!
//! ```console
//! $ cargo run --bin publisher
//! frame 0 to 0 subscribers
//! frame 1 to 0 subscribers
//! frame 2 to 1 subscribers
//! ```
//!
//! ```console
//! $ cargo run --bin subscriber
//! frame 2: 921600 bytes, 0 missed before it
//! frame 3: 921600 bytes, 0 missed before it
//! ```
//!
//! A subscriber gets the messages that are sent after it joins. To let a late one have the last few
//! before, set [`history`](crate::channel::PublisherBuilder::history).
//!
//! # What happens to a frame
//!
#![doc = include_str!("message.svg")]
//!
//! 1. `alloc` takes an idle chunk of memory from the pool. Only your thread can access it.
//! 2. `send` makes the frame read-only, and writes to each subscriber's queue a slot of 64 bytes that
//!    says where it is.
//! 3. `recv` returns the frame itself. Each subscriber *borrows* the same bytes.
//! 4. When the last subscriber has dropped its [`Message`](crate::channel::Message), the memory is
//!    idle again. The next `alloc` of that length reuses it, without a system call.
//!
//! While a subscriber holds a message, nothing overwrites it. A subscriber that falls behind by more
//! than 256 messages misses the oldest ones, and [`missed`](crate::channel::Message::missed) says how
//! many. Choose [another rule](crate::channel#slow-and-stopped-receivers) if nothing may be lost.
//!
//! # Stop, restart, kill
//!
//! Try these while both programs run:
//!
//! * **Stop the subscriber** with Ctrl-C. The publisher prints `to 0 subscribers` and continues.
//! * **Start two subscribers.** Both get every frame, and still no frame is copied.
//! * **Kill the publisher** with `kill -9`. The subscriber gets what was sent before, waits, and
//!   continues with the frames of the next publisher when you start one. To learn of each change,
//!   call [`recv_event`](crate::channel::Subscriber::recv_event) instead of `recv`.
//! * **Start a second publisher** while the first one runs. It fails, because the name is taken, and
//!   the error names the process that uses it.
//!
//! # What remains
//!
//! A program that returns from `main` removes its objects from /dev/shm. Ctrl-C and `kill` end these
//! two programs before that, as `kill -9` does. The objects of a killed one are removed by the last
//! subscriber that reads its messages, or by the next program that creates a provider with the same
//! prefix. If all programs were killed, they stay until then. The command `shm-pool` shows them. It needs Rust 1.88, and takes some
//! minutes to compile:
//!
//! ```console
//! $ cargo install --path ../shm-pool/cli
//! $ killall -9 publisher subscriber
//! $ shm-pool ls
//! /dev/shm: 61.6 MiB free
//!
//! PROVIDER                   STATE   OWNER  HELD     LEASED  BORROWED  PEERS
//! shm_pool.f76ac34f616e04e4  orphan  -      1.8 MiB  -       -         0
//!
//! CHANNEL                STATE   SENDER  RECEIVERS  WAITING
//! shm_pool.camera/front  orphan  -       0          0/256
//!
//! orphans: 4 objects, 2.4 MiB; `shm-pool sweep` removes them
//! $ shm-pool sweep --yes
//! removed 4 objects, 2.4 MiB
//!   prefix shm_pool: 4 objects, 2.4 MiB
//! ```
//!
//! # Next
//!
//! * [`choosing`](super::choosing): channels for one receiver, many receivers, your own transport.
//! * [`debugging`](super::debugging): who holds the memory.
//! * [`Provider`](crate::Provider): sizing the pool.
//! * The folder `examples` of the package has complete programs. Among them are request and
//!   response, many producers, typed messages and async.
#![forbid(unsafe_code)]
