//! The account holder: the sender's side of a receiver's account (see `ledger` and `borrowed`).

#![forbid(unsafe_code)]

use super::borrowed::{Known, Limit};
use super::layout::Shared;
use super::ledger::{AccountId, Collection, Ledger};
use super::outside;
use crate::os::name::Link;
use crate::owner::buf::ShmBytes;
use std::sync::Arc;

pub(super) struct AccountHolder {
    ledger: Arc<Ledger>,
    account: AccountId,
    shared: Arc<Shared>,
    known: Known,
    limit: Limit,
}

impl AccountHolder {
    pub(super) fn new(
        ledger: Arc<Ledger>,
        account: AccountId,
        shared: Arc<Shared>,
        known: Known,
        limit: Limit,
    ) -> Self {
        Self {
            ledger,
            account,
            shared,
            known,
            limit,
        }
    }

    pub(super) fn limit(&self) -> Limit {
        self.limit
    }

    /// How many numbers are free, and the bytes of the borrowed buffers, as far as the sender
    /// knows.
    pub(super) fn known(&self) -> (usize, usize) {
        (self.known.numbers.len(), self.known.out)
    }

    /// Returns `true` if a buffer of `bytes` (0: the message is no buffer) can be borrowed without
    /// looking for returns.
    #[inline]
    pub(super) fn has_at_hand(&self, bytes: usize) -> bool {
        let free = self.known.numbers.len();
        self.limit.allows(bytes, free, self.known.out)
    }

    /// Returns `true` if a buffer of `bytes` can be borrowed after a [fetch](Self::fetch).
    pub(super) fn allows(&self, bytes: usize) -> bool {
        self.has_at_hand(bytes)
            || self
                .ledger
                .allows(&self.account, bytes, &self.known, self.limit)
    }

    /// Collects all returns.
    #[cold]
    pub(super) fn fetch(&mut self) {
        self.ledger.fetch(&self.account, &mut self.known);
    }

    /// Lends a buffer of `bytes`, for the message with this ticket. Returns the borrowed buffer's
    /// number, or the buffer if no number is free.
    #[inline(always)]
    pub(super) fn lend(
        &mut self,
        ticket: u64,
        bytes: usize,
        buffer: ShmBytes,
    ) -> Result<u32, ShmBytes> {
        let Some(number) = self.known.numbers.pop() else {
            return Err(buffer);
        };
        self.known.out += bytes;
        outside::note(
            self.shared.borrowed_words(),
            number as usize,
            ticket,
            buffer.len(),
        );
        self.account.borrowed.put(number, buffer.into_chunk());
        Ok(number)
    }

    #[inline]
    pub(super) fn has_returned(&self) -> bool {
        self.account.borrowed.has_returned(self.shared.returns())
    }

    /// Collects some returns under the lock, and moves the freed numbers to the sender's list.
    /// Returns `false` if the lock must be released before other returns are collected.
    #[inline]
    pub(super) fn collect_with(&mut self, collection: &mut Collection<'_>) -> bool {
        collection.collect(&self.account, &mut self.known)
    }

    /// Takes back a buffer that was not sent, or was withdrawn, if it is still out.
    pub(super) fn take_back(&self, number: u32) -> Option<ShmBytes> {
        self.ledger.take_back(&self.account, number)
    }

    pub(super) fn borrowed(&self) -> usize {
        self.ledger.borrowed(&self.account)
    }

    /// Collects the returns, and reclaims the borrowed buffers if no receiver can read any more.
    pub(super) fn settle(&self) {
        self.ledger.settle(&self.account);
    }

    /// No receiver can join any more.
    pub(super) fn close(&self) {
        self.ledger.close_account(&self.account);
    }

