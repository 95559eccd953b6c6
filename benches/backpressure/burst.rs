//! A burst, followed by small steady traffic: the memory that the provider still holds, and the
//! memory returned to the system.

#![forbid(unsafe_code)]

use crate::PREFIX;
use shm_pool::{Namespace, Provider};
use shm_pool_support::procfs::{self, OBJECTS};
use shm_pool_support::table::{show, table, Goal};
use shm_pool_support::units::{grouped, Bytes};
use shm_pool_support::Fallible;
use std::collections::VecDeque;
use std::fs;
use std::os::unix::fs::MetadataExt;

const BURST: usize = 1 << 30;
const CHUNK: usize = 1 << 20;

/// Bytes of the steady messages, and how many of them are in use at a time.
const SMALL: usize = 4 << 10;
const IN_USE: usize = 4;

/// When the memory is measured, in small messages after the burst.
const AFTER: [u64; 4] = [0, 1_000, 100_000, 1_000_000];

/// All but a hundredth of the burst is returned to the system.
const BACK: Goal = Goal::AtMost(0.01);

/// The memory of a provider.
#[derive(Clone, Copy, Debug)]
struct Held {
    /// By its own account.
    provider: u64,
    /// By the file system's.
    system: u64,
}

impl Held {
    fn by(provider: &Provider) -> Fallible<Self> {
        let mut blocks = 0;
        for name in procfs::objects(&format!("{PREFIX}.{}", provider.id())) {
            blocks += fs::metadata(format!("{OBJECTS}/{name}"))?.blocks();
        }
        Ok(Self {
            provider: provider.stats().bytes_held as u64,
            system: blocks * 512,
        })
    }
}

/// A smaller burst.
pub(crate) fn check() -> Fallible {
    let moments = run(32 << 20)?;
    println!("a burst of 32 MiB: memory measured {} times", moments.len());
    Ok(())
}

pub(crate) fn measure() -> Fallible {
    println!(
        "\nA burst of {}, then messages of {}, {IN_USE} in use\n",
        Bytes(BURST as u64),
        Bytes(SMALL as u64)
    );
    let moments = run(BURST)?;
    let [(_, before), (_, peak), ..] = moments[..] else {
        return Err("there is a before and a peak".into());
    };
    let mut rows = table(&[
        "",
        "provider holds",
        "objects in /dev/shm",
        "of the burst",
        "goal",
        "",
    ]);
    for (index, (name, held)) in moments.iter().enumerate() {
        let left_by_provider = share(held.provider, before.provider, peak.provider);
        let left_by_system = share(held.system, before.system, peak.system);
        let left = left_by_provider.max(left_by_system);
        let goal = if index + 1 == moments.len() {
            BACK
        } else {
            Goal::None
        };
        rows.add_row([
            name.clone(),
            Bytes(held.provider).to_string(),
            Bytes(held.system).to_string(),
            format!("{left:.3}"),
            goal.to_string(),
            goal.verdict(left).to_owned(),
        ]);
    }
    show("backpressure burst", &rows);
    Ok(())
}

/// Returns how much of a burst is still held, as a share of it.
fn share(held: u64, before: u64, peak: u64) -> f64 {
    (held as f64 - before as f64) / (peak - before) as f64
}

/// Returns the memory that is held, at several moments.
fn run(burst: usize) -> Fallible<Vec<(String, Held)>> {
    let provider = Provider::builder()
        .namespace(&Namespace::new(PREFIX).unwrap())
        .max_bytes(2 * burst)
        .build()?;
    let mut in_use = VecDeque::with_capacity(IN_USE);
    let mut publish = || -> Fallible {
        if in_use.len() == IN_USE {
            in_use.pop_front();
        }
        in_use.push_back(provider.alloc(SMALL)?.freeze());
        Ok(())
    };
    for _ in 0..IN_USE {
        publish()?;
    }
    let mut moments = vec![("before".to_owned(), Held::by(&provider)?)];

    let mut all = Vec::new();
    for _ in 0..burst / CHUNK {
        all.push(provider.alloc(CHUNK)?.freeze());
    }
    let peak = Held::by(&provider)?;
    if peak.provider.min(peak.system) < burst as u64 {
        return Err(format!("a burst of {burst} bytes holds only {peak:?}").into());
    }
    moments.push(("at the peak".to_owned(), peak));
    drop(all);

    let mut published = 0;
    for after in AFTER {
        while published < after {
            publish()?;
            published += 1;
        }
        let name = format!("after {} small messages", grouped(after));
        moments.push((name, Held::by(&provider)?));
    }
    Ok(moments)
}
