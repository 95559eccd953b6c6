//! How full the cap can be before a request is refused.
//!
//! There are two runs. One is always at its limit: each refused request waits until enough other
//! messages, picked at random, have been dropped. The other never uses more than a share of the
//! cap, and ends with the first refusal; the largest share without any is searched from above.

#![forbid(unsafe_code)]

use crate::stores::{check_ends, mark_ends, Pool, Store, Talc};
use fastrand::Rng;
use shm_pool_support::table::{show, table};
use shm_pool_support::units::grouped;
use shm_pool_support::Fallible;

/// The largest message, as fractions of the cap.
const PARTS: [usize; 5] = [4, 8, 16, 64, 256];

/// How lengths are drawn: the name, and a function that draws one up to a maximum.
type Draw = (&'static str, fn(&mut Rng, usize) -> usize);

const DRAWS: [Draw; 2] = [
    ("uniform", |random, most| random.usize(1..=most)),
    ("log-uniform", log_uniform),
];

/// The shortest message that is drawn log-uniformly.
const LEAST: usize = 64;

/// Each doubling is as likely as any other.
fn log_uniform(random: &mut Rng, most: usize) -> usize {
    let least = LEAST as f64;
    let most = most as f64;
    (least * (most / least).powf(random.f64())) as usize
}

/// The size of a run.
#[derive(Clone, Copy)]
pub(crate) struct Effort {
    /// Bytes under the cap.
    cap: usize,
    /// Messages of each run.
    messages: usize,
    /// Runs, each with different lengths.
    seeds: u64,
    /// Percent of the cap between two shares that are tried.
    step: usize,
}

impl Effort {
    pub(crate) fn quick() -> Self {
        Self {
            cap: 4 << 20,
            messages: 1_000,
            seeds: 1,
            step: 10,
        }
    }

    pub(crate) fn of(messages: usize, seeds: u64) -> Self {
        Self {
            cap: 64 << 20,
            messages,
            seeds,
            step: 1,
        }
    }
}

/// Runs every row without printing figures.
pub(crate) fn check(effort: Effort) -> Fallible {
    for row in rows(effort) {
        row.measure::<Pool>()?;
        row.measure::<Talc>()?;
    }
    println!(
        "{} messages of mixed sizes for each row that fills the cap: all as written",
        effort.messages
    );
    Ok(())
}

pub(crate) fn measure(effort: Effort) -> Fallible {
    println!(
        "How full the cap of {} MiB can be before a request is refused",
        effort.cap >> 20
    );
    println!(
        "{} messages, {} seeds; bytes asked for, in percent of the cap\n",
        grouped(effort.messages as u64),
        effort.seeds
    );
    let mut table = table(&[
        "sizes up to",
        "drawn",
        "first refusal, mean (least)",
        "refusals: least",
        "mean",
        "none up to",
        "talc: first refusal",
        "least",
        "mean",
        "none up to",
    ]);
    for row in rows(effort) {
        let mut cells = vec![format!("1/{}", row.part), row.drawn.to_owned()];
        cells.extend(row.measure::<Pool>()?.cells());
        cells.extend(row.measure::<Talc>()?.cells());
        table.add_row(cells);
        eprintln!("measured: {}, up to 1/{} of the cap", row.drawn, row.part);
    }
    show("at_the_cap fits", &table);
    println!("{NOTES}\n");
    Ok(())
}

const NOTES: &str = "\
first refusal  of messages into an empty pool, without any dropped:
               the mean and the least of the seeds
refusals       of a run that is always full, in which messages picked at random
               are dropped until the refused one fits:
               the memory in use then, without the refused message
none up to     the largest share of the cap, the new message included, that never
               saw a refusal in a run of all seeds in which messages picked
               at random are dropped to stay below it";

fn rows(effort: Effort) -> Vec<Row> {
    let mut rows = Vec::new();
    for (drawn, next) in DRAWS {
        for part in PARTS {
            rows.push(Row {
                effort,
                part,
                drawn,
                next,
            });
        }
    }
    rows
}

/// The messages of a row.
struct Row {
    effort: Effort,
    /// The largest message, as a fraction of the cap.
    part: usize,
    /// The name of the distribution.
    drawn: &'static str,
    next: fn(&mut Rng, usize) -> usize,
}

/// Bytes in use, as shares of the cap.
struct Outcome {
    first: Shares,
    refusals: Shares,
    /// The largest share without a refusal.
    none_up_to: Option<f64>,
}

/// Some shares of the cap, summed.
struct Shares {
    count: usize,
    sum: f64,
    least: f64,
}

impl Row {
    fn measure<S: Store>(&self) -> Fallible<Outcome> {
        let mut outcome = Outcome {
            first: Shares::none(),
            refusals: Shares::none(),
            none_up_to: None,
        };
        for seed in 0..self.effort.seeds {
            self.stay_full::<S>(seed, &mut outcome)?;
        }
        for percent in (1..=100).rev().step_by(self.effort.step) {
            let share = percent as f64 / 100.0;
            if self.all_fit::<S>(share)? {
                outcome.none_up_to = Some(share);
                break;
            }
        }
        Ok(outcome)
    }

    /// Allocates until the run is over; a refused request waits until other messages have been
    /// dropped.
    fn stay_full<S: Store>(&self, seed: u64, outcome: &mut Outcome) -> Fallible {
        let store = S::new(self.effort.cap)?;
        let mut random = Rng::with_seed(seed);
        let mut live = Live::<S>::default();
        let mut has_refused = false;
        for _ in 0..self.effort.messages {
            let len = (self.next)(&mut random, self.effort.cap / self.part);
            while !live.keep(&store, len)? {
                let share = live.bytes as f64 / self.effort.cap as f64;
                outcome.refusals.add(share);
                if !has_refused {
                    outcome.first.add(share);
                    has_refused = true;
                }
                live.drop_one(&mut random)?;
            }
        }
        live.drop_all(&mut random)
    }

    /// Never requests more than the share of the cap. Returns `false` if a request is refused.
    fn all_fit<S: Store>(&self, share: f64) -> Fallible<bool> {
        for seed in 0..self.effort.seeds {
            if !self.stays_below::<S>(share, seed)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn stays_below<S: Store>(&self, share: f64, seed: u64) -> Fallible<bool> {
        let store = S::new(self.effort.cap)?;
        let mut random = Rng::with_seed(seed);
        let most = (share * self.effort.cap as f64) as usize;
        let mut live = Live::<S>::default();
        for _ in 0..self.effort.messages {
            let len = (self.next)(&mut random, self.effort.cap / self.part);
            while live.bytes > 0 && live.bytes + len > most {
                live.drop_one(&mut random)?;
            }
            if !live.keep(&store, len)? {
                return Ok(false);
            }
        }
        live.drop_all(&mut random)?;
        Ok(true)
    }
}

impl Outcome {
    fn cells(&self) -> Vec<String> {
        let none_up_to = match self.none_up_to {
            Some(share) => percent(share),
            None => "refused at all".to_owned(),
        };
        let first = format!(
            "{} ({})",
            percent(self.first.mean()),
            percent(self.first.least)
        );
        vec![
            first,
            percent(self.refusals.least),
            percent(self.refusals.mean()),
            none_up_to,
        ]
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

impl Shares {
    fn none() -> Self {
        Self {
            count: 0,
            sum: 0.0,
            least: f64::INFINITY,
        }
    }

    fn add(&mut self, share: f64) {
        self.count += 1;
        self.sum += share;
        self.least = self.least.min(share);
    }

    fn mean(&self) -> f64 {
        self.sum / self.count as f64
    }
}

/// Live messages, each with the mark at its ends.
struct Live<'a, S: Store + 'a> {
    messages: Vec<(S::Memory<'a>, u8)>,
    /// The requested bytes, without the store's overhead.
    bytes: usize,
}

impl<S: Store> Default for Live<'_, S> {
    fn default() -> Self {
        Self {
            messages: Vec::new(),
            bytes: 0,
        }
    }
}

impl<'a, S: Store> Live<'a, S> {
    /// Returns `false` if the request is refused.
    fn keep(&mut self, store: &'a S, len: usize) -> Fallible<bool> {
        let Some(mut message) = store.alloc(len)? else {
            return Ok(false);
        };
        let mark = len as u8;
        mark_ends(&mut message, mark);
        self.messages.push((message, mark));
        self.bytes += len;
        Ok(true)
    }

    fn drop_one(&mut self, random: &mut Rng) -> Fallible {
        if self.messages.is_empty() {
            return Err("a message alone does not fit".into());
        }
        let (message, mark) = self
            .messages
            .swap_remove(random.usize(..self.messages.len()));
        self.bytes -= message.len();
        check_ends(&message, mark)
    }

    fn drop_all(&mut self, random: &mut Rng) -> Fallible {
        while !self.messages.is_empty() {
            self.drop_one(random)?;
        }
        Ok(())
    }
}
