//! What a request that cannot be served costs a thread that allocates: it waits for the whole cap,
//! of which one buffer is held, so that each release might serve it.

#![forbid(unsafe_code)]

use fastrand::Rng;
use shm_pool::Provider;
use shm_pool_support::table::{show, table};
use shm_pool_support::tasks::{noop_waker, poll_once};
use shm_pool_support::units::Nanoseconds;
use shm_pool_support::Fallible;
use std::pin::pin;
use std::time::Instant;

/// Bytes under the cap.
const CAP: usize = 64 << 20;

/// The share of its rate that a thread keeps which creates chunks, in percent.
const GOAL: f64 = 90.0;

/// Messages whose lengths are uniform up to `longest`.
struct Row {
    name: &'static str,
    longest: usize,
    /// Without idle chunks, each allocation creates a chunk, and each release destroys it.
    keeps_idle: bool,
}

const ROWS: [Row; 4] = [
    Row {
        name: "up to 8 KiB, reused",
        longest: 8 << 10,
        keeps_idle: true,
    },
    Row {
        name: "up to 200 KiB, reused",
        longest: 200 << 10,
        keeps_idle: true,
    },
    Row {
        name: "up to 3 MiB, most of them created",
        longest: 3 << 20,
        keeps_idle: true,
    },
    Row {
        name: "up to 200 KiB, all created",
        longest: 200 << 10,
        keeps_idle: false,
    },
];

/// The size of a run.
#[derive(Clone, Copy)]
pub(crate) struct Effort {
    /// Messages of each round.
    messages: u32,
    rounds: usize,
}

impl Effort {
    pub(crate) fn quick() -> Self {
        Self {
            messages: 100,
            rounds: 1,
        }
    }

    pub(crate) fn usual() -> Self {
        Self {
            messages: 20_000,
            rounds: 9,
        }
    }
}

/// Prints the table. Rounds with and without the wait take turns.
pub(crate) fn measure(effort: Effort) -> Fallible {
    println!("One message at a time, beside a request for the whole cap that waits\n");
    let mut table = table(&["lengths", "alone", "beside it", "of the rate", "goal"]);
    for row in ROWS {
        let (alone, beside) = row.measure(effort)?;
        let goal = if row.name.ends_with("created") {
            format!("{GOAL:.0} %")
        } else {
            String::new()
        };
        table.add_row([
            row.name.to_owned(),
            Nanoseconds(alone).to_string(),
            Nanoseconds(beside).to_string(),
            format!("{:.0} %", 100.0 * alone / beside),
            goal,
        ]);
    }
    show("at_the_cap waiter", &table);
    Ok(())
}

impl Row {
    /// Returns the median nanoseconds for a message without and with the wait.
    fn measure(&self, effort: Effort) -> Fallible<(f64, f64)> {
        let mut builder = Provider::builder().max_bytes(CAP);
        if !self.keeps_idle {
            builder = builder.max_idle_per_class(0);
        }
        let provider = builder.build()?;
        let held = provider.alloc(64)?;

        let mut random = Rng::with_seed(7);
        self.time(&provider, &mut random, effort)?;
        let mut alone = Vec::new();
        let mut beside = Vec::new();
        for _ in 0..effort.rounds {
            alone.push(self.time(&provider, &mut random, effort)?);

            let mut waiting = pin!(provider.request(CAP).wait_async());
            if poll_once(waiting.as_mut(), &noop_waker()).is_some() {
                return Err("there was room for the whole cap".into());
            }
            beside.push(self.time(&provider, &mut random, effort)?);
        }
        drop(held);
        Ok((median(alone), median(beside)))
    }

    /// Returns the nanoseconds for each message.
    fn time(&self, provider: &Provider, random: &mut Rng, effort: Effort) -> Fallible<f64> {
        let start = Instant::now();
        for _ in 0..effort.messages {
            drop(provider.alloc(random.usize(1..=self.longest))?);
        }
        Ok(start.elapsed().as_nanos() as f64 / f64::from(effort.messages))
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times[times.len() / 2]
}
