//! Too little address space (`ulimit -v`), as in a process that maps too much: the error says so,
//! and all earlier steps are undone (D9).

use crate::child::{in_child, in_child_for};
use crate::shm;
use crate::sys::{with_address_space, with_heap_left, with_private_memory};
use shm_pool::{
    AllocError, AttachError, BuildError, Namespace, OsError, Provider, ProviderBuilder, ShareError,
    Tuning,
};

/// How much more may be mapped: enough for the heap, too little for any object.
const LITTLE: u64 = 512 << 10;

const LEN: usize = 4 << 20;
const ROUNDS: usize = 20;

/// An owner at its limit loses no memory or descriptors at a failed attempt, and gets no signal.
#[test]
fn owner_cannot_map() {
    in_child(|prefix| {
        let before = state(prefix);
        for _ in 0..ROUNDS {
            let refused = with_address_space(LITTLE, || builder(prefix).build());
            let Err(BuildError::Os(error)) = refused else {
                panic!("{refused:?}")
            };
            assert_no_space(&error);
            assert_eq!(state(prefix), before);
        }
        let provider = builder(prefix).build().unwrap();
        let built = state(prefix);
        for len in [LEN, LEN / 2].repeat(ROUNDS) {
            let error = with_address_space(LITTLE, || provider.alloc(len)).unwrap_err();
            let AllocError::Os(error) = error else {
                panic!("{error}")
            };
            assert_no_space(&error);
            assert_eq!(
                (state(prefix), provider.stats().bytes_held),
                (built.clone(), 0)
            );
        }
        drop(provider.alloc(2 * LEN).unwrap());
        for len in [2 * LEN, LEN, 64] {
            // Idle memory, of this class or another, makes room.
            with_address_space(LITTLE, || provider.alloc(len))
                .unwrap()
                .fill(1);
        }
        drop(provider);
        assert_eq!(state(prefix), before);
    });
}

/// A peer at its limit keeps no slot or lease that it cannot use, and loses no grant.
#[test]
fn peer_cannot_map() {
    in_child(|prefix| {
        let provider = builder(prefix).build().unwrap();
        let message = shm::message(&provider, LEN, 1);
        let descriptor = message.descriptor().unwrap();
        let before = state(prefix);
        let client = shm::client(prefix);
        let assert_refused = |refused: Result<(), AttachError>, state_before: &_| {
            let Err(AttachError::Os(error)) = refused else {
                panic!("{refused:?}")
            };
            assert_no_space(&error);
            assert_eq!(&state(prefix), state_before);
        };
        for _ in 0..ROUNDS {
            assert_refused(
                with_address_space(LITTLE, || client.connect(provider.id()).map(drop)),
                &before,
            );
            assert_refused(
                with_address_space(LITTLE, || client.attach(&descriptor).map(drop)),
                &before,
            );
        }
        let id = client.connect(provider.id()).unwrap();
        assert_eq!(
            id.slot(),
            0,
            "a connection that was given up has kept its slot"
        );
        let connected = state(prefix);
        for _ in 0..ROUNDS {
            assert_refused(
                with_address_space(LITTLE, || client.attach(&descriptor).map(drop)),
                &connected,
            );
            assert!(
                !message.is_leased(),
                "an attach that failed has kept a lease"
            );
        }
        let granted = message.grant(id).unwrap();
        for _ in 0..ROUNDS {
            assert_refused(
                with_address_space(LITTLE, || client.attach(&granted).map(drop)),
                &connected,
            );
            assert!(message.is_leased(), "the grant waits until there is room");
        }
        let view = client.attach(&granted).unwrap();
        let again = with_address_space(LITTLE, || client.attach(&descriptor));
        drop(again.expect("what is mapped needs no more"));
        shm::check(&view, 1).unwrap();
        drop(view);
        assert!(!message.is_leased());
        drop((message, provider, client));
        assert_eq!((shm::objects(prefix), shm::mappings(prefix)), (vec![], 0));
    });
}

