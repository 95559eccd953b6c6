//! The slowest allocation while a reader holds many chunks of the same class, which the pool skips
//! to find one that was released.

#![forbid(unsafe_code)]

use crate::PREFIX;
use hdrhistogram::Histogram;
use shm_pool::{Client, Provider, ShmBufMut, ShmView};
use shm_pool_support::latency::{at, histogram, Spread};
use shm_pool_support::table::table;
use shm_pool_support::units::Bytes;
use shm_pool_support::{clock, Fallible};
use std::collections::VecDeque;

const CAP: usize = 256 << 20;

/// Bytes of a chunk. The longer it is, the more chunks the pool looks at before it carves another.
const LENGTHS: [usize; 3] = [64, 4 << 10, 256 << 10];

/// Chunks that the slow reader holds.
const HELD: [usize; 4] = [0, 8, 64, 512];

/// Messages that another reader holds at a time.
const UNDER_WAY: usize = 8;

/// Many short rounds for each one elsewhere: in most of them no other thread gets the core, so the
/// median of their slowest is the pool's.
const SHORT_ROUNDS: u32 = 10;

/// Rounds of a row.
#[derive(Default)]
struct Row {
    slowest: Vec<f64>,
    carved: u64,
}

/// A few allocations of each row.
pub(crate) fn check() -> Fallible {
    for len in LENGTHS {
        for held in HELD {
            run(len, held, 200)?;
        }
        println!("{}, {HELD:?} chunks held: 200 allocations, no new segment", Bytes(len as u64));
    }
    Ok(())
}

pub(crate) fn measure(rounds: u32, count: usize) -> Fallible {
    let rounds = rounds * SHORT_ROUNDS;
    println!("\nAllocations while a reader holds chunks of the same class: in turn, {rounds} rounds of {count}\n");
    let mut table = table(&["", "held", "p50", "p99", "slowest, of the rounds", "chunks carved"]);
    for len in LENGTHS {
        let mut results = HELD.map(|_| (histogram(), Row::default()));
        for _ in 0..rounds {
            for (held, (all, row)) in HELD.iter().zip(&mut results) {
                let (waits, carved) = run(len, *held, count)?;
                all.add(&waits)?;
                row.slowest.push(waits.max() as f64);
                row.carved += carved;
            }
        }
        for (held, (all, row)) in HELD.iter().zip(&results) {
            table.add_row([
                Bytes(len as u64).to_string(),
                held.to_string(),
                at(all, 0.5),
                at(all, 0.99),
                Spread::of(&row.slowest).to_string(),
                row.carved.to_string(),
            ]);
        }
    }
    println!("{table}");
    Ok(())
}

/// Returns how long each allocation takes, and how many chunks were carved meanwhile.
fn run(len: usize, held: usize, count: usize) -> Fallible<(Histogram<u64>, u64)> {
    // The first segment has room for exactly what is needed.
    let needed = (held + UNDER_WAY + 1) * len;
    let provider = Provider::builder().name_prefix(PREFIX).max_bytes(CAP).arena_size(needed).build()?;
    let client = Client::builder().name_prefix(PREFIX).build()?;
    let read = |buffer: ShmBufMut| -> Fallible<ShmView> { Ok(client.attach(&buffer.freeze().descriptor()?)?) };
    let slow = (0..held).map(|_| read(provider.alloc(len)?)).collect::<Fallible<Vec<_>>>()?;
    let mut quick = (0..UNDER_WAY).map(|_| read(provider.alloc(len)?)).collect::<Fallible<VecDeque<_>>>()?;
    let mut waits = histogram();
    let before = provider.stats();
    for _ in 0..count {
        // From here on, one chunk is free.
        quick.pop_front();
        let asked = clock::now();
        let buffer = provider.alloc(len)?;
        waits.saturating_record(clock::now() - asked);
        quick.push_back(read(buffer)?);
    }
    drop(slow);
    let after = provider.stats();
    if after.segments_created != before.segments_created {
        let made = after.segments_created - before.segments_created;
        return Err(format!("{made} segments were made for {len} bytes while chunks were free, {held} held").into());
    }
    Ok((waits, after.misses() - before.misses()))
}
