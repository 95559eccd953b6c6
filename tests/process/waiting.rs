//! Waiting for memory that other processes hold: it returns when they release it, leave or die.

use crate::child::{in_child, in_small_shm, Child};
use crate::peer::Peer;
use crate::shm::{self, Names};
use crate::sys;
use crate::wire::{Link, Message, FOR_EVER};
use nix::unistd::gettid;
use shm_pool::channel::{Receiver, Sender};
use shm_pool::{AllocError, AllocFuture, BuildError, Namespace, Provider, ShmBytes};
use shm_pool_support::tasks::{blocking_waker, Woken};
use std::fs;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::{mpsc, Arc};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

const CAP: usize = 1 << 20;
const ROUNDS: usize = 300;

fn provider(prefix: &str) -> Provider {
    Provider::builder()
        .namespace(&Namespace::new(prefix).unwrap())
        .max_bytes(CAP)
        .build()
        .unwrap()
}

/// A message that takes the whole pool.
fn all(provider: &Provider) -> ShmBytes {
    shm::message(provider, CAP, 1)
}

/// Waits for the whole pool, while `give` releases it.
fn wait_while(provider: &Provider, give: impl FnOnce()) {
    thread::scope(|scope| {
        let waits = scope.spawn(|| drop(provider.alloc_timeout(CAP, FOR_EVER).unwrap()));
        give();
        waits.join().unwrap();
    });
}

#[test]
fn remote_view_drop_wakes() {
    let names = Names::new("wait-view");
    let provider = provider(names.prefix());
    let peer = Peer::start(names.prefix());
    for _ in 0..ROUNDS {
        let message = all(&provider);
        let view = peer.attach(message.descriptor().unwrap(), 1).unwrap();
        drop(message);
        wait_while(&provider, || peer.release(view));
    }
    peer.leave();
}

/// A waiter gets the memory of messages granted to a peer that leaves or is killed.
#[test]
fn any_peer_exit_wakes() {
    let names = Names::new("wait-gone");
    let provider = provider(names.prefix());
    for round in 0..10 {
        let peer = Peer::start(names.prefix());
        let id = peer.connect(provider.id()).unwrap();
        let message = all(&provider);
        let granted = message.grant(id).unwrap();
        if round % 2 == 0 {
            peer.attach(granted, 1).unwrap();
        }
        drop(message);
        wait_while(&provider, || {
            if round % 4 < 2 {
                peer.kill()
            } else {
                peer.leave()
            }
        });
    }
}

/// A waiter beside a late helper does not time out although the peer that held the memory is dead.
#[test]
fn last_look_finds_dead_peer() {
    let names = Names::new("wait-last");
    let provider = provider(names.prefix());
    let peer = Peer::start(names.prefix());
    let quarter = provider.alloc(CAP / 4).unwrap();
    let message = shm::message(&provider, CAP / 2, 1);
    let _rest: Vec<_> = std::iter::from_fn(|| provider.alloc(4096).ok()).collect();
    peer.attach(message.descriptor().unwrap(), 1).unwrap();
    drop(message);
    // The serving thread stays in the waker of the first future.
    let (waker, is_called, go) = blocking_waker();
    let mut first = Box::pin(provider.request(CAP / 4).wait_async());
    assert!(first
        .as_mut()
        .poll(&mut Context::from_waker(&waker))
        .is_pending());
    drop(quarter);
    is_called.recv().unwrap();
    let (begins, begun) = mpsc::channel();
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            begins.send(gettid()).unwrap();
            provider.alloc_timeout(CAP / 2, Duration::from_millis(500))
        });
        let stat = format!("/proc/self/task/{}/stat", begun.recv().unwrap());
        while !fs::read_to_string(&stat)
            .unwrap_or_default()
            .contains(") S ")
            && !waits.is_finished()
        {
            thread::yield_now();
        }
        peer.kill();
        let got = waits.join().unwrap();
        drop(go);
        assert_eq!(got.expect("its reader is dead").len(), CAP / 2);
    });
}

/// A publisher that sends through channels learns of a returned borrowed buffer without sending
/// again.
#[test]
fn returned_borrowed_wakes() {
    let names = Names::new("wait-borrow");
    let provider = provider(names.prefix());
    let mut sender = Sender::create(&provider, "max_borrowed").unwrap();
    let child = Child::start_ready("waiting-receiver", &[names.prefix()]);
    for _ in 0..ROUNDS {
        sender.send(all(&provider)).unwrap();
        child.expect_done();
        wait_while(&provider, || child.send(&Message::Go));
    }
    child.shut_down();
}

role!("waiting-receiver", receiver_role);

