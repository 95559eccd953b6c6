//! A publisher that is killed and started again: from the beginning of its new process until its
//! subscriber, which stays, has its first message.
//!
//! This library's subscriber sleeps until then. iceoryx2's polls: it has no wait.

use crate::contenders::Effort;
use crate::iceoryx;
use crate::source::{pool, text, Made};
use shm_pool::channel::{Event, Publisher, Receiver};
use shm_pool::Client;
use shm_pool_support::clock::now;
use shm_pool_support::latency::{at, histogram};
use shm_pool_support::process::{end_with_parent, this_program, Child};
use shm_pool_support::table::{show, table};
use shm_pool_support::Fallible;
use std::path::Path;
use std::thread::park;
use std::time::Duration;

const OURS: &str = "shm-pool";
const THEIRS: &str = "iceoryx2";

/// The argument of a publisher's process, before the library and the channel's name.
pub(crate) const PUBLISH: &str = "--publish";

const PATIENCE: Duration = Duration::from_secs(10);

/// The publisher's process. Its message is the time at which it began.
pub(crate) fn publish(library: &str, name: &str) -> Fallible {
    let began = now().to_le_bytes();
    end_with_parent()?;
    if library == THEIRS {
        let _publisher = iceoryx::send_first(name, &began)?;
        loop {
            park();
        }
    }
    let provider = pool()?;
    let mut publisher = Publisher::builder().create_timeout(&provider, name, PATIENCE)?;
    publisher.wait_for_receivers(1, PATIENCE)?;
    publisher.send_bytes(&began)?;
    loop {
        park();
    }
}

/// Starts and kills publishers. `receive` returns a publisher's only message.
fn restarts(
    library: &str,
    (scratch, name): (&Path, &str),
    effort: Effort,
    mut receive: impl FnMut() -> Made<u64>,
) -> Made<[String; 3]> {
    let mut took = histogram();
    for number in 0..=effort.rounds {
        let mut command = this_program(&scratch).map_err(text)?;
        let mut publisher = Child::start("publisher", command.args([PUBLISH, library, name])).map_err(text)?;
        let began = receive()?;
        // The first one has no predecessor.
        if number > 0 {
            took.saturating_record(now() - began);
        }
        publisher.kill().map_err(text)?;
        publisher.wait().map_err(text)?;
    }
    Ok([0.0, 0.5, 0.99].map(|quantile| at(&took, quantile)))
}

fn ours(scratch: &Path, effort: Effort) -> Made<[String; 3]> {
    let name = format!("restart-{}", std::process::id());
    let mut subscriber = Receiver::builder().subscribe(&Client::new(), &name).map_err(text)?;
    restarts(OURS, (scratch, &name), effort, || loop {
        if let Event::Message(message) = subscriber.recv_timeout(PATIENCE).map_err(text)? {
            return Ok(u64::from_le_bytes(message[..].try_into().map_err(text)?));
        }
    })
}

fn theirs(scratch: &Path, effort: Effort) -> Made<[String; 3]> {
    let subscriber = iceoryx::FirstOf::new("restart")?;
    restarts(THEIRS, (scratch, "restart"), effort, || {
        let deadline = now() + PATIENCE.as_nanos() as u64;
        while now() < deadline {
            if let Some(began) = subscriber.receive()? {
                return Ok(began);
            }
        }
        Err("its first message does not arrive".to_owned())
    })
}

/// Prints a row for each library. What a peer cannot do is no error.
pub(crate) fn measure(scratch: &Path, effort: Effort) -> Fallible {
    let mut shown = table(&["killed and restarted, until the first message is received", "least", "p50", "p99"]);
    let ours = ours(scratch, effort)?;
    let theirs = theirs(scratch, effort).unwrap_or_else(|reason| [reason, String::new(), String::new()]);
    for (library, [least, middle, most]) in [(OURS, ours), (THEIRS, theirs)] {
        shown.add_row([library.to_owned(), least, middle, most]);
    }
    show("peers restart", &shown);
    Ok(())
}
