//! Awaiting channels: one task receives frames and commands, from two channels, and ends when both
//! are closed.
//!
//! The publisher is a task of another thread; one in another process is awaited in the same way.
//! Run it with `cargo run --example awaiting`.

#![forbid(unsafe_code)]

use shm_pool::channel::{Receiver, RecvError, Sender};
use shm_pool::Provider;
use std::error::Error;
use std::thread;

const FRAMES: u8 = 50;
const LEN: usize = 1 << 20;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let frames_name = format!("example-frames-{}", std::process::id());
    let commands_name = format!("example-commands-{}", std::process::id());
    let provider = Provider::builder().max_bytes(4 * LEN).build()?;
    let mut frames_out = Sender::builder()
        .capacity(2)
        .create(&provider, &frames_name)?;
    let mut commands_out = Sender::create(&provider, &commands_name)?;
    let mut frames = Receiver::open(&frames_name)?;
    let mut commands = Receiver::open(&commands_name)?;

    let publishing = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            for number in 0..FRAMES {
                let mut frame = provider.request(LEN).wait_async().await.expect("memory");
                frame.fill(number);
                frames_out.send_async(frame).await.expect("a receiver");
                if number % 10 == 0 {
                    commands_out
                        .send_copy_async(b"keep this one")
                        .await
                        .expect("a receiver");
                }
            }
        });
        (provider, frames_out) // kept until everything was received
    });

    let mut received = 0;
    let mut kept = 0;
    let mut is_commanded = true;
    while received < FRAMES || is_commanded {
        // The branch that is not taken loses no message: its future can be dropped at any time.
        tokio::select! {
            frame = frames.recv_async(), if received < FRAMES => {
                assert!(frame?[..] == [received; LEN], "frame {received} is not what was sent");
                received += 1;
            }
            command = commands.recv_async(), if is_commanded => match command {
                Ok(_) => kept += 1,
                Err(RecvError::Disconnected) => is_commanded = false,
                Err(error) => return Err(error.into()),
            },
        }
    }
    drop(publishing.join());
    println!("{received} frames and {kept} commands, by one task");
    Ok(())
}
