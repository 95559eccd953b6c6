//! The program itself: makes runs for each kind of memory, and prints the results side by side.
//!
//! A run is a publisher process and its subscriber processes. If one of them fails, or nothing is heard for long, all are ended,
//! so that nobody waits for somebody who is gone.

use crate::child::{Child, Heard, News};
use crate::options::{subscriber_name, Options, Whose};
use crate::outcome::{Finished, Outcome};
use crate::report::{self, Column};
use crate::Result;
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;
use zenoh::shm::cleanup_orphaned_shm_segments;

/// How long nothing may be heard of any process. They say something many times a second, unless something is stuck.
const SILENCE: Duration = Duration::from_secs(30);

const PYTHON_SUBSCRIBER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/zenoh_subscriber.py");

/// Makes all runs.
pub(crate) fn run(options: &Options) -> Result<()> {
    options.check()?;
    let file = options.file()?;
    let mut outcomes: Vec<Vec<Outcome>> = options.memory.iter().map(|_| Vec::new()).collect();
    for round in 0..options.rounds {
        let mut order: Vec<usize> = (0..outcomes.len()).collect();
        // What else the machine does, now or later, meets all alike.
        if round % 2 == 1 {
            order.reverse();
        }
        for at in order {
            let outcome = Run::new(options, &file, options.memory[at]).conduct();
            // zenoh removes an object when the last process that has it open closes it in good order. A process that
            // was killed never does, and one that receives keeps what it has opened in globals until it exits, where
            // the order in which things end is nobody's. So this is called when all are gone; it leaves alone what
            // living processes have open.
            cleanup_orphaned_shm_segments();
            let outcome = outcome?;
            if let Outcome::Finished(finished) = &outcome {
                finished.check_for_leaks()?;
                if options.load.is_some() {
                    finished.check_growth(options.memory[at])?;
                }
            }
            outcomes[at].push(outcome);
        }
    }
    let columns: Vec<Column> =
        options.memory.iter().zip(outcomes).map(|(&whose, outcomes)| Column::new(whose, outcomes)).collect();
    let text = report::text(options, &file, &columns);
    io::stdout().write_all(text.as_bytes()).map_err(|error| format!("cannot write the table: {error}").into())
}

struct Run<'a> {
    options: &'a Options,
    file: &'a Path,
    whose: Whose,
    /// The publisher, then the subscribers.
    children: Vec<Child>,
    sender: Sender<News>,
    news: Receiver<News>,
    /// How many messages the publisher has told of.
    published: u64,
}

impl<'a> Run<'a> {
    fn new(options: &'a Options, file: &'a Path, whose: Whose) -> Self {
        let (sender, news) = mpsc::channel();
        Self { options, file, whose, children: Vec::new(), sender, news, published: 0 }
    }

    fn conduct(mut self) -> Result<Outcome> {
        let mut publisher = self.own_program()?;
        publisher.arg("--role=publisher");
        self.start("publisher".to_owned(), publisher)?;
        let endpoint = self.endpoint()?;
        for index in 0..self.options.subscribers {
            let mut subscriber = self.own_program()?;
            subscriber.args(["--role=subscriber", "--connect", &endpoint]).arg(format!("--index={index}"));
            self.start(subscriber_name(index), subscriber)?;
        }
        if let Some(python) = &self.options.python {
            let mut subscriber = Command::new(python);
            subscriber.arg(PYTHON_SUBSCRIBER).args(self.options.common_args(self.file));
            subscriber.args(["--connect", &endpoint]).arg(format!("--index={}", self.options.subscribers));
            self.start(format!("subscriber {} (Python)", self.options.subscribers), subscriber)?;
        }
        self.outcome()
    }

    /// This program once more, to be a process of this run.
    fn own_program(&self) -> Result<Command> {
        let program = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
        let mut command = Command::new(program);
        command.args(self.options.common_args(self.file)).args(self.options.own_args(self.whose));
        Ok(command)
    }

    fn start(&mut self, name: String, mut command: Command) -> Result<()> {
        let child = Child::spawn(name, &mut command, self.children.len(), self.sender.clone())?;
        self.children.push(child);
        Ok(())
    }

    /// Waits for the publisher to tell where it listens.
    fn endpoint(&mut self) -> Result<String> {
        match self.hear()?.1 {
            Some(said) => {
                Ok(said["listening"].as_str().ok_or("the publisher does not tell where it listens")?.to_owned())
            }
            None => Err("the publisher has ended before it listened".into()),
        }
    }

    /// Waits for all processes to tell what they have seen, and to end; or for the publisher to tell that it cannot
    /// begin.
    fn outcome(&mut self) -> Result<Outcome> {
        let mut results = vec![None; self.children.len()];
        let mut running: BTreeSet<usize> = (0..self.children.len()).collect();
        while !running.is_empty() {
            match self.hear()? {
                (from, Some(mut said)) => {
                    if let Some(why) = said["refused"].as_str() {
                        return Ok(Outcome::Refused(why.to_owned()));
                    }
                    if said["done"].is_object() {
                        results[from] = Some(said["done"].take());
                    }
                    self.published = said["published"].as_u64().unwrap_or(self.published);
                }
                (from, None) => drop(running.remove(&from)),
            }
        }
        let named = self.children.iter().zip(results).map(|(child, result)| match result {
            Some(result) => Ok((child.name.clone(), result)),
            None => Err(format!("{} ended without a result", child.name)),
        });
        Ok(Outcome::Finished(Finished::new(named.collect::<std::result::Result<_, _>>()?)))
    }

    /// What a process says next; `None` if it has ended in peace.
    fn hear(&mut self) -> Result<(usize, Option<Value>)> {
        let Ok(News { from, what }) = self.news.recv_timeout(SILENCE) else {
            return Err(self.stuck().into());
        };
        let child = &mut self.children[from];
        match what {
            Heard::Said(said) => Ok((from, Some(said))),
            Heard::Ended => {
                let status = child.wait()?;
                if !status.success() {
                    return Err(format!("{} ended with {status}", child.name).into());
                }
                Ok((from, None))
            }
        }
    }

    fn stuck(&self) -> String {
        let (whose, seconds, published) = (self.whose.title(), SILENCE.as_secs(), self.published);
        let hint = if self.options.may_run_dry() {
            "; what the slow subscriber keeps may leave no gap that fits the next message"
        } else {
            ""
        };
        format!(
            "memory of {whose}: nothing was heard for {seconds} s after message {published}: the run is stuck{hint}"
        )
    }
}
