//! A publisher that is killed and started again: from the beginning of its new process until its
//! subscriber, which stays, has its first message.
//!
//! This library's subscriber parks until then. iceoryx2's polls: it has no wait.

use crate::contenders::Effort;
use crate::iceoryx;
use crate::source::{pool, text, Made};
use shm_pool::channel::{Publisher, Subscriber};
use shm_pool_support::clock::now;
use shm_pool_support::latency::{at, histogram};
use shm_pool_support::process::{end_with_parent, this_program, Child};
use shm_pool_support::table::{show, table};
use shm_pool_support::Fallible;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

const OURS: &str = "shm-pool";
const TIMEOUT: Duration = Duration::from_secs(10);

/// The publisher's process. Its message is the time at which it began.
pub(crate) fn publish(library: &str, name: &str) -> Fallible {
    let began = now().to_le_bytes();
    end_with_parent()?;
    if library == OURS {
        let provider = pool()?;
        let mut publisher = Publisher::builder().create_timeout(&provider, name, TIMEOUT)?;
        publisher.wait_for_receivers(1, TIMEOUT)?;
        publisher.send_copy(&began)?;
        sleep(TIMEOUT); // until it is killed
    } else {
        let _publisher = iceoryx::send_first(name, &began)?;
        sleep(TIMEOUT);
    }
    Ok(())
}

/// Starts and kills publishers. `receive` returns a publisher's only message, when it has arrived.
fn row(
    library: &str,
    scratch: &Path,
    name: &str,
    effort: Effort,
    mut receive: impl FnMut() -> Made<Option<u64>>,
) -> Made<[String; 4]> {
    let mut took = histogram();
    for number in 0..=effort.rounds {
        let mut command = this_program(&scratch).map_err(text)?;
        let mut publisher =
            Child::start("publisher", command.args(["--publish", library, name])).map_err(text)?;
        let began = loop {
            publisher.check_alive().map_err(text)?;
            if let Some(began) = receive()? {
                break began;
            }
        };
        // The first one has no predecessor.
        if number > 0 {
            took.saturating_record(now() - began);
        }
        publisher.kill().map_err(text)?;
        publisher.wait().map_err(text)?;
    }
    Ok([
        library.to_owned(),
        at(&took, 0.0),
        at(&took, 0.5),
        at(&took, 0.99),
    ])
}

/// Prints a row for each library. A peer that cannot restart is no error.
pub(crate) fn measure(scratch: &Path, effort: Effort) -> Fallible {
    let name = format!("restart-{}", std::process::id());
    let mut subscriber = Subscriber::open(&name)?;
    let ours = row(OURS, scratch, &name, effort, || {
        let message = subscriber.recv_timeout(TIMEOUT).map_err(text)?;
        let sent = message[..].try_into().map_err(text)?;
        Ok(Some(u64::from_le_bytes(sent)))
    })?;
    let theirs = match iceoryx::first_of("restart") {
        Ok(receive) => row("iceoryx2", scratch, "restart", effort, receive),
        Err(reason) => Err(reason),
    };
    let mut shown = table(&[
        "killed and restarted, until the first message is received",
        "least",
        "p50",
        "p99",
    ]);
    shown.add_row(ours);
    shown.add_row(match theirs {
        Ok(cells) => cells,
        Err(reason) => [reason, String::new(), String::new(), String::new()],
    });
    show("peers restart", &shown);
    Ok(())
}