/// The role: receives a message, and drops it on request.
fn receiver_role(link: &Link, arguments: &[&str]) {
    let mut receiver = Receiver::builder()
        .namespace(&shm::namespace(arguments[0]))
        .open("max_borrowed")
        .unwrap();
    link.send(&Message::Done);
    for _ in 0..ROUNDS {
        let message = receiver.recv().unwrap();
        shm::check(&message, 1).unwrap();
        link.send(&Message::Done);
        link.expect_go();
    }
    assert_eq!(link.receive().unwrap(), None);
}

/// An owner that is killed while it waits neither blocks a peer nor leaves an object behind.
#[test]
fn killed_while_waiting() {
    let names = Names::new("wait-killed");
    let owner = Child::start("waiting-owner", &[names.prefix()]);
    let descriptor = owner.sent();
    let peer = Peer::start(names.prefix());
    let view = peer.attach(descriptor, 1).unwrap();
    assert_eq!(
        owner.request(&Message::Go),
        Message::Done,
        "it is about to wait"
    );
    owner.kill();
    // The doorbell still has a listener.
    peer.check(view);
    peer.release(view);
    assert_eq!(names.sweep(), 2, "the control object and a segment");
    peer.leave();
}

role!("waiting-owner", owner_role);

/// The role: waits for a peer's memory, which is never released.
fn owner_role(link: &Link, arguments: &[&str]) {
    let provider = provider(arguments[0]);
    let message = all(&provider);
    link.send(&Message::Sent(message.descriptor().unwrap()));
    link.expect_go();
    drop(message);
    link.send(&Message::Done);
    let _ = provider.request(CAP).wait();
}

/// A program that forks, as `Command` does, neither hangs in the child nor ends the parent's waits.
#[test]
fn fork_while_waiting() {
    in_child(|prefix| {
        let provider = provider(prefix);
        let held = all(&provider);
        let waker = Waker::from(Arc::new(Woken::default()));
        let mut context = Context::from_waker(&waker);
        let mut futures = Vec::new();
        for _ in 0..1000 {
            let mut future = Box::pin(provider.request(CAP).wait_async());
            assert!(future.as_mut().poll(&mut context).is_pending());
            futures.push(future);
        }
        // A child that drops its copies of all waiters changes no state that it shares with its
        // parent: the doorbell keeps notifying.
        let control = shm::objects(prefix)
            .into_iter()
            .find(|name| name.ends_with(".ctl"))
            .expect("a provider");
        let shared = || fs::read(shm::path(&control)).unwrap();
        let before = shared();
        match sys::fork() {
            None => sys::end_with(|| futures.clear()),
            Some(child) => child.finish(),
        }
        assert!(shared() == before, "the parent's waits are not the child's");
        thread::scope(|scope| {
            let waits = scope.spawn(|| drop(provider.alloc_timeout(CAP, FOR_EVER).unwrap()));
            for _ in 0..20 {
                // SAFETY: the child uses what a forked child may, and ends without unwinding.
                let pid = unsafe { libc::fork() };
                if pid == 0 {
                    let is_forked =
                        |error: &shm_pool::AllocError| matches!(error, AllocError::Forked);
                    let refused = provider
                        .alloc_timeout(CAP, FOR_EVER)
                        .is_err_and(|error| is_forked(&error));
                    // The parent's futures fail in the child, and stay pending in the parent.
                    let has_failed = |future: &mut Pin<Box<AllocFuture<'_>>>| match future
                        .as_mut()
                        .poll(&mut context)
                    {
                        Poll::Ready(Err(error)) => is_forked(&error),
                        _ => false,
                    };
                    let all_failed = futures.iter_mut().all(has_failed);
                    futures.clear();
                    // The child's own waits work, although its memory includes the parent's count
                    // of waiters.
                    let own = self::provider(prefix);
                    let all = own.alloc(CAP).unwrap();
                    let timed_out = own.alloc_timeout(CAP, Duration::from_millis(1)).is_err();
                    drop(all);
                    let is_good = refused
                        && all_failed
                        && timed_out
                        && own.alloc_timeout(CAP, FOR_EVER).is_ok();
                    drop(own);
                    // SAFETY: no preconditions.
                    unsafe { libc::_exit(i32::from(!is_good)) };
                }
                let mut status = 0;
                // SAFETY: a valid place to write to.
                assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
                assert_eq!(status, 0, "the child found something else");
            }
            drop(held);
            for mut future in futures {
                let buffer = loop {
                    match future.as_mut().poll(&mut context) {
                        Poll::Ready(buffer) => break buffer,
                        Poll::Pending => thread::yield_now(),
                    }
                };
                // The next waiter gets it.
                drop(buffer.unwrap());
            }
            waits.join().unwrap();
        });
    });
}

