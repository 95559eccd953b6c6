//! The program itself: makes runs for each kind of memory, and prints the results side by side.
//!
//! A run is a publisher process and its subscriber processes. If one of them fails, or nothing is
//! heard for long, all are ended, so that no process waits for one that has exited.

use crate::footprint;
use crate::limits;
use crate::news::{Figures, News, Seen};
use crate::options::{subscriber_name, Options, Whose};
use crate::report::{self, Column};
use crate::{publisher, subscriber};
use serde::{Deserialize, Serialize};
use shm_pool_support::process::{end_with_parent, this_program, Child};
use shm_pool_support::Fallible;
use std::io::{self, BufRead, BufReader};
use std::ops::Range;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;
use zenoh::shm::cleanup_orphaned_shm_segments;

/// How long nothing may be heard of any process. They say something many times a second, unless
/// something is stuck.
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
    /// Does it.
    pub(crate) fn run(&self) -> Fallible {
        let Self { role, options } = self;
        // No other process would notify it that the others have exited.
        end_with_parent()?;
        limits::apply(options.memlock)?;
        match role {
            Role::Publisher { whose } => publisher::run(options, *whose),
            Role::Subscriber { index, endpoint } => subscriber::run(options, *index, endpoint),
        }
    }
}

/// Makes all runs, and prints what came out.
pub(crate) fn run(options: &Options) -> Fallible {
    options.check()?;
    options.apart().iter().try_for_each(|options| {
        report::print(options, &measure(options)?);
        Ok(())
    })
}

/// Makes those runs that are compared with each other.
fn measure(options: &Options) -> Fallible<Vec<Column>> {
    let mut columns: Vec<Column> = options
        .memory
        .iter()
        .map(|&whose| Column::new(whose))
        .collect();
    for round in 0..options.rounds {
        let mut in_turn: Vec<_> = columns.iter_mut().collect();
        // What else the machine does, now or later, meets all alike.
        if round % 2 == 1 {
            in_turn.reverse();
        }
        for column in in_turn {
            let outcome = Run::new(options, column.whose).conduct();
            // zenoh removes an object when the last process closes it in good order. A killed
            // process never does, and a receiving one keeps it open in globals until it exits, in no
            // defined order. So this is called when all have exited; it leaves alone the objects that
            // living processes have open.
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
    /// How many of them were killed.
    killed: u8,
    /// Whether the last one has received a message.
    has_joined: bool,
    /// What was heard of which of them; `None` when it says no more. Nothing closes its output but
    /// its end.
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
            killed: 0,
            has_joined: false,
            sender,
            news,
        }
    }

    /// Waits for all processes to tell what they have seen, and to end; or for the publisher to
    /// tell that it cannot begin.
    fn conduct(mut self) -> Fallible<Outcome> {
        self.start_task(Role::Publisher { whose: self.whose }, self.options.clone())?;
        let (mut running, mut published, mut endpoint) = (1, 0, String::new());
        let mut results = Vec::new();
        while running > 0 {
            let (from, news) = self
                .news
                .recv_timeout(SILENCE)
                .map_err(|_| self.stuck(published))?;
            match news {
                Some(News::Listening(at)) => {
                    endpoint = at;
                    self.start_subscribers(&endpoint)?;
                    running = self.children.len();
                }
                Some(News::Published(count)) => {
                    published = count;
                    self.kill_if_due(published)?;
                }
                Some(News::Joined) => self.has_joined |= from + 1 == self.children.len(),
                Some(News::TakenBack) => {
                    self.start_subscriber(self.options.subscribers + self.killed - 1, &endpoint)?;
                    running += 1;
                }
                Some(News::Refused(why)) => return Ok(Outcome::Refused(why)),
                Some(News::Done(seen)) => results.push((from, seen)),
                None => {
                    let was_killed = self.killed_children().contains(&from);
                    let child = &mut self.children[from];
                    let status = child.wait()?;
                    let is_done = status.success() && results.iter().any(|&(done, _)| done == from);
                    if !is_done && !was_killed {
                        return Err(format!(
                            "{} ended with {status}, and without a result",
                            child.name()
                        )
                        .into());
                    }
                    running -= 1;
                }
            }
        }
        if self.killed < self.options.kills {
            return Err(format!(
                "{} subscribers were killed when all was over: too few messages",
                self.killed
            )
            .into());
        }
        results.sort_by_key(|&(from, _)| from);
        let name = |from: usize| self.children[from].name().to_owned();
        Ok(Outcome::Finished(
            results
                .into_iter()
                .map(|(from, seen)| (name(from), seen))
                .collect(),
        ))
    }

    fn start_subscriber(&mut self, index: u8, endpoint: &str) -> Fallible {
        self.has_joined = false;
        let role = Role::Subscriber {
            index,
            endpoint: endpoint.to_owned(),
        };
        self.start_task(role, self.options.of_subscriber(index))
    }

    /// Kills the last subscriber, if it is time and it has something.
    fn kill_if_due(&mut self, published: u64) -> Fallible {
        let is_due = self
            .options
            .killed_after(self.killed)
            .is_some_and(|due| published >= due);
        if let Some(victim) = self
            .children
            .last_mut()
            .filter(|_| is_due && self.has_joined)
        {
            victim.kill()?;
            self.killed += 1;
            self.has_joined = false;
        }
        Ok(())
    }

    /// Those that were killed.
    fn killed_children(&self) -> Range<usize> {
        let first = usize::from(self.options.subscribers);
        first..first + usize::from(self.killed)
    }

    fn start_subscribers(&mut self, endpoint: &str) -> Fallible {
        for index in 0..self.options.subscribers {
            self.start_subscriber(index, endpoint)?;
        }
        let Options {
            python: Some(python),
            file,
            messages,
            sizes,
            subscribers: index,
            ..
        } = self.options
        else {
            return Ok(());
        };
        let sizes: Vec<_> = sizes.iter().map(usize::to_string).collect();
        let mut command = Command::new(python);
        command
            .arg(PYTHON_SUBSCRIBER)
            .arg("--file")
            .arg(file)
            .args(["--connect", endpoint])
            .args([
                format!("--messages={messages}"),
                format!("--sizes={}", sizes.join(",")),
                format!("--index={index}"),
            ]);
        self.start(&format!("subscriber {index} (Python)"), command)
    }

    fn start_task(&mut self, role: Role, options: Options) -> Fallible {
        let name = role.name();
        self.start(&name, this_program(&Task { role, options })?)
    }

    /// Starts a process, and passes on what it says.
    fn start(&mut self, name: &str, mut command: Command) -> Fallible {
        let named = |error: io::Error| format!("cannot start {name}: {error}");
        let (from, news) = (self.children.len(), self.sender.clone());
        let mut child = Child::start(name, command.stdin(Stdio::null()).stdout(Stdio::piped()))
            .map_err(named)?;
        let output = BufReader::new(child.output()?);
        self.children.push(child);
        // Ends with the output, that is, with the process.
        thread::spawn(move || {
            for line in output.lines().map_while(io::Result::ok) {
                match serde_json::from_str(&line) {
                    // If the run has failed already, no thread receives it.
                    Ok(said) => drop(news.send((from, Some(said)))),
                    // zenoh logs to standard output, too.
                    Err(_) => eprintln!("{line}"),
                }
            }
            let _ = news.send((from, None));
        });
        Ok(())
    }

    fn stuck(&self, published: u64) -> String {
        let (whose, seconds) = (self.whose.title(), SILENCE.as_secs());
        let stuck =
            format!("memory of {whose}: nothing was heard for {seconds} s after message {published}: the run is stuck");
        match self.options.may_run_dry() {
            true => {
                stuck
                    + "; what the slow subscriber keeps may leave no gap that fits the next message"
            }
            false => stuck,
        }
    }
}

