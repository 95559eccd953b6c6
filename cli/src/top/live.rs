//! The terminal: refreshing, keys and signals. The terminal is restored whether a key, a signal, an
//! error or a panic ends the program.

use super::frame;
use super::sampler::Sampler;
use crate::Fallible;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::DefaultTerminal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

enum Input {
    Event(Event),
    Signal(i32),
}

/// Shows the screen until the user quits or a signal arrives.
pub(super) fn run(sampler: &mut Sampler, interval: Duration) -> Fallible<()> {
    let inputs = inputs()?;
    // Also installs a panic hook that restores the terminal.
    let mut terminal = ratatui::try_init()?;
    let shown = show(&mut terminal, sampler, interval, &inputs);
    let restored = ratatui::try_restore();
    if let Some(signal) = shown? {
        // The process dies of the signal, as its parent would see without a handler. If the signal
        // reports that the terminal was closed, there is nothing to restore.
        emulate_default_handler(signal)?;
    }
    Ok(restored?)
}

/// Receives keys and signals on threads of their own, so that the screen waits for the first of them.
fn inputs() -> Fallible<Receiver<Input>> {
    let (sender, inputs) = mpsc::channel();
    let events = sender.clone();
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    thread::spawn(move || {
        for signal in signals.forever() {
            if sender.send(Input::Signal(signal)).is_err() {
                return;
            }
        }
    });
    thread::spawn(move || {
        // Fails when the terminal is closed, which also raises SIGHUP.
        while let Ok(event) = event::read() {
            if events.send(Input::Event(event)).is_err() {
                return;
            }
        }
    });
    Ok(inputs)
}

/// Returns the signal that ended it, if any.
fn show(
    terminal: &mut DefaultTerminal,
    sampler: &mut Sampler,
    interval: Duration,
    inputs: &Receiver<Input>,
) -> Fallible<Option<i32>> {
    let mut next = Instant::now() + interval;
    loop {
        terminal.draw(|screen| frame::draw(screen, sampler))?;
        match inputs.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Ok(Input::Signal(signal)) => return Ok(Some(signal)),
            Ok(Input::Event(event)) if is_end(&event) => return Ok(None),
            // Most likely a resize: draw again.
            Ok(Input::Event(_)) => {}
            Err(RecvTimeoutError::Timeout) => {
                sampler.sample()?;
                next = Instant::now() + interval;
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
        }
    }
}

fn is_end(event: &Event) -> bool {
    let Some(key) = event.as_key_press_event() else {
        return false;
    };
    let is_interrupt =
        key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) || is_interrupt
}
