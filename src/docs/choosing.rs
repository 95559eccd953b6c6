//! Choosing a way to send, by the number of receivers and by what may be lost.
//!
//! Start at the top. The first *yes* is your answer, and each answer has a program below, which prints
//! nothing if all went well.
//!
#![doc = include_str!("choosing.svg")]
//!
//! If several answers fit, combine them: one [`Provider`](crate::Provider) serves any number of
//! channels, and one buffer may be sent through several of them.
//!
//! # zenoh
//!
//! The crate `shm-pool-zenoh` replaces the provider of zenoh's own shared memory. Your publisher
//! changes in one line, and subscribers do not change at all.
//!
//! # Another machine
//!
//! Shared memory ends at the machine. Use zenoh, DDS or a socket between machines. For a few short
//! messages per second a socket is simpler on one machine, too.
//!
//! # A middleware of your own
//!
//! If your middleware counts the readers of each message itself, allocate from a
//! [`backend`](crate::backend), and read [`middleware`](super::middleware).
//!
//! # A transport of your own
//!
//! If your processes already exchange bytes, send the 32 bytes of a message's
//! [`Descriptor`](crate::Descriptor). The process that receives it is a *peer* once its
//! [`Client`](crate::Client) has connected, and *attaches* to the message to read it. If you know
//! which peer that will be, [`grant`](crate::ShmBytes::grant) the message: then the pool keeps it for
//! that peer, and you may drop it at once. Otherwise keep the [`ShmBytes`](crate::ShmBytes) until the receiver confirms.
//!
//! ```
//! use shm_pool::{Client, Descriptor, PeerId, Provider};
//! use std::error::Error;
//! use std::io::{Read, Write};
//! use std::os::unix::net::UnixStream;
//! use std::thread;
//!
//! fn main() -> Result<(), Box<dyn Error>> {
//!     let provider = Provider::builder().build()?;
//!     let (mut socket, theirs) = UnixStream::pair()?;
//!     let id = provider.id();
//!     let receiver = thread::spawn(move || receive(id, theirs).unwrap()); // or another process
//!
//!     // The receiver introduces itself. Its peer id is 24 bytes.
//!     let mut peer = [0; PeerId::SIZE];
//!     socket.read_exact(&mut peer)?;
//!
//!     let mut frame = provider.alloc(1 << 20)?;
//!     frame.fill(7);
//!     let descriptor = frame.freeze().grant(PeerId::from_bytes(peer))?;
//!     socket.write_all(&descriptor.to_bytes())?; // the frame itself is not sent
//!
//!     assert_eq!(receiver.join().unwrap(), 7 << 20);
//!     Ok(())
//! }
//!
//! fn receive(provider: shm_pool::ProviderId, mut socket: UnixStream) -> Result<u64, Box<dyn Error>> {
//!     let client = Client::new();
//!     socket.write_all(&client.connect(provider)?.to_bytes())?;
//!
//!     let mut descriptor = [0; Descriptor::SIZE];
//!     socket.read_exact(&mut descriptor)?;
//!     let frame = client.attach(&Descriptor::from_bytes(descriptor)?)?; // a plain &[u8]
//!     Ok(frame.iter().map(|&byte| u64::from(byte)).sum())
//! }
//! ```
//!
//! `examples/unix_socket.rs` adds flow control and receivers that die.
//!
//! # Many producers
//!
//! Each producer has a [`Sender`](crate::channel::Sender). The consumer waits for all of them with
//! [`wait_any`](crate::channel::wait_any()).
//!
//! ```
//! use shm_pool::channel::{wait_any, Receiver, RecvError, Sender, Source};
//! use shm_pool::Provider;
//! use std::error::Error;
//! use std::thread;
//! use std::time::Duration;
//!
//! fn produce(name: &str) -> Result<(), Box<dyn Error>> {
//!     let provider = Provider::builder().build()?;
//!     let mut work = Sender::create(&provider, name)?;
//!     for number in 0..10 {
//!         let mut buffer = work.alloc(100_000)?;
//!         buffer.fill(number);
//!         work.send(buffer)?;
//!     }
//!     work.wait_for_receiver(Duration::MAX)?; // a channel that was never opened is discarded
//!     Ok(())
//! }
//!
//! fn main() -> Result<(), Box<dyn Error>> {
//!     let mut producers = Vec::new();
//!     let mut receivers = Vec::new();
//!     for number in 0..3 {
//!         let name = format!("work/{number}");
//! #       let name = format!("{name}/{}", std::process::id());
//!         let open = Receiver::builder();
//!         let to_create = name.clone();
//!         producers.push(thread::spawn(move || produce(&to_create).unwrap())); // or a process each
//!         receivers.push(open.open_timeout(&name, Duration::MAX)?);
//!     }
//!
//!     let mut received = 0;
//!     while !receivers.is_empty() {
//!         let mut sources: Vec<&mut dyn Source> = Vec::new();
//!         for receiver in &mut receivers {
//!             sources.push(receiver);
//!         }
//!         let ready = wait_any(&mut sources, Duration::MAX)?;
//!         match receivers[ready].try_recv() {
//!             Ok(_) => received += 1,
//!             Err(RecvError::Empty) => {} // wait again
//!             Err(RecvError::Disconnected) => drop(receivers.swap_remove(ready)),
//!             Err(error) => return Err(error.into()),
//!         }
//!     }
//!     assert_eq!(received, 30);
//! #   for producer in producers {
//! #       producer.join().unwrap();
//! #   }
//!     Ok(())
//! }
//! ```
//!
//! # Request and response
//!
//! The client sends requests by one channel, and the server sends responses by another one. Each
//! side learns when the other side ends or dies.
//!
//! ```
//! use shm_pool::channel::{Receiver, Sender};
//! use shm_pool::Provider;
//! use std::error::Error;
//! use std::thread;
//! use std::time::Duration;
//!
//! /// Responds to each request with its length.
//! fn serve(service: &str) -> Result<(), Box<dyn Error>> {
//!     let provider = Provider::builder().build()?;
//!     let mut responses = Sender::create(&provider, &format!("{service}/response"))?;
//!     let name = format!("{service}/request");
//!     let mut requests = Receiver::builder().open_timeout(&name, Duration::MAX)?;
//!     for request in &mut requests {
//!         let len = request?.len() as u64;
//!         responses.send_copy(&len.to_le_bytes())?;
//!     }
//!     Ok(()) // the client has ended
//! }
//!
//! fn main() -> Result<(), Box<dyn Error>> {
//!     let service = "length";
//! #   let service = &format!("length-{}", std::process::id());
//!     let name = service.to_owned();
//!     let server = thread::spawn(move || serve(&name).unwrap()); // or another process
//!
//!     let provider = Provider::builder().build()?;
//!     let mut requests = Sender::create(&provider, &format!("{service}/request"))?;
//!     let name = format!("{service}/response");
//!     let mut responses = Receiver::builder().open_timeout(&name, Duration::MAX)?;
//!
//!     requests.send(requests.alloc(1_000_000)?)?;
//!     let response = responses.recv()?;
//!     assert_eq!(response, 1_000_000u64.to_le_bytes());
//!     drop(requests);
//!     server.join().unwrap();
//!     Ok(())
//! }
//! ```
//!
//! # One receiver that gets everything
//!
//! A [`Sender`](crate::channel::Sender) delivers every message once and in order to one
//! [`Receiver`](crate::channel::Receiver). When the channel is full, `send` waits. Messages that are
//! sent before the receiver opens the channel wait for it as long as the sender exists; if the sender
//! ends before, they are discarded. `Receiver::open` fails if there is no sender yet, and
//! [`open_timeout`](crate::channel::ReceiverBuilder::open_timeout) waits for one.
//!
//! ```
//! use shm_pool::channel::{Receiver, Sender};
//! use shm_pool::Provider;
//! use std::error::Error;
//! use std::thread;
//!
//! fn main() -> Result<(), Box<dyn Error>> {
//!     let name = "records";
//! #   let name = &format!("records-{}", std::process::id());
//!     let provider = Provider::builder().build()?;
//!     let mut sender = Sender::builder().capacity(8).create(&provider, name)?;
//!     let mut receiver = Receiver::open(name)?; // in another process
//!     let counting = thread::spawn(move || {
//!         let mut count = 0;
//!         while let Ok(record) = receiver.recv() {
//!             assert_eq!(record[..], [count; 4096]);
//!             count += 1;
//!         }
//!         count
//!     });
//!
//!     for number in 0..100 {
//!         let mut record = sender.alloc(4096)?;
//!         record.fill(number);
//!         sender.send(record)?; // waits while eight records are not received
//!     }
//!     drop(sender); // the receiver gets all of them, and then `Disconnected`
//!     assert_eq!(counting.join().unwrap(), 100);
//!     Ok(())
//! }
//! ```
//!
//! # Many subscribers that get everything
//!
//! With [`OnFull::Block`](crate::channel::OnFull::Block), a publisher waits for subscribers that are
//! behind. [`block_limit`](crate::channel::PublisherBuilder::block_limit) says for how long at most,
//! so that a stopped subscriber does not stop the others for ever.
//!
//! ```
//! use shm_pool::channel::{OnFull, Publisher, Subscriber};
//! use shm_pool::Provider;
//! use std::error::Error;
//! use std::thread;
//! use std::time::Duration;
//!
//! fn main() -> Result<(), Box<dyn Error>> {
//!     let name = "orders";
//! #   let name = &format!("orders-{}", std::process::id());
//!     let provider = Provider::builder().build()?;
//!     let builder = Publisher::builder().capacity(8).on_full(OnFull::Block);
//!     let mut orders = builder.block_limit(Duration::from_secs(60)).create(&provider, name)?;
//!
//!     let mut subscribers = Vec::new();
//!     for _ in 0..3 {
//!         let mut subscriber = Subscriber::open(name)?; // in another process
//!         subscribers.push(thread::spawn(move || {
//!             for number in 0..100u8 {
//!                 assert_eq!(subscriber.recv().unwrap(), [number; 32]);
//!             }
//!         }));
//!     }
//!     orders.wait_for_receivers(3, Duration::MAX)?;
//!     for number in 0..100u8 {
//!         let sent = orders.send_copy(&[number; 32])?; // waits for the slowest subscriber
//!         assert_eq!(sent.skipped(), 0);
//!     }
//!     for subscriber in subscribers {
//!         subscriber.join().unwrap();
//!     }
//!     Ok(())
//! }
//! ```
//!
//! # Many subscribers, the latest messages
//!
//! By default a subscriber that is behind by the channel's capacity misses the oldest messages. With
//! a capacity of 1 it always gets the latest one.
//!
//! ```
//! use shm_pool::channel::{Publisher, Subscriber};
//! use shm_pool::Provider;
//! use std::error::Error;
//!
//! fn main() -> Result<(), Box<dyn Error>> {
//!     let name = "pose";
//! #   let name = &format!("pose-{}", std::process::id());
//!     let provider = Provider::builder().build()?;
//!     let mut poses = Publisher::create(&provider, name)?;
//!     let mut control = Subscriber::builder().capacity(1).open(name)?; // in another process
//!
//!     for number in 0..10u8 {
//!         let mut pose = poses.alloc(24)?;
//!         pose.fill(number);
//!         poses.send(pose)?; // never waits
//!     }
//!     let pose = control.recv()?;
//!     assert_eq!(pose[0], 9);
//!     assert_eq!(pose.missed(), 9);
//!     Ok(())
//! }
//! ```
#![forbid(unsafe_code)]
