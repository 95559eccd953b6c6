//! The program itself: makes runs for each kind of memory, and prints the results side by side.
//!
//! A run is a publisher process and its subscriber processes. If one of them fails, or none reports
//! anything for long, all are ended, so that no process waits for one that has exited.

use crate::footprint;
use crate::limits;
use crate::news::{Figures, News, Seen};
use crate::options::{subscriber_name, Options, Whose};
use crate::report::{self, Column};
use crate::{publisher, subscriber};
use serde::{Deserialize, Serialize};
use shm_pool_support::process::{end_with_parent, this_program, Child};
use shm_pool_support::Fallible;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::process::{ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;
use zenoh::shm::cleanup_orphaned_shm_segments;

/// For how long all processes may be silent. They report something many times a second, unless the
/// run is stuck.
const SILENCE: Duration = Duration::from_secs(30);

const PYTHON_SUBSCRIBER: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/benches/zenoh_pubsub/subscriber.py"
);

/// What another process is to do.
#[derive(Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) role: Role,
    options: Options,
}

#[derive(Serialize, Deserialize)]
pub(crate) enum Role {
    Publisher { whose: Whose },
    Subscriber { index: u8, endpoint: String },
}

impl Role {
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Publisher { .. } => "publisher".to_owned(),
            Self::Subscriber { index, .. } => subscriber_name(*index),
        }
    }
}

impl Task {
    /// Performs the task in this process.
    pub(crate) fn run(&self) -> Fallible {
        // No other process would notify this one that the others have exited.
        end_with_parent()?;
        limits::apply(self.options.memlock)?;
        match &self.role {
            Role::Publisher { whose } => publisher::run(&self.options, *whose),
            Role::Subscriber { index, endpoint } => {
                subscriber::run(&self.options, *index, endpoint)
            }
        }
    }
}

/// Makes all runs, and prints the results.
pub(crate) fn run(options: &Options) -> Fallible {
    options.check()?;
    for options in options.apart() {
        report::print(&options, &measure(&options)?);
    }
    Ok(())
}

/// Makes the runs that are compared with each other.
fn measure(options: &Options) -> Fallible<Vec<Column>> {
    let mut columns = Vec::new();
    for &whose in &options.memory {
        columns.push(Column::new(whose));
    }
    for round in 0..options.rounds {
        let mut in_turn: Vec<_> = columns.iter_mut().collect();
        // The order alternates, so that other load on the machine affects all columns alike.
        if round % 2 == 1 {
            in_turn.reverse();
        }
        for column in in_turn {
            let outcome = Run::new(options, column.whose).conduct();
            // zenoh removes an object when the last process closes it in good order. A killed
            // process never does, and a receiving one keeps objects open in globals until it exits,
            // in no defined order. So this is called when all have exited. It does not touch
            // objects that living processes have open.
            cleanup_orphaned_shm_segments();
            match outcome? {
                Outcome::Refused(why) => column.refused = Some(why),
                Outcome::Finished(processes) => {
                    check_for_leaks(&processes)?;
                    if options.load.is_some() {
                        check_growth(&processes)
                            .map_err(|error| format!("memory of {}: {error}", column.title()))?;
                    }
                    column.add(processes);
                }
            }
        }
    }
    Ok(columns)
}

/// How a run has ended, if it has not failed.
enum Outcome {
    /// All messages arrived intact: the name and the result of each process, the publisher first.
    Finished(Vec<(String, Seen)>),
    /// There was no provider, and this is why.
    Refused(String),
}

struct Run<'a> {
    options: &'a Options,
    whose: Whose,
    /// The publisher, then the subscribers. The last one is the next to be killed.
    children: Vec<Child>,
    /// How many children have not exited yet.
    running: usize,
    /// How many subscribers were killed.
    killed: u8,
    /// Whether the last one has received a message.
    has_joined: bool,
    /// The results of those that have finished, by their index among the children.
    results: BTreeMap<usize, Seen>,
    /// The news of each child, by its index. `None` when its output ends, with the process.
    sender: Sender<(usize, Option<News>)>,
    news: Receiver<(usize, Option<News>)>,
}

