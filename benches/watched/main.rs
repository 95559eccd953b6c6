//! What a provider and a channel cost while another process inspects them, as `shm-pool top` does.
//!
//! ```text
//! cargo bench --bench watched
//! cargo bench --bench watched -- --interval 100
//! ```
//!
//! Another process inspects everything, as often as `top` does by default. Each round has three
//! parts of the same length: unwatched; unwatched again; watched. The difference between the first
//! two is noise. Times are of batches of this process alone, on a separate core if the machine has
//! two: the median, and the 99th percentile, which shows what affects only a few of them, as an
//! inspection does.

#![forbid(unsafe_code)]

use clap::Parser;
use shm_pool::channel::{Receiver, Sender};
use shm_pool::inspect::Inspector;
use shm_pool::{Client, Provider};
use shm_pool_support::machine::{pin, Cores, Machine};
use shm_pool_support::options::Quick;
use shm_pool_support::table::{table, Goal};
use shm_pool_support::units::Nanoseconds;
use shm_pool_support::Fallible;
use std::env;
use std::hint::black_box;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Allocates and sends, watched and not.
#[derive(Parser)]
struct Options {
    #[command(flatten)]
    quick: Quick,
    /// How often each part is measured; medians and ranges are over the batches of all rounds
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Milliseconds from one inspection to the next
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    interval: u64,
}

/// The same in each run, so that the next run removes what a killed one leaves.
const PREFIX: &str = "shm-pool-watched";

/// Makes this program the watcher.
const WATCHER: &str = "SHM_POOL_WATCHER";

const LEN: usize = 64 << 10;

/// How many operations a batch has: some 10 to 100 µs, far less than an inspection takes.
const BATCH: u32 = 256;

/// Whether the watcher is inspecting.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    Alone,
    AloneAgain,
    Watched,
}

const PARTS: [Part; 3] = [Part::Alone, Part::AloneAgain, Part::Watched];

type Operation = fn(&mut Scene) -> Fallible;

const OPERATIONS: [(&str, Operation); 3] =
    [("alloc, drop", Scene::alloc), ("alloc, share, attach, drop both", Scene::share), ("send, receive", Scene::send)];

/// Nanoseconds per operation of each batch, by operation.
type Times = [Vec<f64>; OPERATIONS.len()];

fn main() -> Fallible {
    if let Ok(interval) = env::var(WATCHER) {
        return watch(Duration::from_secs_f64(interval.parse()?));
    }
    let options = Options::parse();
    let interval = Duration::from_millis(options.interval);
    let (rounds, each) = match options.quick.quick {
        true => (1, interval * 5 / 2),
        false => (options.rounds, interval * 2),
    };
    let machine = Machine::now();
    let cores = Cores::choose()?;
    // The watcher must not inherit a core: it starts before this thread is pinned to one.
    let mut watcher = Watcher::start(interval)?;
    pin(cores.first())?;
    let mut times = <[Times; PARTS.len()]>::default();
    let mut scene = Scene::new()?;
    let mut looks = 0;
    for _ in 0..rounds {
        for (part, times) in PARTS.iter().zip(&mut times) {
            match part {
                Part::Watched => looks += watcher.while_it_looks(|| scene.measure(each, times))?,
                Part::Alone | Part::AloneAgain => scene.measure(each, times)?,
            }
        }
    }
    watcher.end()?;
    if looks < 2 * u64::from(rounds) {
        return Err(format!("only {looks} looks in {rounds} rounds").into());
    }
    if options.quick.quick {
        println!("{} operations while somebody looked {looks} times", OPERATIONS.len());
        return Ok(());
    }
    machine.print("CLOCK_MONOTONIC", "one pinned, the one that looks is not");
    println!("messages of 64 KiB; {looks} looks, one every {} ms\n", options.interval);
    print(&times);
    Ok(())
}

/// The objects that the operations use.
struct Scene {
    provider: Provider,
    client: Client,
    sender: Sender,
    receiver: Receiver,
}

impl Scene {
    fn new() -> Fallible<Self> {
        let provider = Provider::builder().name_prefix(PREFIX).build()?;
        let client = Client::builder().name_prefix(PREFIX).build()?;
        let sender = Sender::create(&provider, "watched")?;
        let receiver = Receiver::open(&client, "watched")?;
        Ok(Self { provider, client, sender, receiver })
    }

