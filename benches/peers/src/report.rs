//! The tables.

use crate::footprint::Footprint;
use crate::measure::{Row, Spread};
use std::fmt;

/// The rows of one message length.
pub(crate) struct Sized {
    pub(crate) len: usize,
    pub(crate) name: &'static str,
    pub(crate) rows: Vec<Row>,
}

pub(crate) fn print_rows(title: &str, rows: &[Row]) {
    println!("{title:<36} {:>10} {:>10} {:>10}", "median", "min", "max");
    for Row { name, spread } in rows {
        match spread {
            Ok(Spread { median, min, max }) => {
                println!(
                    "  {name:<34} {:>10} {:>10} {:>10}",
                    Nanoseconds(*median),
                    Nanoseconds(*min),
                    Nanoseconds(*max)
                );
            }
            Err(reason) => println!("  {name:<34} cannot: {reason}"),
        }
    }
    println!();
}

pub(crate) fn print_footprints(footprints: &[Footprint]) {
    println!(
        "{:<36} {:>10} {:>10} {:>10}   by its own account",
        "mixture, most memory in MiB", "mapped", "resident", "private"
    );
    for Footprint { name, memory, account } in footprints {
        match memory {
            Ok(memory) => {
                let [mapped, resident, private] = [memory.mapped, memory.resident, memory.private].map(mib);
                println!("  {name:<34} {mapped:>10.1} {resident:>10.1} {private:>10.1}   {account}");
            }
            Err(reason) => println!("  {name:<34} cannot: {reason}"),
        }
    }
    println!();
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// A time with a unit that suits it.
pub(crate) struct Nanoseconds(pub(crate) f64);

impl fmt::Display for Nanoseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            ns if ns < 100.0 => format!("{ns:.1} ns"),
            ns if ns < 1e4 => format!("{ns:.0} ns"),
            ns if ns < 1e6 => format!("{:.1} µs", ns / 1e3),
            ns => format!("{:.1} ms", ns / 1e6),
        };
        f.pad(&text)
    }
}