/// A provider can be dropped while a task that is no longer polled waits for it.
#[test]
fn forgotten_wait() {
    let names = Names::new("wait-forgotten");
    let child = Child::start_ready("waiting-forgets", &[names.prefix()]);
    child.finish();
    assert_eq!(
        names.sweep(),
        1,
        "what was forgotten keeps its provider's control object while its process lives"
    );
}

role!("waiting-forgets", forgetting_role);

fn forgetting_role(link: &Link, arguments: &[&str]) {
    let provider = provider(arguments[0]);
    let held = all(&provider);
    let woken = Arc::new(Woken::default());
    let mut future = Box::pin(provider.request(1).wait_async());
    let polled = future
        .as_mut()
        .poll(&mut Context::from_waker(&Waker::from(woken.clone())));
    assert!(polled.is_pending());
    mem::forget(future);
    drop(provider);
    assert_eq!(woken.count(), 1);
    drop(held);
    link.send(&Message::Done);
}

/// A full /dev/shm is not fatal to a publisher that waits: others may make room there.
#[test]
fn wait_for_full_shm() {
    in_small_shm(|_| {
        const LEN: usize = 2 << 20;
        let build = || {
            Provider::builder()
                .max_bytes(16 << 20)
                .max_shared(64)
                .build()
                .unwrap()
        };
        let first = build();
        let second = build();
        let mut held: Vec<_> = std::iter::from_fn(|| first.alloc(1 << 20).ok()).collect();
        let error = second.alloc(LEN).unwrap_err();
        assert!(
            error.is_exhausted() && matches!(error, AllocError::Os(_)),
            "{error}"
        );
        assert!(second.alloc_timeout(LEN, Duration::from_millis(1)).is_err());
        thread::scope(|scope| {
            let waits = scope.spawn(|| second.alloc_timeout(LEN, FOR_EVER).unwrap());
            held.clear();
            first.trim();
            waits.join().unwrap();
        });
    });
}

/// Most of a /dev/shm of 4 MiB.
const MOST: usize = 5 << 19;

fn of_small_shm(prefix: &str) -> Provider {
    loop {
        match Provider::builder()
            .namespace(&Namespace::new(prefix).unwrap())
            .max_bytes(16 << 20)
            .max_shared(64)
            .build()
        {
            // An attempt of another process briefly holds all that is left.
            Err(BuildError::Os(error)) if error.errno() == Some(libc::ENOSPC) => {
                thread::yield_now()
            }
            built => return built.unwrap(),
        }
    }
}

/// They do not deadlock, and one that is killed while it waits does not block the others.
#[test]
fn two_processes_in_full_shm() {
    in_small_shm(|prefix| {
        let provider = of_small_shm(prefix);
        let mut held = provider.alloc(MOST).unwrap();
        let other = Child::start("waiting-for-turns", &[prefix]);
        for round in 0..5 {
            let killed = Child::start("waiting-for-turns", &[prefix]);
            assert_eq!(
                killed.request(&Message::Go),
                Message::Done,
                "it is about to wait"
            );
            assert_eq!(
                other.request(&Message::Go),
                Message::Done,
                "it is about to wait"
            );
            held.fill(round);
            killed.kill();
            drop(held);
            provider.trim();
            other.expect_done();
            held = thread::scope(|scope| {
                let waits = scope.spawn(|| provider.alloc_timeout(MOST, FOR_EVER).unwrap());
                other.send(&Message::Go);
                waits.join().unwrap()
            });
        }
        other.shut_down();
        // The control object of the last one that was killed, and a segment if it was just creating
        // one, unless the last waiter has removed them.
        let left = Namespace::new(prefix).unwrap().sweep().unwrap().objects;
        assert!(left <= 2, "{left} objects");
        drop((held, provider));
        assert_eq!(shm::objects(prefix), [""; 0]);
    });
}

role!("waiting-for-turns", turn_role);

/// The role: waits for most of a /dev/shm, holds it until it is to release it.
fn turn_role(link: &Link, arguments: &[&str]) {
    let provider = of_small_shm(arguments[0]);
    while link.receive().unwrap() == Some(Message::Go) {
        let error = provider.alloc(MOST).expect_err("the other has it");
        assert!(error.is_exhausted(), "the other has it: {error}");
        link.send(&Message::Done);
        let mut buffer = provider.alloc_timeout(MOST, FOR_EVER).unwrap();
        buffer.fill(0);
        link.send(&Message::Done);
        link.expect_go();
        drop(buffer);
        provider.trim();
    }
}