impl<'a> Run<'a> {
    fn new(options: &'a Options, whose: Whose) -> Self {
        let (sender, news) = mpsc::channel();
        Self {
            options,
            whose,
            children: Vec::new(),
            running: 0,
            killed: 0,
            has_joined: false,
            results: BTreeMap::new(),
            sender,
            news,
        }
    }

    /// Waits until all processes have reported what they have seen and have exited, or until the
    /// publisher reports that it cannot begin.
    fn conduct(mut self) -> Fallible<Outcome> {
        self.start_task(Role::Publisher { whose: self.whose }, self.options.clone())?;
        let mut published = 0;
        let mut endpoint = String::new();
        while self.running > 0 {
            let Ok((from, news)) = self.news.recv_timeout(SILENCE) else {
                return Err(self.stuck(published).into());
            };
            match news {
                Some(News::Listening(at)) => {
                    endpoint = at;
                    self.start_subscribers(&endpoint)?;
                }
                Some(News::Published(count)) => {
                    published = count;
                    self.kill_if_due(published)?;
                }
                Some(News::Joined) => {
                    if from + 1 == self.children.len() {
                        self.has_joined = true;
                    }
                }
                Some(News::Reclaimed) => {
                    let index = self.options.subscribers + self.killed - 1;
                    self.start_subscriber(index, &endpoint)?;
                }
                Some(News::Refused(why)) => return Ok(Outcome::Refused(why)),
                Some(News::Done(seen)) => {
                    self.results.insert(from, seen);
                }
                None => self.wait_for_exit(from)?,
            }
        }
        if self.killed < self.options.kills {
            return Err(format!(
                "{} subscribers were killed when all was over: too few messages",
                self.killed
            )
            .into());
        }
        let mut processes = Vec::new();
        for (from, seen) in self.results {
            processes.push((self.children[from].name().to_owned(), seen));
        }
        Ok(Outcome::Finished(processes))
    }

    /// Waits for a process whose output has ended. Fails unless it has succeeded, or was killed.
    fn wait_for_exit(&mut self, from: usize) -> Fallible {
        let was_killed = self.killed_children().contains(&from);
        let child = &mut self.children[from];
        let status = child.wait()?;
        self.running -= 1;
        let is_done = status.success() && self.results.contains_key(&from);
        if !is_done && !was_killed {
            let name = child.name();
            return Err(format!("{name} ended with {status}, and without a result").into());
        }
        Ok(())
    }

    /// Kills the last subscriber, if it is due and has received a message.
    fn kill_if_due(&mut self, published: u64) -> Fallible {
        let Some(due) = self.options.killed_after(self.killed) else {
            return Ok(());
        };
        if published < due || !self.has_joined {
            return Ok(());
        }
        if let Some(victim) = self.children.last_mut() {
            victim.kill()?;
            self.killed += 1;
            self.has_joined = false;
        }
        Ok(())
    }

    /// Returns the indices of the children that were killed.
    fn killed_children(&self) -> Range<usize> {
        let first = usize::from(self.options.subscribers);
        first..first + usize::from(self.killed)
    }

    fn start_subscribers(&mut self, endpoint: &str) -> Fallible {
        for index in 0..self.options.subscribers {
            self.start_subscriber(index, endpoint)?;
        }
        if let Some(python) = &self.options.python {
            let index = self.options.subscribers;
            let sizes: Vec<_> = self.options.sizes.iter().map(usize::to_string).collect();
            let mut command = Command::new(python);
            command
                .arg(PYTHON_SUBSCRIBER)
                .arg("--file")
                .arg(&self.options.file)
                .args(["--connect", endpoint])
                .arg(format!("--messages={}", self.options.messages))
                .arg(format!("--sizes={}", sizes.join(",")))
                .arg(format!("--index={index}"));
            self.start(&format!("subscriber {index} (Python)"), command)?;
        }
        Ok(())
    }

