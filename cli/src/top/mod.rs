//! `top`: providers, channels and holders on a screen that refreshes.
//!
//! | module | for |
//! |---|---|
//! | [`rates`] | changes between two looks |
//! | [`frame`] | the contents of a screen of any size |
//! | [`live`] | the terminal: refreshing, keys and signals |

mod frame;
mod live;
mod rates;

use crate::args::{Scope, Top};
use crate::{json, Answer, Fallible};
use rates::Watch;
use std::io::{self, IsTerminal};
use std::thread;

pub(crate) fn run(scope: &Scope, options: &Top) -> Fallible<Answer> {
    let is_terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    let mut watch = Watch::new(scope.inspector())?;
    if !options.once && !scope.json && is_terminal {
        live::run(&mut watch, options.interval)?;
        return Ok(Answer::fine(String::new()));
    }
    // A rate takes two looks.
    thread::sleep(options.interval);
    watch.look()?;
    Ok(Answer::fine(if scope.json {
        json::of(&document(&watch))?
    } else {
        frame::text(&watch)?
    }))
}

fn document(watch: &Watch) -> json::Document {
    let mut document = json::Document::of(watch.report());
    for (channel, seen) in document.channels.iter_mut().zip(&watch.report().channels) {
        channel.messages_per_second = Some(watch.rate(seen));
    }
    document
}
