//! A writer that never stops. Its writes are no worse than other garbage, but it repeats them
//! whenever another process has repaired the damage. No process may wait for it to give up.

use crate::child::Child;
use crate::hostile::{OpenObject, Word};
use crate::shm::{self, Names};
use crate::wire::{Link, Message};
use shm_pool::{Provider, ShmBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

const LEN: usize = 300_000;
const ALLOCATIONS: usize = 100;

/// The number of shared messages: enough to make a search for leases of the dead slow, so that the
/// writer runs meanwhile even when other programs compete for the processors.
const SHARED: usize = 4000;

/// Slots that no peer ever had. Slot 0 belongs to a living peer.
const DEAD: std::ops::Range<u8> = 1..64;

/// Guards against a process that keeps leasing on behalf of dead peers and traps an allocation in
/// an endless search: memory just reclaimed from the dead looks like new room.
#[test]
fn forged_leases_of_dead_peers() {
    let names = Names::new("hostile-writer");
    let child = Child::start("hostile-writer", &[names.prefix()]);
    child.expect_done();
    child.finish();
}

role!("hostile-writer", role);

fn role(link: &Link, arguments: &[&str]) {
    let prefix = arguments[0];
    let builder = Provider::builder().name_prefix(prefix).max_shared(SHARED + 1).max_bytes(704 << 10);
    let provider = builder.build().unwrap();
    let message = provider.alloc(LEN).unwrap().freeze();
    message.descriptor().unwrap();
    let shared: Vec<ShmBuf> = (0..SHARED).map(|_| provider.alloc(64).unwrap().freeze()).collect();
    assert!(shared.iter().all(|message| message.descriptor().is_ok()));
    let client = shm::client(prefix);
    let view = client.attach(&message.descriptor().unwrap()).unwrap();
    drop(message); // so there is no room for another message while the view exists
    let control = OpenObject::open(&shm::path(&format!("{prefix}.{}.ctl", provider.id())), SHARED as u64 + 1);
    let is_over = AtomicBool::new(false);
    let searches = AtomicUsize::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                resurrect(&control, &searches);
            }
        });
        for allocations in 1..=ALLOCATIONS {
            let refused = provider.alloc(LEN).is_err_and(|error| error.is_exhausted());
            // The first one counted was no search: slots that were never used look the same.
            let searches = searches.load(Ordering::Relaxed).saturating_sub(1);
            // Set before the assertions, or the writer would outlive a failure.
            is_over.store(!refused || searches > allocations || allocations == ALLOCATIONS, Ordering::Relaxed);
            assert!(refused, "the view is overwritten");
            assert!(searches <= allocations, "{searches} searches among the dead by {allocations} allocations");
        }
    });
    assert!(searches.into_inner() > 1, "the writer never met a search");
    drop((view, client, shared, provider));
    link.send(&Message::Done);
}

/// Once the first of these slots is found dead, a search is running. Then makes each slot lease the
/// message again.
fn resurrect(control: &OpenObject, searches: &AtomicUsize) {
    let is_searched = control.get(Word::Epoch(DEAD.start)) % 4 == 3;
    if is_searched {
        searches.fetch_add(1, Ordering::Relaxed);
        control.fill(Word::Lanes { record: 0, word: 0 }, 64, 1);
        control.fill(Word::Epoch(DEAD.start), DEAD.len() * 8, 0);
    }
}