/// Fails if an object that any of the processes had mapped is still there.
fn check_for_leaks(processes: &[(String, Seen)]) -> Fallible {
    let left = footprint::left(processes.iter().flat_map(|(_, seen)| &seen.objects));
    match left.is_empty() {
        true => Ok(()),
        false => Err(format!("leak: left behind in /dev/shm: {left:?}").into()),
    }
}

/// Fails if a subscriber has more at the end than after the first tenth of the messages, apart from
/// one descriptor and one mapping for each segment that it has not needed before: it opens a segment
/// when the first message in it arrives, however long ago the pool made it.
fn check_growth(processes: &[(String, Seen)]) -> Fallible {
    let growth = |figures: &Figures, what: &str| {
        let of = |when| figures.get(&format!("{when} {what}"));
        Some(of("late")? - of("early")?)
    };
    // zenoh's own provider reports none: it has one segment from the start. The first messages have
    // opened at least one.
    let segments = processes
        .first()
        .and_then(|(_, publisher)| publisher.figures.get("late segments"));
    let unopened = segments.map_or(0.0, |segments| segments - 1.0);
    // Who came later cannot tell what there was after a tenth.
    let from_the_start = |seen: &Seen| seen.figures.get("missed").copied().unwrap_or(0.0) == 0.0;
    for (name, seen) in processes
        .iter()
        .skip(1)
        .filter(|(_, seen)| from_the_start(seen))
    {
        for what in ["descriptors", "mappings"] {
            let more = growth(&seen.figures, what);
            let more =
                more.ok_or_else(|| format!("{name} does not tell how many {what} it has"))?;
            if more.abs() > unopened {
                return Err(format!(
                    "{name} had {more:+} {what} at the end, compared with after a tenth of the messages, and {unopened} \
                     segments at most to open meanwhile"
                )
                .into());
            }
        }
    }
    Ok(())
}
