//! Publishes the time, once a second. Run it in one terminal, and `subscriber` in another, in any
//! order: `cargo run --example publisher`.

use shm_pool::channel::Publisher;
use shm_pool::Provider;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let provider = Provider::builder().build()?;
    let mut publisher = Publisher::create(&provider, "time")?;
    loop {
        let time = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let mut buffer = publisher.alloc(1 << 20)?; // a megabyte, which is not copied
        buffer.fill(0);
        buffer[..8].copy_from_slice(&time.as_secs().to_le_bytes());

        let sent = publisher.send(buffer)?;
        println!("sent to {} subscribers", sent.receivers);
        std::thread::sleep(Duration::from_secs(1));
    }
}
