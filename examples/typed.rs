//! Typed messages: structs are written in place in shared memory, and read in place (feature
//! `zerocopy`). Nothing is encoded or copied, and no `unsafe` is needed.
//!
//! Publisher and subscriber are in one process here; `camera_imu` has several. Run it with
//! `cargo run --features zerocopy --example typed`.

#![forbid(unsafe_code)]

use shm_pool::channel::{ChannelError, Publisher, Subscriber};
use shm_pool::{message_type, Provider};
use std::error::Error;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

message_type! {
    /// A laser scan. `repr(C)` fixes the layout, so that both sides agree on it. The derives refuse
    /// what must not be shared between processes: references and padding.
    #[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
    #[repr(C)]
    struct Scan {
        stamp_ns: u64,
        angle_min: f32,
        angle_step: f32,
        ranges: [f32; 1024],
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let provider = Provider::builder().build()?;
    let name = format!("scan-{}", std::process::id());
    let mut publisher = Publisher::<Scan>::create_typed(&provider, &name)?;
    let mut subscriber = Subscriber::<Scan>::open_typed(&name)?;
    for stamp_ns in 0..10 {
        let mut scan = publisher.alloc_value_zeroed()?; // in shared memory
        scan.stamp_ns = stamp_ns;
        scan.angle_min = -1.57;
        scan.angle_step = 0.003;
        scan.ranges.fill(stamp_ns as f32);
        publisher.send(scan)?;

        let scan = subscriber.recv()?;
        assert_eq!(scan.stamp_ns, stamp_ns);
        assert_eq!(scan.ranges, [stamp_ns as f32; 1024]);
    }

    // A program with another definition is refused when it opens the channel.
    let other = Subscriber::<u64>::open_typed(&name);
    assert!(matches!(&other, Err(ChannelError::TypeMismatch { .. })));
    println!(
        "10 scans written and read in place; {}",
        other.expect_err("another type")
    );
    Ok(())
}
