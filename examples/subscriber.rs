//! Receives what `publisher` sends, before and after it is restarted. Run it in one terminal, and
//! `publisher` in another, in any order: `cargo run --example subscriber`.

use shm_pool::channel::Subscriber;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut subscriber = Subscriber::open("time")?;
    loop {
        let message = subscriber.recv()?; // read in place: a plain &[u8]
        let seconds = u64::from_le_bytes(message[..8].try_into()?);
        println!("{} bytes, at {seconds}", message.len());
    }
}