    /// Keeps the name of a pair's object, which its sender has closed, until the borrowed buffers
    /// have ended.
    pub(super) fn hold_link(&self, link: Link) {
        self.ledger.hold_link(&self.account, link);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::borrowed::open_account;
    use super::super::layout::{self, Facts, MAX_SLOTS};
    use super::super::ledger::PER_MESSAGE;
    use super::super::object::Object;
    use super::super::ring::{self, tests::LOOKS};
    use super::*;
    use crate::channel::{OnFull, Publisher, PublisherBuilder, Subscriber};
    use crate::owner::pool::Lends;
    use crate::{Namespace, Provider};
    use std::sync::atomic::{AtomicBool, Ordering};

    const MAX_BORROWED: usize = 16;

    struct Scene {
        provider: Provider,
    }

    /// A sender that has no slots to fill.
    struct Channel<'a> {
        provider: &'a Provider,
        account_holder: AccountHolder,
        _object: Object,
    }

    impl Scene {
        fn new(test: &str) -> Self {
            let prefix = format!("shm_pool-unit-{}-{test}", std::process::id());
            let provider = Provider::builder()
                .namespace(&Namespace::new(&prefix).unwrap())
                .build()
                .unwrap();
            Self { provider }
        }

        fn channel(&self, name: &str) -> Channel<'_> {
            let name = layout::name(self.provider.names(), name).unwrap();
            let facts = Facts::of_pair(self.provider.id(), 3, MAX_BORROWED);
            let object = Object::create(&name, &facts, 0o600, None).unwrap();
            let ledger = Ledger::new(1);
            let account = open_account(MAX_BORROWED).unwrap();
            Channel {
                provider: &self.provider,
                account_holder: ledger.open(&object, account, usize::MAX),
                _object: object,
            }
        }
    }

    impl Channel<'_> {
        fn lend(&mut self) {
            if !self.account_holder.has_at_hand(64) {
                self.account_holder.fetch();
            }
            let buffer = self.provider.alloc(64).unwrap().freeze();
            assert!(self.account_holder.lend(0, 64, buffer).is_ok());
            let ledger = self.account_holder.ledger.clone();
            let mut collection = ledger.try_collect().unwrap();
            self.account_holder.collect_with(&mut collection);
        }

        fn returned(&self, ticket: usize, number: u32) {
            let returns = self.account_holder.shared.returns();
            ring::give_back(returns.elsewhere, ticket as u64, number);
        }

        fn read(&self) -> usize {
            self.account_holder
                .shared
                .returns_read()
                .elsewhere
                .load(Ordering::Relaxed) as usize
        }
    }

    #[test]
    fn forged_returns_block_nothing() {
        let scene = Scene::new("made-up");
        let mut channel = scene.channel("one");
        channel.lend();
        let shared = channel.account_holder.shared.clone();
        let words = shared.returns();
        let borrowed = channel.account_holder.account.borrowed.clone();
        let is_over = AtomicBool::new(false);
        let mut next = std::thread::scope(|scope| {
            // A receiver that returns numbers as fast as they are read.
            let forging = scope.spawn(|| {
                let mut ticket = 0;
                while !is_over.load(Ordering::Relaxed) {
                    if !borrowed.has_returned(words) {
                        ring::give_back(words.elsewhere, ticket, MAX_BORROWED as u32 + 1);
                        ticket += 1;
                    }
                }
                ticket as usize
            });
            channel.account_holder.ledger.collect();
            assert!(channel.read() <= words.len(), "a bound for each look");
            channel.account_holder.fetch();
            assert!(channel.read() <= 2 * words.len(), "another one");
            is_over.store(true, Ordering::Relaxed);
            forging.join().unwrap()
        });

        channel.account_holder.fetch();
        assert_eq!(channel.read(), next);
        for _ in 0..MAX_BORROWED {
            channel.returned(next, MAX_BORROWED as u32 + 1);
            next += 1;
        }
        let before = channel.read();
        channel.lend();
        assert_eq!(
            channel.read() - before,
            PER_MESSAGE,
            "a few for each message"
        );
    }

    #[test]
    fn forged_returns_free_only_borrowed() {
        let scene = Scene::new("not-its-own");
        let mut channel = scene.channel("one");
        let mut other = scene.channel("other");
        for _ in 0..4 {
            channel.lend();
        }
        for _ in 0..MAX_BORROWED {
            other.lend();
        }
        // Out, repeated, not out, and the largest possible one.
        let forged = [0, 0, 2, 2, 2, 4, 15, 16, 17, 1000, 0xff_ffff, 2];
        for (ticket, number) in forged.into_iter().enumerate() {
            channel.returned(ticket, number);
        }
        assert_eq!(channel.account_holder.ledger.collect(), 2);
        let (free, out) = channel.account_holder.known();
        channel.account_holder.fetch();
        assert_eq!(
            channel.account_holder.known(),
            (free + 2, out - 2 * 64),
            "two borrowed"
        );
        assert_eq!(channel.account_holder.borrowed(), 2);
        assert_eq!(other.account_holder.borrowed(), MAX_BORROWED);
        assert_eq!(scene.provider.stats().bytes_in_use, (2 + MAX_BORROWED) * 64);
    }

    #[test]
    fn borrowed_collected_elsewhere_is_free() {
        let scene = Scene::new("elsewhere");
        let mut channel = scene.channel("one");
        for _ in 0..MAX_BORROWED {
            channel.lend();
        }
        assert!(!channel.account_holder.allows(64));
        channel.returned(0, 3);
        // As the pool does; the sender has not asked since.
        assert_eq!(channel.account_holder.ledger.collect(), 1);
        assert!(!channel.account_holder.has_at_hand(64));
        assert!(channel.account_holder.allows(64));
    }

    #[test]
    fn handles_of_one_chunk_are_dropped_together() {
        let scene = Scene::new("together");
        let mut first = scene.channel("first");
        let object = &first._object;
        let account = open_account(MAX_BORROWED).unwrap();
        let mut second = first
            .account_holder
            .ledger
            .open(object, account, usize::MAX);
        for is_held in [false, true] {
            let buffer = scene.provider.alloc(64).unwrap().freeze();
            let held = is_held.then(|| buffer.clone());
            assert!(first.account_holder.lend(0, 64, buffer.clone()).is_ok());
            assert!(second.lend(0, 64, buffer).is_ok());
            // Both accounts read the same words here.
            // The number freed last is used next.
            let number = 0;
            first.returned(usize::from(is_held), number);
            assert_eq!(first.account_holder.ledger.collect(), 2);
            first.account_holder.fetch();
            second.fetch();
            let in_use = scene.provider.stats().bytes_in_use;
            assert_eq!(in_use, if is_held { 64 } else { 0 });
            drop(held);
            assert_eq!(scene.provider.stats().bytes_in_use, 0);
        }
    }

    /// Creates a channel with `MAX_SLOTS` slots and one receiver.
    fn large(
        test: &str,
        on_full: OnFull,
        options: PublisherBuilder,
    ) -> (Provider, Publisher, Subscriber) {
        let name = format!("shm_pool-unit-{}-{test}", std::process::id());
        let provider = Provider::builder()
            .namespace(&Namespace::new(&name).unwrap())
            .build()
            .unwrap();
        let mut publisher = options
            .capacity(MAX_SLOTS)
            .create(&provider, &name)
            .unwrap();
        let receiver = Subscriber::builder()
            .on_full(on_full)
            .namespace(provider.namespace())
            .open(&name)
            .unwrap();
        assert!(publisher.serve_joins());
        (provider, publisher, receiver)
    }

    #[test]
    fn send_searches_no_borrowed() {
        const MAX_BORROWED: usize = 131_072;
        let (provider, mut publisher, mut receiver) = large(
            "borrowed",
            OnFull::DropNewest,
            Publisher::builder().max_borrowed(MAX_BORROWED),
        );
        let buffer = provider.alloc(1).unwrap().freeze();
        let mut looks_of = |messages: usize, takers: usize| {
            LOOKS.set(0);
            (0..messages).for_each(|_| {
                assert_eq!(publisher.send(buffer.clone()).unwrap().receivers, takers)
            });
            LOOKS.get()
        };
        let mut held = Vec::new();
        for _ in 0..2 {
            assert_eq!(looks_of(MAX_BORROWED / 2, 1), 0);
            held.extend((0..MAX_BORROWED / 2).map(|_| receiver.recv().unwrap()));
        }
        assert_eq!(looks_of(100, 0), 0, "all are out");
        held.swap_remove(MAX_BORROWED / 3);
        assert_eq!(looks_of(1, 1), 1, "one came back");
        assert_eq!(looks_of(100, 0), 0);
        drop(receiver.recv().unwrap());
        drop(held);
        LOOKS.set(0);
        provider.pool().reclaim_borrowed();
        assert_eq!(LOOKS.replace(0), MAX_BORROWED, "each came back");
        provider.pool().reclaim_borrowed();
        assert_eq!(LOOKS.get(), 0, "none is out");
    }

    #[test]
    fn send_searches_each_slot_once() {
        search_at_the_limit("slots", Publisher::builder().max_borrowed(2));
    }

    /// The limit by bytes costs no more than the one by number.
    #[test]
    fn send_searches_each_slot_once_for_bytes() {
        search_at_the_limit("bytes", Publisher::builder().max_bytes_per_receiver(128));
    }

    /// At most two buffers of 64 bytes fit.
    fn search_at_the_limit(test: &str, options: PublisherBuilder) {
        let (provider, mut publisher, mut receiver) = large(test, OnFull::DropOldest, options);
        let buffer = provider.alloc(1).unwrap().freeze();
        let mut send = |messages: usize, receivers: usize| {
            LOOKS.set(0);
            for _ in 0..messages {
                let sent = publisher.send(buffer.clone()).unwrap();
                assert_eq!(sent.receivers, receivers);
            }
            LOOKS.get()
        };

        send(2, 1);
        let held = [receiver.recv().unwrap(), receiver.recv().unwrap()];
        let looks = send(100, 0);
        assert!(looks <= 200, "{looks} looks");
        drop(held);

        // Each of these withdraws the one before the last.
        send(2, 1);
        let looks = send(100, 1);
        assert!(looks <= 300, "{looks} looks");
    }

    /// Nor do the messages that wait, with a buffer among them or none.
    #[test]
    fn send_searches_waiting_messages_once() {
        let limits = [
            ("waiting-borrowed", Publisher::builder().max_borrowed(2)),
            (
                "waiting-bytes",
                Publisher::builder().max_bytes_per_receiver(128),
            ),
        ];
        for (test, options) in limits {
            let (provider, mut publisher, mut receiver) = large(test, OnFull::DropOldest, options);
            let buffer = provider.alloc(1).unwrap().freeze();
            for _ in 0..2 {
                assert_eq!(publisher.send(buffer.clone()).unwrap().receivers, 1);
            }
            let held = [receiver.recv().unwrap(), receiver.recv().unwrap()];
            for _ in 0..MAX_SLOTS {
                assert_eq!(publisher.send_copy(&[1]).unwrap().receivers, 1);
            }

            LOOKS.set(0);
            for _ in 0..100 {
                assert_eq!(publisher.send(buffer.clone()).unwrap().receivers, 0);
                assert_eq!(publisher.send_copy(&[1]).unwrap().receivers, 1);
            }
            assert!(LOOKS.get() <= MAX_SLOTS + 200, "{} looks", LOOKS.get());

            // One held, one waiting behind all the bytes: there is no third for a while.
            let [one, other] = held;
            drop(one);
            assert_eq!(publisher.send(buffer.clone()).unwrap().receivers, 1);
            LOOKS.set(0);
            for _ in 0..100 {
                assert_eq!(publisher.send(buffer.clone()).unwrap().missed.withdrawn, 1);
                assert_eq!(publisher.send_copy(&[1]).unwrap().receivers, 1);
            }
            assert!(LOOKS.get() <= MAX_SLOTS + 600, "{} looks", LOOKS.get());
            drop(other);
        }
    }
}
