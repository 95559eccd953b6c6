//! A provider's metrics for monitoring, as Prometheus text: memory by class, and how much each peer
//! leases. Serve this string by any HTTP server that the program has. Run it with `cargo run
//! --example metrics`.

#![forbid(unsafe_code)]

use shm_pool::{Client, Provider};
use std::error::Error;
use std::fmt::{Display, Write};

/// A metric with its samples, each with its labels.
fn metric<V: Display>(
    text: &mut String,
    kind: &str,
    name: &str,
    help: &str,
    samples: &[(String, V)],
) {
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "# HELP shm_pool_{name} {help}\n# TYPE shm_pool_{name} {kind}"
    );
    for (labels, value) in samples {
        let _ = writeln!(text, "shm_pool_{name}{{{labels}}} {value}");
    }
}

fn export(provider: &Provider) -> Result<String, Box<dyn Error>> {
    let stats = provider.stats();
    let report = provider.report()?;
    let own = format!("provider=\"{}\"", provider.id());
    let mut text = String::new();

    let bytes = [
        (format!("{own},of=\"cap\""), stats.max_bytes),
        (format!("{own},of=\"held\""), stats.bytes_held),
        (format!("{own},of=\"in_use\""), stats.bytes_in_use),
        (format!("{own},of=\"leased\""), stats.bytes_leased),
    ];
    metric(
        &mut text,
        "gauge",
        "bytes",
        "Bytes of shared memory.",
        &bytes,
    );

    let mut idle = Vec::new();
    for class in &stats.classes {
        idle.push((format!("{own},class=\"{}\"", class.size), class.idle));
    }
    metric(
        &mut text,
        "gauge",
        "idle_chunks",
        "Chunks that are free to be used again.",
        &idle,
    );

    let hits = [(own.clone(), stats.hits())];
    metric(
        &mut text,
        "counter",
        "hits_total",
        "Allocations served by an existing chunk.",
        &hits,
    );

    let misses = [(own.clone(), stats.misses())];
    metric(
        &mut text,
        "counter",
        "misses_total",
        "Allocations that created a chunk.",
        &misses,
    );

    let mut peers = Vec::new();
    for peer in &report.peers {
        let process = match &peer.process {
            Some(process) => process.id,
            None => 0, // not visible
        };
        let labels = format!("{own},slot=\"{}\",pid=\"{process}\"", peer.slot);
        peers.push((labels, peer.bytes));
    }
    metric(
        &mut text,
        "gauge",
        "peer_bytes",
        "Bytes of the messages that a peer leases.",
        &peers,
    );
    Ok(text)
}

fn main() -> Result<(), Box<dyn Error>> {
    let provider = Provider::builder().max_bytes(1 << 20).build()?;
    let client = Client::new();
    let message = provider.alloc(1_000)?.freeze();
    let view = client.attach(&message.descriptor()?)?;
    let text = export(&provider)?;
    print!("{text}");
    assert!(text.contains("of=\"held\"} ") && text.contains("slot=\"0\",pid="));
    drop(view);
    Ok(())
}
