//! The receiving end of a publisher's channel.

#![forbid(unsafe_code)]

use super::error::ChannelError;
use super::layout::Kind;
use super::message::Missed;
use super::payload::{self, builder_traits, Of, Payload};
use super::receiver::Options;
use super::receiving_end::{receiving_end, receiving_end_builder, OnEnd, ReceivingEnd};
use super::ring::OnFull;
use crate::os::name::Namespace;
use crate::protocol::ids::ProviderId;
use std::marker::PhantomData;

/// Options of a [`Subscriber`]. Start with [`Subscriber::builder`]; every option has a default.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shm_pool::channel::{OnFull, Subscriber};
///
/// # let name = format!("doc-subscriber-builder-{}", std::process::id());
/// // The latest message is enough.
/// let display = Subscriber::builder().capacity(1).open(&name)?;
/// // Nothing may be lost, so the publisher waits.
/// let logger = Subscriber::builder().on_full(OnFull::Block).open(&name)?;
/// # drop((display, logger));
/// # Ok(())
/// # }
/// ```
#[must_use = "a builder does nothing until `open` is called"]
pub struct SubscriberBuilder<T: ?Sized = [u8]> {
    options: Options,
    of: Of<T>,
}

impl Default for SubscriberBuilder {
    fn default() -> Self {
        Subscriber::builder()
    }
}

receiving_end_builder!(
    SubscriberBuilder,
    Subscriber,
    "publisher",
    "[`OnEnd::Wait`]"
);

impl<T: Payload + ?Sized> SubscriberBuilder<T> {
    /// Sets how many messages this subscriber may be behind, from 1 to the publisher's maximum,
    /// which is the default. Each takes 64 bytes of /dev/shm. One more fits, except with
    /// [`OnFull::DropOldest`].
    pub fn capacity(mut self, messages: usize) -> Self {
        self.options.capacity = Some(messages);
        self
    }

    /// Sets how many buffers this subscriber may hold at a time, including those not received:
    /// from 1 to the publisher's maximum, which is the default, rounded up to a power of two. Each
    /// takes 32 bytes of /dev/shm.
    pub fn max_borrowed(mut self, max_borrowed: usize) -> Self {
        self.options.max_borrowed = Some(max_borrowed);
        self
    }

    /// Sets what happens when this subscriber is behind by its [`capacity`](Self::capacity);
    /// default: the publisher's rule.
    pub fn on_full(mut self, on_full: OnFull) -> Self {
        self.options.on_full = Some(on_full);
        self
    }

    pub(super) fn options(&self) -> &Options {
        &self.options
    }

    /// Opens the channel `name` of a [`Publisher`](super::Publisher), if there is one; otherwise
    /// the subscriber opens it while it receives. A publisher of another user must admit this one:
    /// [`PublisherBuilder::mode`](super::PublisherBuilder::mode).
    ///
    /// # Errors
    ///
    /// * [`ChannelError::Name`].
    /// * If there is a channel of that name that cannot be opened:
    ///   [`ChannelError::NotAPublisher`] for a sender's, which a [`Receiver`](super::Receiver)
    ///   opens; [`ChannelError::OutOfRange`], [`ChannelError::BlockingNotAllowed`],
    ///   [`ChannelError::NotAChannel`], [`ChannelError::OtherVersion`],
    ///   [`ChannelError::WrongUid`], [`ChannelError::TypeMismatch`].
    /// * [`ChannelError::TooManyEnds`], [`ChannelError::Os`].
    pub fn open(self, name: &str) -> Result<Subscriber<T>, ChannelError> {
        let mut end = ReceivingEnd::new(self.options, name)?;
        end.open(true)?;
        Ok(Subscriber {
            end,
            of: PhantomData,
        })
    }
}

