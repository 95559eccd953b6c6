//! `top`: providers, channels and holders on a screen that refreshes.
//!
//! | module | for |
//! |---|---|
//! | [`sampler`] | the last sample, and the rates since the one before |
//! | [`frame`] | the contents of a screen of any size |
//! | [`live`] | the terminal: refreshing, keys and signals |

mod frame;
mod live;
mod sampler;

use crate::args::{Scope, Top};
use crate::{json, Answer, Fallible};
use sampler::Sampler;
use std::io::{self, IsTerminal};
use std::thread;

pub(crate) fn run(scope: &Scope, options: &Top) -> Fallible<Answer> {
    let is_terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    let mut sampler = Sampler::new(scope.inspector())?;
    if !options.once && !scope.json && is_terminal {
        live::run(&mut sampler, options.interval)?;
        return Ok(Answer::fine(String::new()));
    }
    // A rate takes two samples.
    thread::sleep(options.interval);
    sampler.sample()?;
    let text = if scope.json {
        json::of(&document(&sampler))?
    } else {
        frame::text(&sampler)?
    };
    Ok(Answer::fine(text))
}

fn document(sampler: &Sampler) -> json::Document {
    let report = sampler.report();
    let mut document = json::Document::of(report);
    for (channel, sampled) in document.channels.iter_mut().zip(&report.channels) {
        channel.messages_per_second = Some(sampler.rate(sampled));
    }
    document
}