/// The control object takes 2 MiB, and the first arena 4 MiB.
fn builder(prefix: &str) -> ProviderBuilder {
    Provider::builder()
        .namespace(&Namespace::new(prefix).unwrap())
        .max_bytes(32 << 20)
        .tuning(Tuning::new().arena_size(LEN))
        .max_shared(16 << 10)
}

fn state(prefix: &str) -> (usize, usize, Vec<String>) {
    shm::state(prefix)
}

fn assert_no_space(error: &OsError) {
    assert_eq!(
        (error.call(), error.errno()),
        ("mmap", Some(libc::ENOMEM)),
        "{error}"
    );
    assert!(error.to_string().contains("ulimit -v"), "{error}");
}

/// A process at its limit survives sharing so many messages that their queue has to grow.
#[test]
fn descriptors_without_memory() {
    // The queue takes 16 bytes per entry. For more than 32,768 chunks, it has 262,144.
    const FEW: usize = 32_768;
    in_child(|prefix| {
        let provider = Provider::builder()
            .namespace(&Namespace::new(prefix).unwrap())
            .max_shared(256 << 10)
            .build()
            .unwrap();
        let messages: Vec<_> = (0..FEW + 1)
            .map(|_| provider.alloc(1).unwrap().freeze())
            .collect();
        let (last, few) = messages.split_last().unwrap();
        for message in few {
            message.descriptor().unwrap();
        }
        for _ in 0..ROUNDS {
            let error = with_private_memory(LITTLE, || last.descriptor()).unwrap_err();
            assert_eq!(error, ShareError::OutOfMemory { bytes: 4 << 20 });
        }
        let descriptor = last.descriptor().unwrap();
        drop(shm::client(prefix).attach(&descriptor).unwrap());
    });
}

#[test]
fn drops_need_no_heap() {
    for what in ["provider", "buffers", "the last buffer", "a reservation"] {
        in_child_for(what, |prefix| {
            let provider = builder(prefix)
                .max_shared(64)
                .max_idle_per_class(64)
                .build()
                .unwrap();
            let client = shm::client(prefix);
            let reservation = provider.reserve(5000, 8).unwrap();
            let mut held = Vec::new();
            for len in [64, 1000, 5000, 100_000, 1 << 20] {
                for _ in 0..4 {
                    held.push(provider.alloc(len).unwrap().freeze());
                }
            }
            let views: Vec<_> = held
                .iter()
                .step_by(2)
                .map(|sent| client.attach(&sent.descriptor().unwrap()).unwrap())
                .collect();
            match what {
                "provider" => {
                    // Some are idle, some are read, and some are held.
                    held.truncate(7);
                    with_heap_left(0, || drop(provider));
                    drop((held, views, reservation));
                }
                "buffers" => {
                    with_heap_left(0, || drop(held));
                    drop((views, reservation, provider));
                }
                "the last buffer" => {
                    drop((views, reservation, provider));
                    with_heap_left(0, || drop(held));
                }
                _ => {
                    drop(held);
                    with_heap_left(0, || drop(reservation));
                    drop((views, provider));
                }
            }
            drop(client);
            assert_eq!((shm::objects(prefix), shm::mappings(prefix)), (vec![], 0));
        });
    }
}

#[test]
fn build_and_stats_without_heap() {
    in_child(|prefix| {
        let provider = builder(prefix).build().unwrap();
        let before = state(prefix);
        for left in [0, 1 << 10, 16 << 10, 256 << 10] {
            let builder = builder(prefix);
            let built = with_heap_left(left, || builder.build());
            let text = format!("{built:?}");
            assert!(
                built.is_ok() && left > 0 || text.contains("OutOfMemory"),
                "{left} bytes left: {text}"
            );
            drop(built);
            assert_eq!(state(prefix), before, "{left} bytes left");
        }
        let held = provider.alloc(1000).unwrap();
        let stats = provider.stats();
        let without_heap = with_heap_left(0, || provider.stats());
        let figures =
            |stats: &shm_pool::Stats| (stats.bytes_held, stats.bytes_in_use, stats.segments);
        assert_eq!(
            figures(&without_heap),
            figures(&stats),
            "only the classes may be left out"
        );
        drop((held, provider));
    });
}