/// Receives the messages of a [`Publisher`](super::Publisher), and of each successor of its name.
///
/// It may be opened before there is a publisher, and by default waits for the next one when a
/// publisher ends; with [`OnEnd::Return`] it then returns
/// [`RecvError::Disconnected`](super::RecvError::Disconnected).
///
/// It receives what is sent after it has joined the publisher, which it does when it is opened, or
/// while it receives (and before that, [`PublisherBuilder::history`]). A publisher that starts and
/// ends while the subscriber neither receives nor waits is skipped.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shm_pool::channel::{Publisher, Subscriber};
/// use shm_pool::Provider;
///
/// # let name = format!("doc-subscriber-{}", std::process::id());
/// let mut subscriber = Subscriber::open(&name)?; // there is no publisher yet
/// # assert!(subscriber.try_recv().is_err());
///
/// // Another process:
/// let provider = Provider::builder().build()?;
/// let mut publisher = Publisher::create(&provider, &name)?;
/// # assert!(subscriber.try_recv().is_err()); // joins, as its process does while it waits
/// publisher.send_copy(b"a sample")?;
///
/// assert_eq!(subscriber.recv()?[..], *b"a sample");
/// # Ok(())
/// # }
/// ```
///
/// # A loop that receives
///
/// [`RecvError`](super::RecvError) says what to do: go on after a lost message, try again when
/// something is short, and otherwise stop.
///
/// ```
/// use shm_pool::channel::{RecvError, Subscriber};
/// use std::{thread, time::Duration};
///
/// fn run(subscriber: &mut Subscriber) -> Result<(), RecvError> {
///     loop {
///         match subscriber.recv() {
///             Ok(frame) => println!("{} bytes, {} missed before", frame.len(), frame.missed()),
///
///             // Go on: this message is lost, and the next one may be good.
///             Err(error) if error.is_message_lost() => eprintln!("{error}"),
///
///             // Try again: descriptors or memory are short, or the program holds too many messages.
///             Err(error) if error.is_retryable() => {
///                 eprintln!("{error}");
///                 thread::sleep(Duration::from_millis(10));
///             }
///
///             // The publisher has disconnected this subscriber. The next call joins again.
///             Err(RecvError::Evicted) => eprintln!("evicted: frames took too long"),
///
///             // Stop: another thread has called `interrupt`.
///             Err(RecvError::Interrupted) => return Ok(()),
///
///             // Stop: the channel has other options or another type, or this process was forked.
///             // With `OnEnd::Return` also: the publisher has ended.
///             Err(error) => return Err(error),
///         }
///     }
/// }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let name = format!("doc-subscriber-loop-{}", std::process::id());
/// # let provider = shm_pool::Provider::builder().build()?;
/// # let mut publisher = shm_pool::channel::Publisher::create(&provider, &name)?;
/// # let mut subscriber = Subscriber::open(&name)?;
/// # publisher.send_copy(b"a sample")?;
/// # subscriber.interrupter().interrupt();
/// # run(&mut subscriber)?;
/// # Ok(())
/// # }
/// ```
///
/// # Events
///
/// [`recv_event`](Self::recv_event) also reports where one publisher ends and the next begins:
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shm_pool::channel::{ChannelEvent, Publisher, Subscriber};
/// use shm_pool::Provider;
///
/// # let name = format!("doc-subscriber-events-{}", std::process::id());
/// let mut subscriber = Subscriber::open(&name)?;
/// # let provider = Provider::builder().build()?;
/// for _ in 0..2 {
///     // The publishing process, which restarts.
///     let mut publisher = Publisher::builder().history(1).create(&provider, &name)?;
///     publisher.send_copy(b"a sample")?;
///
///     assert!(matches!(subscriber.recv_event()?, ChannelEvent::Connected(_)));
///     # while publisher.serve_joins() {}
///     assert!(matches!(subscriber.recv_event()?, ChannelEvent::Message(_)));
///     drop(publisher);
///     assert!(matches!(subscriber.recv_event()?, ChannelEvent::Disconnected));
/// }
/// # Ok(())
/// # }
/// ```
///
/// [`PublisherBuilder::history`]: super::PublisherBuilder::history
pub struct Subscriber<T: ?Sized = [u8]> {
    pub(super) end: ReceivingEnd,
    of: Of<T>,
}

receiving_end!(Subscriber, SubscriberBuilder, "publisher", "Publisher");

impl<T: Payload + ?Sized> Subscriber<T> {
    /// Returns what happens when [`capacity`](Self::capacity) messages are waiting; `None` while
    /// there is no publisher.
    pub fn on_full(&self) -> Option<OnFull> {
        self.end.open.as_ref().map(|open| open.on_full())
    }

    /// Returns how many messages of the present publisher were missed, by reason.
    pub fn missed(&self) -> Missed {
        match &self.end.open {
            Some(open) => open.missed(),
            None => Missed::default(),
        }
    }
}

impl Subscriber {
    /// Returns a builder with the default options.
    pub fn builder() -> SubscriberBuilder {
        SubscriberBuilder {
            options: Options::new(Kind::Rendezvous, OnEnd::Wait),
            of: PhantomData,
        }
    }
}
