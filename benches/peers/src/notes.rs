//! What is compared, what is not, and how; printed above the tables.

use crate::measure::Effort;
use crate::workload::{FRAME, LIVE};
use crate::zenoh_peers::SEGMENT;

const NOTES: &str = "\
Compared is what the publishing process pays to get memory for a message and to give it back. Not compared: sending,
receiving, the first message of a length. Nothing is logged, and everybody is warm before the clock starts.
  zenoh      Its provider gets memory back only when it collects garbage: by its policy when an allocation fails, or when
             our backend asks for it, and here also at the end of each batch, within the time. Its thread that
             confirms live messages runs on the other core, uncounted. Bare: alloc and free of the backend alone.
  iceoryx2   Loans a sample and drops it unsent; its service has room for one subscriber, and there is none.
  malloc     Gives private memory: a floor and not a rival. The process has threads, so malloc locks.";

pub(crate) fn print(effort: Effort) {
    let (segment, frame) = (SEGMENT >> 20, FRAME as f64 / 1e6);
    println!("rounds   {}, of the mixture {}; all in turn in each\n", effort.rounds, effort.mixed_rounds);
    println!("{NOTES}");
    println!("Everybody has {segment} MiB: zenoh's backends as one segment, ours as a cap; iceoryx2 what it needs.");
    println!(
        "Mixture: of eight messages about one is a camera frame ({frame:.0} MB), one a point cloud (0.75 to 1.25 MB)"
    );
    println!(
        "and six are telemetry (100 to 4000 B), in one pseudo-random order for all; {LIVE} live at a time, every byte"
    );
    println!("written, and its ends compared before it is dropped.\n");
}
