//! An owner that forks: every handle is inert in the child, and the parent loses nothing (D11).

use crate::child::Child;
use crate::shm::{self, Names};
use crate::sys;
use crate::wire::{Link, Message};
use shm_pool::channel::{ChannelError, Sender};
use shm_pool::{AllocError, AllocErrorKind, AttachError, Client, Provider, ShareError, ShmBuf, ShmBufMut, ShmView};
use std::alloc::Layout;

const LARGE: usize = 300_000;
const SMALL: usize = 1_000;

/// A fork, for example by a library that starts a program, does not release the parent's memory
/// twice, and does not remove it.
#[test]
fn forked_child_owns_nothing() {
    let names = Names::new("fork-owner");
    let child = Child::start("forked-owner", &[names.prefix()]);
    child.expect_done();
    child.finish();
}

/// One handle of each kind.
struct Handles {
    writable: [ShmBufMut; 2],
    frozen: ShmBuf,
    clone: ShmBuf,
    sent: ShmBuf,
    view: ShmView,
    client: Client,
    provider: Provider,
}

fn message(provider: &Provider, len: usize, seed: u64) -> ShmBufMut {
    let mut buffer = provider.alloc(len).unwrap();
    shm::fill(&mut buffer, seed);
    buffer
}

impl Handles {
    fn new(prefix: &str) -> Self {
        let provider = Provider::builder().name_prefix(prefix).build().unwrap();
        let client = shm::client(prefix);
        drop(provider.reserve(LARGE, 6).unwrap()); // some stay idle
        let writable = [message(&provider, LARGE, 1), message(&provider, SMALL, 2)];
        let frozen = message(&provider, LARGE, 3).freeze();
        let sent = message(&provider, SMALL, 4).freeze();
        let view = client.attach(&sent.descriptor().unwrap()).unwrap();
        Self { writable, clone: frozen.clone(), frozen, sent, view, client, provider }
    }

    fn check_bytes(&self) {
        let all: [(&[u8], u64); 6] = [
            (&self.writable[0], 1),
            (&self.writable[1], 2),
            (&self.frozen, 3),
            (&self.clone, 3),
            (&self.sent, 4),
            (&self.view, 4),
        ];
        all.iter().for_each(|(bytes, seed)| shm::check(bytes, *seed).unwrap());
    }
}

role!("forked-owner", role);

/// The role: forks, and then checks that all the parent's handles work.
fn role(link: &Link, arguments: &[&str]) {
    let prefix = arguments[0];
    let mut handles = Handles::new(prefix);
    let before = (shm::objects(prefix), handles.provider.stats());
    let Some(forked) = sys::fork() else { sys::end_with(move || in_the_forked_child(handles, prefix)) };
    forked.finish();

    assert_eq!((shm::objects(prefix), handles.provider.stats()), before, "as if there had been no fork");
    handles.check_bytes();
    assert!(handles.sent.is_leased());
    shm::fill(&mut handles.writable[0], 5);
    shm::check(&handles.writable[0], 5).unwrap();
    let misses = before.1.misses();
    drop(message(&handles.provider, LARGE, 6));
    assert_eq!(handles.provider.stats().misses(), misses, "the idle memory is there");
    drop(handles.client.attach(&handles.frozen.descriptor().unwrap()).unwrap());
    drop(handles.view);
    assert!(!handles.sent.is_leased(), "the view's lease was taken back once");
    drop((handles.writable, handles.frozen, handles.clone, handles.sent));
    assert_eq!(handles.provider.stats().bytes_in_use, 0);
    drop((handles.client, handles.provider));
    assert_eq!(shm::objects(prefix), [""; 0]);
    link.send(&Message::Done);
}

fn in_the_forked_child(handles: Handles, prefix: &str) {
    handles.check_bytes();
    let Handles { writable, frozen, clone, sent, view, client, provider } = handles;
    let layout = Layout::from_size_align(LARGE, 4096).unwrap();
    let is_forked = |result: Result<(), AllocError>| matches!(result.unwrap_err().kind(), AllocErrorKind::Forked);
    assert!(is_forked(provider.alloc(SMALL).map(drop)), "from idle memory of an arena");
    assert!(is_forked(provider.alloc(LARGE).map(drop)), "from an idle segment");
    assert!(is_forked(provider.alloc(10 * LARGE).map(drop)), "from new memory");
    assert!(is_forked(provider.alloc_layout(layout).map(drop)));
    assert!(is_forked(provider.alloc_zeroed(SMALL).map(drop)));
    assert!(is_forked(provider.reserve(SMALL, 1).map(drop)));
    assert_eq!(provider.trim(), 0);
    let lent = Sender::create(&provider, "c").map(drop);
    assert!(matches!(lent, Err(ChannelError::Forked)), "the parent would not know what is lent: {lent:?}");
    assert_eq!(frozen.descriptor().unwrap_err(), ShareError::Forked, "a message that was not shared before");
    assert_eq!(sent.descriptor().unwrap_err(), ShareError::Forked, "and one that was");
    assert!(matches!(client.connect(provider.id()), Err(AttachError::Forked)));
    assert!(matches!(view.try_clone(), Err(AttachError::Forked)));
    assert_eq!(client.trim(), 0);
    let clone = clone.try_into_mut().expect_err("a forked child cannot write");
    drop((writable, frozen, clone, sent, view, client, provider));
    a_pool_of_its_own(prefix);
}

/// A pool that is created after the fork works.
fn a_pool_of_its_own(prefix: &str) {
    let handles = Handles::new(prefix);
    handles.check_bytes();
    let objects = shm::objects(prefix).len();
    let Some(forked) = sys::fork() else { sys::end_with(move || drop(handles)) };
    forked.finish(); // the child's own child owns nothing either
    assert_eq!(shm::objects(prefix).len(), objects);
    handles.check_bytes();
    let id = handles.provider.id().to_string();
    drop(handles);
    assert!(shm::objects(prefix).iter().all(|name| !name.contains(&id)), "its own objects are removed by itself");
}