    fn alloc(&mut self) -> Fallible {
        black_box(self.provider.alloc(black_box(LEN))?);
        Ok(())
    }

    fn share(&mut self) -> Fallible {
        let message = self.provider.alloc(black_box(LEN))?.freeze();
        black_box(self.client.attach(&message.descriptor()?)?);
        Ok(())
    }

    fn send(&mut self) -> Fallible {
        self.sender.send(self.provider.alloc(black_box(LEN))?.freeze())?;
        black_box(self.receiver.recv()?);
        Ok(())
    }

    /// Runs a batch of each operation in turn, for `each`.
    fn measure(&mut self, each: Duration, times: &mut Times) -> Fallible {
        let start = Instant::now();
        while start.elapsed() < each {
            for ((_, operation), times) in OPERATIONS.iter().zip(times.iter_mut()) {
                let begin = Instant::now();
                for _ in 0..BATCH {
                    operation(self)?;
                }
                times.push(begin.elapsed().as_nanos() as f64 / f64::from(BATCH));
            }
        }
        Ok(())
    }
}

fn print(times: &[Times; PARTS.len()]) {
    let mut rows = table(&["", "alone", "alone, again", "watched", "/ alone", "noise", "goal", ""]);
    for (quantile, of) in [(0.5, "p50"), (0.99, "p99")] {
        for (index, (name, _)) in OPERATIONS.iter().enumerate() {
            let at = |part: usize| percentile(&times[part][index], quantile);
            let (alone, again, watched) = (at(0), at(1), at(2));
            let (ratio, noise) = (watched * 2.0 / (alone + again), ratio(again, alone));
            let goal = if quantile == 0.5 { Goal::AtMost(1.02) } else { Goal::None };
            rows.add_row([
                format!("{name}: {of}"),
                Nanoseconds(alone).to_string(),
                Nanoseconds(again).to_string(),
                Nanoseconds(watched).to_string(),
                format!("{ratio:.3}"),
                format!("{noise:.3}"),
                goal.to_string(),
                goal.verdict(ratio).to_owned(),
            ]);
        }
    }
    println!("{rows}");
}

fn percentile(times: &[f64], quantile: f64) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get((sorted.len() as f64 * quantile) as usize).copied().unwrap_or(f64::NAN)
}

/// The ratio of the larger one to the smaller one.
fn ratio(one: f64, other: f64) -> f64 {
    one.max(other) / one.min(other)
}

/// The watching process. It inspects between one line and the next.
struct Watcher {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Watcher {
    fn start(interval: Duration) -> Fallible<Self> {
        let mut command = Command::new(env::current_exe()?);
        command.env(WATCHER, interval.as_secs_f64().to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let (to, from) = child.stdin.take().zip(child.stdout.take()).ok_or("pipes were asked for")?;
        Ok(Self { child, to, from: BufReader::new(from) })
    }

    /// Runs `body` between the first inspection and the last. Returns the number of inspections.
    fn while_it_looks(&mut self, body: impl FnOnce() -> Fallible) -> Fallible<u64> {
        self.say()?;
        self.hear()?;
        body()?;
        self.say()?;
        Ok(self.hear()?.trim().parse()?)
    }

    fn hear(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        Ok(line)
    }

    fn say(&mut self) -> io::Result<()> {
        self.to.write_all(b"\n").and_then(|()| self.to.flush())
    }

    fn end(mut self) -> Fallible {
        drop(self.to);
        self.child.wait()?;
        Ok(())
    }
}

/// Inspects everything at each interval, between one line and the next.
fn watch(interval: Duration) -> Fallible {
    pin(Cores::choose()?.second())?;
    let (lines, told) = mpsc::channel();
    thread::spawn(move || io::stdin().lines().map_while(Result::ok).try_for_each(|_| lines.send(())));
    let mut inspector = Inspector::new();
    while told.recv().is_ok() {
        let (mut next, mut looks) = (Instant::now(), 0_u64);
        loop {
            black_box(inspector.look()?);
            looks += 1;
            if looks == 1 {
                println!();
            }
            next += interval;
            match told.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                _ => break,
            }
        }
        println!("{looks}");
    }
    Ok(())
}
