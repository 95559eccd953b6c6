//! The program itself: makes runs for each kind of memory, and prints the results side by side.
//!
//! A run is a publisher process and its subscriber processes. If one of them fails, or nothing is
//! heard for long, all are ended, so that nobody waits for somebody who is gone. A process tells on
//! its standard output, a line of JSON each: that it listens, that it goes on, what it has seen.
//! Its standard input says nothing, and ends when the program that started it does, in whatever
//! way.

use crate::footprint;
use crate::options::{subscriber_name, Options, Whose};
use crate::report::{self, Column};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use shm_pool_support::process::{this_program, Child};
use shm_pool_support::Fallible;
use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{self, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;
use zenoh::shm::cleanup_orphaned_shm_segments;

/// How long nothing may be heard of any process. They say something many times a second, unless
/// something is stuck.
const SILENCE: Duration = Duration::from_secs(30);

const PYTHON_SUBSCRIBER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/zenoh_pubsub/subscriber.py");

/// Makes all runs.
pub(crate) fn run(options: &Options) -> Fallible {
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
            // zenoh removes an object when the last process that has it open closes it in good
            // order. A process that was killed never does, and one that receives keeps what it has
            // opened in globals until it exits, where the order in which things end is nobody's. So
            // this is called when all are gone; it leaves alone what living processes have open.
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
    report::print(options, &file, &columns);
    Ok(())
}

/// What was heard of which process, by the order in which they were started; `None` when it says no
/// more. Nothing closes its output but its end.
type News = (usize, Option<Value>);

/// What another process is.
#[derive(Serialize, Deserialize)]
pub(crate) enum Role {
    Publisher(Options),
    Subscriber(Options),
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

    fn conduct(mut self) -> Fallible<Outcome> {
        let Self { options, file, whose, .. } = self;
        let of_process = |index, connect: &str| options.of_process(file, whose, index, connect);
        self.start("publisher", this_program(&Role::Publisher(of_process(0, "")))?)?;
        let endpoint = self.endpoint()?;
        for index in 0..options.subscribers {
            let role = Role::Subscriber(of_process(index, &endpoint));
            self.start(&subscriber_name(index), this_program(&role)?)?;
        }
        if let Some(python) = &options.python {
            let mut subscriber = Command::new(python);
            subscriber.arg(PYTHON_SUBSCRIBER).args(options.python_args(file, &endpoint));
            self.start(&format!("subscriber {} (Python)", options.subscribers), subscriber)?;
        }
        self.outcome()
    }

    /// Starts a process, and passes on what it says.
    fn start(&mut self, name: &str, mut command: Command) -> Fallible {
        let named = |error: io::Error| format!("cannot start {name}: {error}");
        let (from, news) = (self.children.len(), self.sender.clone());
        let mut child = Child::start(name, command.stdin(Stdio::piped()).stdout(Stdio::piped())).map_err(named)?;
        let output = BufReader::new(child.output()?);
        self.children.push(child);
        // Ends with the output, that is, with the process.
        thread::spawn(move || {
            for line in output.lines().map_while(io::Result::ok) {
                match serde_json::from_str(&line) {
                    // Nobody hears it if the run has failed already.
                    Ok(said) => drop(news.send((from, Some(said)))),
                    // zenoh logs to standard output, too.
                    Err(_) => eprintln!("{line}"),
                }
            }
            let _ = news.send((from, None));
        });
        Ok(())
    }

    /// Waits for the publisher to tell where it listens.
    fn endpoint(&mut self) -> Fallible<String> {
        match self.hear()?.1 {
            Some(said) => {
                Ok(said["listening"].as_str().ok_or("the publisher does not tell where it listens")?.to_owned())
            }
            None => Err("the publisher has ended before it listened".into()),
        }
    }

    /// Waits for all processes to tell what they have seen, and to end; or for the publisher to
    /// tell that it cannot begin.
    fn outcome(&mut self) -> Fallible<Outcome> {
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
            Some(result) => Ok((child.name().to_owned(), result)),
            None => Err(format!("{} ended without a result", child.name())),
        });
        Ok(Outcome::Finished(Finished::new(named.collect::<std::result::Result<_, _>>()?)))
    }

    /// What a process says next; `None` if it has ended in peace.
    fn hear(&mut self) -> Fallible<(usize, Option<Value>)> {
        let (from, said) = self.news.recv_timeout(SILENCE).map_err(|_| self.stuck())?;
        if said.is_none() {
            let child = &mut self.children[from];
            let status = child.wait()?;
            if !status.success() {
                return Err(format!("{} ended with {status}", child.name()).into());
            }
        }
        Ok((from, said))
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

/// In a process that was started so: tells something.
pub(crate) fn say(news: &Value) -> Fallible {
    let mut output = io::stdout().lock();
    writeln!(output, "{news}").and_then(|()| output.flush()).map_err(|error| format!("nobody listens: {error}").into())
}

/// In a process that was started so: ends it when the program that started it is gone. It would
/// wait for ever otherwise.
pub(crate) fn end_with_parent() {
    thread::spawn(|| {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        eprintln!("the program that started this process is gone");
        process::exit(1);
    });
}

/// A run that has ended as it may.
pub(crate) enum Outcome {
    /// All messages came as they must.
    Finished(Finished),
    /// There was no provider, and this is why.
    Refused(String),
}

/// What the processes have seen.
pub(crate) struct Finished {
    pub(crate) publisher: Value,
    /// Each subscriber's name, and what it has seen.
    pub(crate) subscribers: Vec<(String, Value)>,
}

impl Finished {
    /// From what the processes say: first the publisher.
    fn new(mut results: Vec<(String, Value)>) -> Self {
        let subscribers = results.split_off(1);
        let publisher = results.pop().map(|(_, result)| result).unwrap_or_default();
        Self { publisher, subscribers }
    }

    /// Fails if an object that any of the processes had mapped is still there.
    fn check_for_leaks(&self) -> Fallible {
        let results = self.subscribers.iter().map(|(_, result)| result).chain([&self.publisher]);
        let objects: BTreeSet<String> = results
            .flat_map(|result| result["objects"].as_array().into_iter().flatten())
            .filter_map(|name| name.as_str().map(str::to_owned))
            .collect();
        let left: Vec<&String> = footprint::left(&objects).collect();
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!("leak: left behind in /dev/shm: {left:?}").into())
        }
    }

    /// Fails if a subscriber has more at the end than after the first tenth of the messages, apart
    /// from what the pool has made meanwhile.
    fn check_growth(&self, whose: Whose) -> Fallible {
        // zenoh's own provider has one segment from the start.
        let segments = |when: &str| self.publisher["segments"][when].as_u64().unwrap_or(0);
        let made = segments("late").saturating_sub(segments("early"));
        for (name, result) in &self.subscribers {
            for what in ["descriptors", "mappings"] {
                let of = |when: &str| {
                    let number = result[when][what].as_u64();
                    number.ok_or_else(|| format!("{name} does not tell how many {what} it has"))
                };
                let (early, late) = (of("early")?, of("late")?);
                if late.abs_diff(early) > made {
                    return Err(format!(
                        "memory of {}: {name} had {early} {what} after a tenth of the messages and {late} at the end, \
                         and {made} segments were made meanwhile",
                        whose.title(),
                    )
                    .into());
                }
            }
        }
        Ok(())
    }
}
