//! The cost of an allocation, next to that of its parts and of the alternatives.
//!
//! Run with `cargo bench --bench shm_pool`; an argument filters, as in `cargo bench --bench
//! shm_pool -- warm/`. Each subject is a Criterion benchmark of the group `shm_pool`. Afterwards
//! the ratios that the crate promises are printed, each with its verdict. A missed goal is a result
//! and not an error: the exit code stays 0.

mod hand_off;
mod ratios;
mod subjects;

use criterion::{BenchmarkId, Criterion};
use ratios::Comparisons;
use shm_pool_support::process;
use std::time::Duration;

fn main() {
    if let Some(task) = process::task::<subjects::Inspect>() {
        return task.run().expect("/dev/shm and /proc");
    }
    let mut comparisons = Comparisons::begin();
    let mut criterion = Criterion::default().without_plots().configure_from_args();
    let mut group = criterion.benchmark_group("shm_pool");
    group
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .sample_size(50);
    for (id, build) in subjects::ALL {
        // Criterion calls the closure for every sample: its state is built once, and not at all if
        // filtered out.
        let mut batch = None;
        let mut is_measured = false;
        let (function, parameter) = id.split_once('/').expect("an id is function/parameter");
        group.bench_function(BenchmarkId::new(function, parameter), |bencher| {
            let batch = batch.get_or_insert_with(build);
            bencher.iter_custom(|count| {
                // A test runs each once.
                is_measured |= count > 1;
                batch(count).elapsed
            });
        });
        drop(batch);
        if is_measured {
            comparisons.add(id);
        }
    }
    group.finish();
    criterion.final_summary();
    comparisons.print();
}
