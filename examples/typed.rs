//! Typed messages: a struct is written in place in shared memory, and read in place, by `zerocopy`.
//!
//! Nothing is encoded or copied, and no `unsafe` is needed. Publisher and subscriber are in one
//! process here; `unix_socket` shows two. Run it with `cargo run --example typed`.

#![forbid(unsafe_code)]

use shm_pool::{Client, Descriptor, Provider};
use std::alloc::Layout;
use std::error::Error;
use std::mem::size_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A laser scan. `repr(C)` fixes the layout, so that both sides agree on it. The derives refuse
/// what must not be shared between processes: references, types for which some bytes are invalid,
/// and padding.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Scan {
    stamp_ns: u64,
    angle_min: f32,
    angle_step: f32,
    ranges: [f32; 1024],
}

fn main() -> Result<(), Box<dyn Error>> {
    let provider = Provider::builder().build()?;
    let client = Client::new();
    for stamp_ns in 0..10 {
        // Every buffer is aligned to 64 bytes at least, in every process: enough for each primitive
        // type. A layout asks for the alignment of the type, which may be up to 4096.
        let mut buffer = provider.alloc_layout(Layout::new::<Scan>())?;
        // The same bytes, as a struct. Length and alignment are checked, and nothing is written.
        let scan = Scan::mut_from_bytes(&mut buffer).map_err(|error| error.to_string())?;
        // A buffer from the pool still contains an earlier message: fill in every field.
        scan.stamp_ns = stamp_ns;
        (scan.angle_min, scan.angle_step) = (-1.57, 0.003);
        for (range, at) in scan.ranges.iter_mut().zip(0u16..) {
            *range = f32::from(at) * 0.5;
        }
        let message = buffer.freeze();
        let sent = message.descriptor()?.to_bytes();

        let view = client.attach(&Descriptor::from_bytes(sent)?)?;
        // Bytes of another length would be an error here, regardless of the sender.
        let scan = Scan::ref_from_bytes(&view).map_err(|error| error.to_string())?;
        assert_eq!(scan.stamp_ns, stamp_ns);
        assert!(scan.ranges.iter().zip(0u16..).all(|(&range, at)| range == f32::from(at) * 0.5));
        assert_eq!(scan.as_bytes().as_ptr(), view.as_ptr(), "read in place, not copied");
    }
    println!("10 scans of {} bytes, written and read in place", size_of::<Scan>());
    Ok(())
}
