//! The program itself: makes one run for each kind of memory, and prints the results side by side.
//!
//! A run is a publisher process and its subscriber processes. If one of them fails, or nothing is heard for long, all are ended,
//! so that nobody waits for somebody who is gone.

use crate::child::{Child, Heard, News};
use crate::options::{subscriber_name, Options, Whose};
use crate::report::{table, Column};
use crate::{footprint, Result};
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
    let mut columns = Vec::new();
    for &whose in &options.memory {
        let outcome = Run::new(options, &file, whose).conduct();
        // zenoh removes an object when the last process that has it open closes it in good order. A process that was
        // killed never does, and one that receives keeps what it has opened in globals until it exits, where the order in which
        // things end is nobody's. So this is called when all are gone; it leaves alone what living processes have open.
        cleanup_orphaned_shm_segments();
        let column = outcome?;
        let left: Vec<&String> = footprint::left(&column.objects).collect();
        if !left.is_empty() {
            return Err(format!("leak: left behind in /dev/shm: {left:?}").into());
        }
        columns.push(column);
    }
    let text = table(options, &file, &columns);
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
}

impl<'a> Run<'a> {
    fn new(options: &'a Options, file: &'a Path, whose: Whose) -> Self {
        let (sender, news) = mpsc::channel();
        Self { options, file, whose, children: Vec::new(), sender, news }
    }

    fn conduct(mut self) -> Result<Column> {
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
        let results = self.results()?;
        let names = self.children.iter().map(|child| child.name.clone());
        Ok(Column::new(self.whose, names.zip(results).collect()))
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

    /// Waits for all processes to tell what they have seen, and to end.
    fn results(&mut self) -> Result<Vec<Value>> {
        let mut results = vec![None; self.children.len()];
        let mut running: BTreeSet<usize> = (0..self.children.len()).collect();
        while !running.is_empty() {
            match self.hear()? {
                (from, Some(mut said)) if said["done"].is_object() => results[from] = Some(said["done"].take()),
                (_, Some(_)) => {}
                (from, None) => drop(running.remove(&from)),
            }
        }
        let silent = |at: usize| format!("{} ended without a result", self.children[at].name);
        results.into_iter().enumerate().map(|(at, result)| result.ok_or_else(|| silent(at).into())).collect()
    }

    /// What a process says next; `None` if it has ended in peace.
    fn hear(&mut self) -> Result<(usize, Option<Value>)> {
        let Ok(News { from, what }) = self.news.recv_timeout(SILENCE) else {
            return Err(format!("nothing was heard for {} s: the run is stuck", SILENCE.as_secs()).into());
        };
        let child = &mut self.children[from];
        match what {
            Heard::Said(said) => Ok((from, Some(said))),
            Heard::Babbled(line) => Err(format!("{} says what is no JSON: {line}", child.name).into()),
            Heard::Ended => {
                let status = child.wait()?;
                if !status.success() {
                    return Err(format!("{} ended with {status}", child.name).into());
                }
                Ok((from, None))
            }
        }
    }
}
