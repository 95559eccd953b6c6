//! Loom models of the lease protocol.

use super::*;
use crate::sync::explore;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

const PLACE: Place = Place {
    segment: 1,
    index: 2,
    offset: 3,
    len: 4,
};

struct Chunk {
    record: Record,
    payload: UnsafeCell<u64>,
}

// SAFETY: by the protocol under test; loom checks it.
unsafe impl Sync for Chunk {}

fn chunk() -> Arc<Chunk> {
    let chunk = Chunk {
        record: Record::new(),
        payload: UnsafeCell::new(0),
    };
    chunk.record.close_at(1);
    Arc::new(chunk)
}

fn write(chunk: &Chunk, value: u64) {
    // SAFETY: loom checks the access.
    chunk.payload.with_mut(|bytes| unsafe { *bytes = value });
}

/// As a peer that got a descriptor over a transport without ordering.
fn read(chunk: &Chunk, slot: usize, generation: u64) {
    if chunk.record.attach(slot, generation).is_ok() {
        // SAFETY: loom checks the access.
        chunk
            .payload
            .with(|bytes| assert_eq!(unsafe { *bytes }, generation, "another message's bytes"));
        chunk.record.release(slot);
    }
}

fn attach_against_recycle(slots: &'static [usize], preemptions: Option<usize>) {
    explore(preemptions, move || {
        let chunk = chunk();
        write(&chunk, 2);
        chunk.record.publish(2, PLACE);
        let peers: Vec<_> = slots
            .iter()
            .map(|&slot| {
                let chunk = chunk.clone();
                thread::spawn(move || read(&chunk, slot, 2))
            })
            .collect();
        let mut generation = 2;
        // Twice: the second try finds the record already closed, and U4 alone decides.
        if chunk.record.recycle(&mut generation) || chunk.record.recycle(&mut generation) {
            write(&chunk, 4);
            chunk.record.publish(4, PLACE);
        }
        for peer in peers {
            peer.join().unwrap();
        }
        assert!(!chunk.record.is_leased());
    });
}

#[test]
fn no_recycle_under_reader() {
    attach_against_recycle(&[0], None);
}

#[test]
fn no_recycle_under_two_readers_of_one_word() {
    attach_against_recycle(&[0, 1], Some(3));
}

/// No join, lock or channel orders the two threads.
#[test]
fn publish_releases_payload() {
    loom::model(|| {
        let chunk = chunk();
        let peer = {
            let chunk = chunk.clone();
            thread::spawn(move || read(&chunk, 8, 2))
        };
        write(&chunk, 2);
        chunk.record.publish(2, PLACE);
        peer.join().unwrap();
    });
}

#[test]
fn grant_holds_chunk() {
    loom::model(|| {
        let chunk = chunk();
        write(&chunk, 2);
        chunk.record.publish(2, PLACE);
        chunk.record.grant(5).unwrap();
        let peer = {
            let chunk = chunk.clone();
            thread::spawn(move || {
                chunk
                    .record
                    .accept(5, 2)
                    .expect("a granted message is never stale");
                // SAFETY: loom checks the access.
                chunk.payload.with(|bytes| assert_eq!(unsafe { *bytes }, 2));
                chunk.record.release(5);
            })
        };
        let mut generation = 2;
        if chunk.record.recycle(&mut generation) {
            write(&chunk, 4);
        }
        peer.join().unwrap();
    });
}

#[test]
fn clear_one_lane() {
    explore(4, || {
        let chunk = chunk();
        write(&chunk, 2);
        chunk.record.publish(2, PLACE);
        chunk.record.attach(1, 2).unwrap();
        let peer = {
            let chunk = chunk.clone();
            thread::spawn(move || read(&chunk, 0, 2))
        };
        chunk.record.clear(1);
        let mut generation = 2;
        if chunk.record.recycle(&mut generation) {
            write(&chunk, 4);
        }
        peer.join().unwrap();
        assert!(!chunk.record.is_leased());
    });
}

/// The second time, the peer may find a grant for a later message, and must not take it up.
#[test]
fn duplicate_granted_descriptor() {
    explore(4, || {
        let chunk = chunk();
        write(&chunk, 2);
        chunk.record.publish(2, PLACE);
        chunk.record.grant(5).unwrap();
        let peer = {
            let chunk = chunk.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    if chunk.record.accept(5, 2).is_ok() {
                        // SAFETY: loom checks the access.
                        chunk.payload.with(|bytes| {
                            assert_eq!(unsafe { *bytes }, 2, "another message's bytes")
                        });
                        chunk.record.release(5);
                    }
                }
            })
        };
        let mut generation = 2;
        if chunk.record.recycle(&mut generation) {
            write(&chunk, 4);
            chunk.record.publish(4, PLACE);
            // Another thread of the owner, which has not passed U3, sends it.
            let sent = chunk.clone();
            thread::spawn(move || sent.record.grant(5).unwrap())
                .join()
                .unwrap();
            peer.join().unwrap();
            assert!(
                chunk.record.accept(5, 4).is_ok(),
                "the later message's grant was lost"
            );
            chunk.record.release(5);
            assert!(!chunk.record.is_leased(), "a lease that nobody has");
        } else {
            peer.join().unwrap();
        }
    });
}
