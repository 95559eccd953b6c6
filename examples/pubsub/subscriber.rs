//! A subscriber process: attaches to each message, compares it in place with its own copy of the
//! file, and releases it.

use crate::{Announced, Task};
use shm_pool::{Client, Descriptor, ProviderId, ShmView};
use shm_pool_support::process::inherited_input;
use shm_pool_support::{wire, Fallible};
use std::collections::VecDeque;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{channel, Receiver};

/// Follows the publisher to the end of its stream. The socket is the standard input.
pub(crate) fn run(task: &Task) -> Fallible {
    let options = &task.options;
    let source = options.source()?;
    let socket = UnixStream::from(inherited_input()?);
    let client = Client::new();
    let peer = client.connect(ProviderId::from(task.provider))?;
    wire::send(&socket, &peer.to_bytes())?;
    // A thread reads the socket, so that this one can check whether a message is waiting.
    let (arrived, inbox) = channel();
    wire::listen(socket.try_clone()?, move |announced| {
        arrived.send(announced).is_ok()
    });

    let mut subscriber = Subscriber {
        socket,
        inbox,
        held: VecDeque::new(),
    };
    let hold = if task.is_slow { options.hold } else { 0 };
    let mut contents = source.messages(&options.sizes);
    let mut messages = 0;
    let mut most_held = 0;
    while let Some(bytes) = subscriber.next()? {
        let view = client.attach(&Descriptor::from_bytes(bytes)?)?;
        let expected = contents.next().ok_or("more messages than sizes")?;
        compare(&view, expected)?;
        subscriber.held.push_back((view, expected));
        messages += 1;
        most_held = most_held.max(subscriber.held.len());
        if subscriber.held.len() > hold {
            subscriber.release_oldest()?;
        }
    }
    while subscriber.release_oldest()? {}
    if messages != options.messages {
        return Err(format!("{messages} of {} messages arrived", options.messages).into());
    }
    let name = if task.is_slow {
        "the slow subscriber"
    } else {
        "a subscriber"
    };
    println!("{name}: {messages} messages read, none changed, at most {most_held} held at a time");
    Ok(())
}

struct Subscriber<'a> {
    socket: UnixStream,
    inbox: Receiver<Option<Announced>>,
    /// Held messages, each with its expected bytes, the oldest first.
    held: VecDeque<(ShmView, &'a [u8])>,
}

impl Subscriber<'_> {
    /// Returns the publisher's next value.
    ///
    /// Never waits while it holds a message: the publisher may need that memory to continue. This
    /// rule makes any `--hold` work with any `--window` and any `--max-bytes`.
    fn next(&mut self) -> Fallible<Announced> {
        let announced = loop {
            match self.inbox.try_recv() {
                Ok(announced) => break announced,
                Err(_) if self.release_oldest()? => {}
                Err(_) => break self.inbox.recv()?,
            }
        };
        Ok(announced.ok_or("the publisher has died")?)
    }

    /// Releases the message that was held longest. Returns `false` if there is none.
    fn release_oldest(&mut self) -> Fallible<bool> {
        let Some((view, expected)) = self.held.pop_front() else {
            return Ok(false);
        };
        // It must not have changed meanwhile.
        compare(&view, expected)?;
        // First the memory, then the report of it.
        drop(view);
        wire::send(&self.socket, &())?;
        Ok(true)
    }
}

/// Fails if a byte is not the file's.
fn compare(view: &ShmView, expected: &[u8]) -> Fallible {
    // The black box makes each comparison read the memory again.
    if std::hint::black_box(&view[..]) == expected {
        return Ok(());
    }
    let mut pairs = view.iter().zip(expected);
    let at = pairs.position(|(seen, expected)| seen != expected);
    Err(format!(
        "a message is not the file's: {} bytes for {}, first at {at:?}",
        view.len(),
        expected.len()
    )
    .into())
}
