//! A burst, followed by small steady traffic: the memory that the provider still holds, and the
//! memory returned to the system.

#![forbid(unsafe_code)]

use crate::PREFIX;
use shm_pool::{Namespace, Provider, ShmBytes};
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
        let blocks = procfs::objects(&format!("{PREFIX}.{}", provider.id()))
            .iter()
            .map(|name| Ok(fs::metadata(format!("{OBJECTS}/{name}"))?.blocks()))
            .sum::<Fallible<u64>>()?;
        Ok(Self {
            provider: provider.stats().bytes_held as u64,
            system: blocks * 512,
        })
    }
}

/// A smaller burst.
pub(crate) fn check() -> Fallible {
    let moments = run(32 << 20)?;
    println!("a burst of 32 MiB: {} looks at what is held", moments.len());
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
        let part = |of: fn(&Held) -> u64| {
            (of(held) as f64 - of(&before) as f64) / (of(&peak) - of(&before)) as f64
        };
        let left = part(|held| held.provider).max(part(|held| held.system));
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

/// Returns what is held at several moments.
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
    (0..IN_USE).try_for_each(|_| publish())?;
    let mut moments = vec![("before".to_owned(), Held::by(&provider)?)];
    let all = (0..burst / CHUNK)
        .map(|_| Ok(provider.alloc(CHUNK)?.freeze()))
        .collect::<Fallible<Vec<ShmBytes>>>()?;
    let peak = Held::by(&provider)?;
    if peak.provider.min(peak.system) < burst as u64 {
        return Err(format!("a burst of {burst} bytes holds only {peak:?}").into());
    }
    moments.push(("at the peak".to_owned(), peak));
    drop(all);
    let mut published = 0;
    for after in AFTER {
        (published..after).try_for_each(|_| publish())?;
        published = after;
        moments.push((
            format!("after {} small messages", grouped(after)),
            Held::by(&provider)?,
        ));
    }
    Ok(moments)
}
