//! The owner's publishing thread: allocate, fill, freeze, share, let go; and now and then what else
//! an owner may do.

#![forbid(unsafe_code)]

use super::hub::Hub;
use super::wire::{Published, Way, Word, DEADLINE};
use super::worker::{Control, Role};
use shm_pool::{Provider, ShmBufMut};
use shm_pool_support::payload::{self, Identity};
use std::sync::Arc;
use std::time::Instant;

/// The conductor is told at every so many messages.
const MESSAGES_PER_WORD: u64 = 16;

pub(crate) struct Publisher {
    hub: Arc<Hub>,
    provider: Arc<Provider>,
    control: Arc<Control>,
    prefix: String,
    largest: usize,
    random: fastrand::Rng,
    published: Published,
}

impl Publisher {
    pub(crate) fn new(role: &Role, control: Arc<Control>, hub: Arc<Hub>, provider: Arc<Provider>) -> Self {
        let random = fastrand::Rng::with_seed(!role.seed);
        let (prefix, largest, published) = (role.prefix.clone(), role.largest, Published::default());
        Self { hub, provider, control, prefix, largest, random, published }
    }

    pub(crate) fn run(mut self) {
        for sequence in 1.. {
            if !self.hub.wait_for_room() {
                break;
            }
            self.publish(sequence);
            self.do_something_else();
            if self.published.messages >= MESSAGES_PER_WORD {
                self.control.say(Word::Published(std::mem::take(&mut self.published)));
            }
        }
        self.control.say(Word::Published(self.published));
    }

    fn publish(&mut self, sequence: u64) {
        let len = any_length(&mut self.random, self.largest);
        let Some(mut buffer) = self.alloc(len) else { return };
        let identity = Identity { provider: self.provider.id().to_u64(), sequence };
        payload::fill(&mut buffer, identity);
        let mut message = buffer.freeze();
        if self.random.u8(..16) == 0 {
            // Never shared: exclusive again, and this process's own reader.
            let buffer = message.try_into_mut().unwrap_or_else(|_| self.control.fail("nobody else has this message"));
            message = buffer.freeze();
            payload::check(&message, identity).unwrap_or_else(|text| self.control.fail(&text));
        }
        let way = [Way::Granted, Way::Kept, Way::Fleeting][self.random.usize(..3)];
        self.published += self.hub.share(&message, sequence, way, &mut self.random);
        // Still the owner's, whoever reads or dies.
        if self.random.u8(..16) == 0 {
            payload::check(&message, identity).unwrap_or_else(|text| self.control.fail(&text));
        }
    }

    /// Allocates; `None` if memory is exhausted, and it is time to do something else.
    fn alloc(&mut self, len: usize) -> Option<ShmBufMut> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            match self.provider.alloc(len) {
                Ok(buffer) => return Some(buffer),
                Err(error) if error.is_exhausted() => {
                    self.published.exhausted += 1;
                    if !self.hub.make_room(deadline) {
                        return None;
                    }
                }
                Err(error) => self.control.fail(&format!("cannot allocate {len} bytes: {error}")),
            }
        }
    }

    fn do_something_else(&mut self) {
        match self.random.u16(..1000) {
            0..=4 => drop(self.provider.trim()),
            5..=19 => drop(self.provider.reclaim()),
            20..=21 => match Provider::sweep(&self.prefix) {
                Ok(_) => {}
                Err(error) => self.control.fail(&format!("cannot sweep: {error}")),
            },
            _ => {}
        }
        let stats = self.provider.stats();
        if stats.peak_bytes_held > stats.max_bytes {
            self.control.fail(&format!("{} bytes held, above the cap of {}", stats.peak_bytes_held, stats.max_bytes));
        }
    }
}

/// Sizes of all kinds: mostly small, some of a few pages, few of up to `largest` bytes.
fn any_length(random: &mut fastrand::Rng, largest: usize) -> usize {
    let up_to = match random.u8(..100) {
        0..=49 => 1 << 10,
        50..=79 => 16 << 10,
        80..=95 => 256 << 10,
        _ => largest,
    };
    random.usize(payload::SHORTEST..=up_to.min(largest))
}
