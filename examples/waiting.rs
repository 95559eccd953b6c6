//! Waiting for memory: at its cap, a publisher parks until a reader in any process releases some.
//!
//! Three forms: with a timeout, without one, and as a future for any executor. The reader is a
//! thread here; a peer in another process wakes the publisher in the same way. Run it with `cargo
//! run --example waiting`.

#![forbid(unsafe_code)]

use shm_pool::{AllocError, Client, Descriptor, Provider};
use std::error::Error;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Duration;

const FRAME: usize = 1 << 20;
const FRAMES: u8 = 50;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    // Two frames fit. The reader holds one while the publisher fills the next.
    let provider = Provider::builder().max_bytes(2 * FRAME).build()?;

    let held = [provider.alloc(FRAME)?, provider.alloc(FRAME)?];
    let late = provider
        .alloc_timeout(FRAME, Duration::from_millis(5))
        .unwrap_err();
    assert!(matches!(late, AllocError::TimedOut { .. }) && late.is_exhausted());
    println!("nothing was released: {late}");
    drop(held);

    let (publish, subscribed) = sync_channel::<Descriptor>(0);
    let (confirm, confirmed) = sync_channel(0);
    let reading = thread::spawn(move || -> Result<(), shm_pool::AttachError> {
        let client = Client::new();
        for (number, descriptor) in subscribed.iter().enumerate() {
            let view = client.attach(&descriptor)?;
            confirm.send(()).expect("the publisher waits for it");
            assert!(view.iter().all(|&byte| usize::from(byte) == number));
        } // each view is dropped here, and wakes the publisher if it waits
        Ok(())
    });
    for number in 0..FRAMES {
        let mut frame = match number % 2 {
            0 => provider.request(FRAME).wait()?,
            _ => provider.request(FRAME).wait_async().await?,
        };
        frame.fill(number);
        let message = frame.freeze();
        publish.send(message.descriptor()?)?;
        confirmed.recv()?; // from here on, the view's lease keeps the frame
    }
    drop(publish);
    reading.join().map_err(|_| "the reader panicked")??;
    println!("{FRAMES} frames through the memory of two, none dropped");
    Ok(())
}
