//! Request and response: a client and a server with a channel in each direction.
//!
//! A request is a buffer that the server reads in place. Responses arrive in the order of the
//! requests. For several clients, give each one two channels of its own, and let the server wait for
//! all requests at a time, as in the example `many_producers`. Run it with `cargo run --example
//! request_response`.

#![forbid(unsafe_code)]

use shm_pool::channel::{Receiver, RecvError, Sender};
use shm_pool::Provider;
use std::error::Error;
use std::process::Command;
use std::time::Duration;

const REQUESTS: u64 = 100;
const LEN: usize = 1 << 20;
/// Long enough for a busy machine to start a process.
const TIMEOUT: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn Error>> {
    // The program starts itself again as the server, with the service's name as its argument.
    match std::env::args().nth(1) {
        Some(service) => serve(&service),
        None => request(&format!("sum-{}", std::process::id())),
    }
}

/// Answers each request with the sum of its bytes.
fn serve(service: &str) -> Result<(), Box<dyn Error>> {
    let provider = Provider::builder().build()?;
    let mut responses = Sender::create(&provider, &format!("{service}/response"))?;
    let mut requests = Receiver::builder().open_timeout(&format!("{service}/request"), TIMEOUT)?;
    loop {
        let request = match requests.recv() {
            Ok(request) => request,
            Err(RecvError::Disconnected) => return Ok(()), // the client has ended
            Err(error) => return Err(error.into()),
        };
        let mut sum = 0;
        for byte in &request {
            sum += u64::from(*byte);
        }
        responses.send_copy(&sum.to_le_bytes())?;
    }
}

fn request(service: &str) -> Result<(), Box<dyn Error>> {
    let provider = Provider::builder().build()?;
    let mut requests = Sender::create(&provider, &format!("{service}/request"))?;
    let mut server = Command::new(std::env::current_exe()?)
        .arg(service)
        .spawn()?;
    let mut responses =
        Receiver::builder().open_timeout(&format!("{service}/response"), TIMEOUT)?;

    for number in 0..REQUESTS {
        let mut request = requests.alloc(LEN)?;
        request.fill(number as u8);
        requests.send(request)?;

        // A server that is killed ends this wait, too, with `Disconnected`.
        let response = responses.recv_timeout(TIMEOUT)?;
        let sum = u64::from_le_bytes(response[..].try_into()?);
        assert_eq!(sum, number * LEN as u64);
    }

    drop(requests);
    assert!(server.wait()?.success());
    println!("{REQUESTS} requests of {LEN} bytes were answered");
    Ok(())
}