    fn start_subscriber(&mut self, index: u8, endpoint: &str) -> Fallible {
        self.has_joined = false;
        let role = Role::Subscriber {
            index,
            endpoint: endpoint.to_owned(),
        };
        self.start_task(role, self.options.of_subscriber(index))
    }

    fn start_task(&mut self, role: Role, options: Options) -> Fallible {
        let name = role.name();
        self.start(&name, this_program(&Task { role, options })?)
    }

    /// Starts a process, and a thread that forwards its news.
    fn start(&mut self, name: &str, mut command: Command) -> Fallible {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = Child::start(name, &mut command)
            .map_err(|error| format!("cannot start {name}: {error}"))?;
        let output = child.output()?;
        let from = self.children.len();
        self.children.push(child);
        self.running += 1;
        let sender = self.sender.clone();
        thread::spawn(move || forward(output, from, &sender));
        Ok(())
    }

    fn stuck(&self, published: u64) -> String {
        let mut stuck = format!(
            "memory of {}: nothing was heard for {} s after message {published}: the run is stuck",
            self.whose.title(),
            SILENCE.as_secs()
        );
        if self.options.may_run_dry() {
            stuck += "; what the slow subscriber keeps may leave no gap that fits the next message";
        }
        stuck
    }
}

/// Forwards a process's news until its output ends, with the process.
fn forward(output: ChildStdout, from: usize, sender: &Sender<(usize, Option<News>)>) {
    // A failure to send means that the run has failed already, and no thread receives any more.
    for line in BufReader::new(output).lines() {
        let Ok(line) = line else {
            break;
        };
        match serde_json::from_str(&line) {
            Ok(news) => {
                let _ = sender.send((from, Some(news)));
            }
            // zenoh logs to standard output, too.
            Err(_) => eprintln!("{line}"),
        }
    }
    let _ = sender.send((from, None));
}

/// Fails if an object that any of the processes had mapped is still there.
fn check_for_leaks(processes: &[(String, Seen)]) -> Fallible {
    let mut left = BTreeSet::new();
    for (_, seen) in processes {
        for object in &seen.objects {
            if footprint::exists(object) {
                left.insert(object);
            }
        }
    }
    if left.is_empty() {
        return Ok(());
    }
    Err(format!("leak: left behind in /dev/shm: {left:?}").into())
}

/// Fails if a subscriber has more at the end than after the first tenth of the messages, apart from
/// one descriptor and one mapping for each segment that it has not needed before: it opens a
/// segment when the first message in it arrives, however long ago the pool made it.
fn check_growth(processes: &[(String, Seen)]) -> Fallible {
    let Some(((_, publisher), subscribers)) = processes.split_first() else {
        return Ok(());
    };
    // The first messages have opened at least one segment. zenoh's own provider reports none: it
    // has one from the start.
    let unopened = match publisher.figures.get("late segments") {
        Some(segments) => segments - 1.0,
        None => 0.0,
    };
    for (name, seen) in subscribers {
        // A subscriber that has joined later does not know what it had after a tenth.
        let missed = seen.figures.get("missed").copied();
        if missed.unwrap_or_default() > 0.0 {
            continue;
        }
        for what in ["descriptors", "mappings"] {
            let Some(more) = growth(&seen.figures, what) else {
                return Err(format!("{name} does not tell how many {what} it has").into());
            };
            if more.abs() > unopened {
                return Err(format!(
                    "{name} had {more:+} {what} at the end, compared with after a tenth of the \
                     messages, and {unopened} segments at most to open meanwhile"
                )
                .into());
            }
        }
    }
    Ok(())
}

/// Returns how much more a process has at the end than after the first tenth of the messages.
fn growth(figures: &Figures, what: &str) -> Option<f64> {
    let early = figures.get(&format!("early {what}"))?;
    let late = figures.get(&format!("late {what}"))?;
    Some(late - early)
}
