//! The traits that users expect: byte types behave as `bytes::Bytes` does, ids and rules have texts and
//! encodings, and handles may cross a `catch_unwind`.

use crate::fixtures::{pair, provider};
use crate::served::Served;
use shm_pool::backend::Backend;
use shm_pool::channel::{
    Message, MessageType, OnEnd, OnFull, OnStall, Publisher, Receiver, ReceiverId, RecvError,
    Sender, Subscriber,
};
use shm_pool::inspect::ObjectState;
use shm_pool::{
    Client, Descriptor, DescriptorError, PeerId, Provider, ProviderId, ShmBytes, ShmBytesMut,
    ShmSlice, ShmView, Tuning, WakeFd,
};
use std::alloc::Layout;
use std::borrow::{Borrow, BorrowMut};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt::Debug;
use std::hash::{BuildHasher, Hash, RandomState};
use std::io::{ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::thread;

/// The same bytes in every type, with what keeps them alive.
struct Same {
    writable: ShmBytesMut,
    bytes: ShmBytes,
    view: ShmView,
    message: Message,
    inline: Message,
    _sender: Sender,
}

fn filled(provider: &Provider, content: &[u8]) -> ShmBytesMut {
    let mut buffer = provider.alloc(content.len()).unwrap();
    buffer.copy_from_slice(content);
    buffer
}

fn channel(test: &str, provider: &Provider) -> (Sender, Receiver) {
    let name = format!("traits-{test}-{}", std::process::id());
    let sender = Sender::create(provider, &name).unwrap();
    let receiver = Receiver::open(&name).unwrap();
    (sender, receiver)
}

fn same(test: &str, content: &[u8]) -> Same {
    let (provider, client) = pair();
    let bytes = filled(&provider, content).freeze();
    let view = client.attach(&bytes.descriptor().unwrap()).unwrap();
    let (mut sender, mut receiver) = channel(test, &provider);
    sender.send(bytes.clone()).unwrap();
    sender.send_copy(content).unwrap();
    Same {
        writable: filled(&provider, content),
        bytes,
        view,
        message: receiver.recv().unwrap(),
        inline: receiver.recv().unwrap(),
        _sender: sender,
    }
}

fn are_some(bytes: &[u8]) -> bool {
    bytes == b"some"
}

/// What every byte type promises, for one that holds `some`.
fn behaves_as_bytes<T>(of: &T)
where
    T: Debug + Eq + Ord + Hash + Borrow<[u8]> + AsRef<[u8]>,
    T: PartialEq<[u8]> + PartialEq<str> + PartialEq<Vec<u8>> + PartialEq<String>,
    T: PartialEq<[u8; 4]> + for<'a> PartialEq<&'a [u8]> + for<'a> PartialEq<&'a str>,
    T: for<'a> PartialEq<&'a [u8; 4]>,
    T: PartialOrd<[u8]> + PartialOrd<str> + PartialOrd<Vec<u8>> + PartialOrd<String>,
    [u8]: PartialEq<T> + PartialOrd<T>,
    str: PartialEq<T> + PartialOrd<T>,
    Vec<u8>: PartialEq<T> + PartialOrd<T>,
    String: PartialEq<T> + PartialOrd<T>,
    [u8; 4]: PartialEq<T>,
    for<'a> &'a [u8]: PartialEq<T>,
    for<'a> &'a str: PartialEq<T>,
    for<'a> &'a T: IntoIterator<Item = &'a u8>,
{
    assert_eq!(*of, b"some"[..]);
    assert_eq!(*of, &b"some"[..]);
    assert_eq!(*of, *b"some");
    assert_eq!(*of, b"some");
    assert_eq!(*of, "some");
    assert_eq!(*of, *"some");
    assert_eq!(*of, b"some".to_vec());
    assert_eq!(*of, "some".to_owned());
    assert_eq!(b"some"[..], *of);
    assert_eq!(&b"some"[..], *of);
    assert_eq!(*b"some", *of);
    assert_eq!("some", *of);
    assert_eq!(b"some".to_vec(), *of);
    assert_eq!("some".to_owned(), *of);
    assert_ne!(*of, *"som");
    assert_ne!(*of, *"somf");

    assert!(*of < *"somf");
    assert!(*of > *"som");
    assert!(b"somf"[..] > *of);
    let less = String::from("som");
    assert!(less < *of);
    assert!(of.cmp(of).is_eq());

    let hasher = RandomState::new();
    assert_eq!(hasher.hash_one(of), hasher.hash_one(&b"some"[..]));
    assert!(are_some(of.borrow()));
    assert!(are_some(of.as_ref()));
    assert!(of.into_iter().eq(b"some"));
}

#[test]
fn traits_of_every_type() {
    let same = same("traits", b"some");
    behaves_as_bytes(&same.writable);
    behaves_as_bytes(&same.bytes);
    behaves_as_bytes(&same.view);
    behaves_as_bytes(&same.message);
    behaves_as_bytes(&same.inline);
    behaves_as_bytes(&same.bytes.slice(..));
}

#[test]
fn compare_with_each_other() {
    let same = same("pairs", b"some");
    assert_eq!(same.writable, same.bytes);
    assert_eq!(same.bytes, same.writable);
    assert_eq!(same.writable, same.view);
    assert_eq!(same.view, same.writable);
    assert_eq!(same.writable, same.message);
    assert_eq!(same.message, same.writable);
    assert_eq!(same.bytes, same.view);
    assert_eq!(same.view, same.bytes);
    assert_eq!(same.bytes, same.message);
    assert_eq!(same.message, same.bytes);
    assert_eq!(same.view, same.message);
    assert_eq!(same.message, same.view);
    assert!(same.message >= same.view);
    assert_eq!(same.message, same.inline);
}

/// A map is searched by plain bytes, and a set sorts messages by content.
#[test]
fn keys_of_collections() {
    let provider = provider();
    let mut counts = HashMap::new();
    counts.insert(filled(&provider, b"key").freeze(), 1);
    *counts
        .entry(filled(&provider, b"key").freeze())
        .or_default() += 1;
    assert_eq!(counts.get(&b"key"[..]), Some(&2));

    let mut sorted = BTreeSet::new();
    for content in ["b", "ab", "a"] {
        sorted.insert(filled(&provider, content.as_bytes()).freeze());
    }
    let sorted: Vec<ShmBytes> = sorted.into_iter().collect();
    assert_eq!(sorted, ["a", "ab", "b"]);
}

#[test]
fn writable_in_place() {
    let provider = provider();
    let mut buffer = filled(&provider, b"abc");
    for byte in &mut buffer {
        *byte += 1;
    }
    let borrowed: &mut [u8] = buffer.borrow_mut();
    borrowed[0] = b'x';
    assert_eq!(buffer, "xcd");
}

/// Writes append to the length, and none is accepted beyond the capacity.
#[test]
fn writes_up_to_capacity() {
    let provider = provider();
    let mut buffer = filled(&provider, b"old");
    let capacity = buffer.capacity();
    buffer.clear();
    assert_eq!((buffer.len(), buffer.capacity()), (0, capacity));
    write!(buffer, "{}-ab", 12).unwrap();
    assert_eq!(buffer, "12-ab");

    let rest = vec![7; capacity - buffer.len() - 1];
    buffer.write_all(&rest).unwrap();
    assert_eq!(buffer.write(&[1, 2]).unwrap(), 1, "one byte fits");
    assert_eq!(buffer.write(&[3]).unwrap(), 0);
    assert_eq!(buffer.write(&[]).unwrap(), 0);
    assert_eq!(
        buffer.write_all(&[3]).unwrap_err().kind(),
        ErrorKind::WriteZero
    );
    assert_eq!(buffer.len(), capacity);
    assert!(buffer.starts_with(b"12-ab"));
    assert_eq!(buffer.last(), Some(&1));
    buffer.flush().unwrap();
}

#[test]
fn slices() {
    let provider = provider();
    let message = filled(&provider, b"headpayload").freeze();
    let head = message.slice(..4);
    let payload = message.slice(4..);
    assert_eq!(message.slice(..=3), head);
    assert_eq!(payload.slice(3..), "load");
    assert_eq!(payload.slice(1..3), "ay");
    assert_eq!(payload.slice(7..), "");
    assert!(head < payload);
    assert_eq!(head.as_ptr(), message.as_ptr(), "nothing is copied");
    assert_eq!(payload.handle(), &message);

    let Err(message) = message.try_into_mut() else {
        panic!("the slices share the bytes");
    };
    drop((head, payload));
    let slice = ShmSlice::new(message, 4..);
    assert_eq!(slice, "payload");
    assert_eq!(slice.handle(), "headpayload");
}

#[test]
fn slices_of_received_messages() {
    let same = same("slices", b"headpayload");
    let slice = ShmSlice::new(same.view, 4..);
    assert_eq!(slice, "payload");
    assert_eq!(same.message.slice(4..), "payload");
    assert_eq!(same.inline.slice(..4), "head");
}

fn panics(run: impl FnOnce() + std::panic::UnwindSafe) -> bool {
    std::panic::catch_unwind(run).is_err()
}

#[test]
#[allow(clippy::reversed_empty_ranges)]
fn slices_out_of_bounds() {
    let provider = provider();
    let message = filled(&provider, b"four").freeze();
    assert!(panics(|| drop(message.slice(5..))));
    assert!(panics(|| drop(message.slice(..5))));
    assert!(panics(|| drop(message.slice(..=4))));
    assert!(panics(|| drop(message.slice(3..2))));
    assert!(panics(|| drop(message.slice(..=usize::MAX))));
    let slice = message.slice(1..3);
    assert!(panics(|| drop(slice.slice(..3))), "past the slice");
    assert_eq!(message.slice(4..), "");
}

/// The buffer goes back with the last clone, once, in whatever order they are dropped.
#[test]
fn clones_of_a_message() {
    let provider = provider();
    let (mut sender, mut receiver) = channel("clones", &provider);
    let bytes = filled(&provider, b"shared").freeze();
    sender.send(bytes.clone()).unwrap();
    let message = receiver.recv().unwrap();
    let first = message.clone();
    let second = first.clone();
    assert_eq!(first.as_ptr(), message.as_ptr(), "nothing is copied");
    assert_eq!(first.missed(), message.missed());
    drop(message);
    drop(second);
    assert!(bytes.is_leased());
    assert_eq!(first, "shared");
    drop(first);
    assert!(!bytes.is_leased());
    assert_eq!(bytes.try_into_mut().unwrap(), "shared");

    sender.send_copy(b"inline").unwrap();
    let message = receiver.recv().unwrap();
    let clone = message.clone();
    drop(message);
    assert_eq!(clone, "inline");
}

/// Clones count once for the receiver's limit, and outlive both ends and the provider.
#[test]
fn clones_count_once() {
    let provider = provider();
    let name = format!("traits-limit-{}", std::process::id());
    let mut sender = Sender::builder()
        .max_borrowed(1)
        .create(&provider, &name)
        .unwrap();
    let mut receiver = Receiver::open(&name).unwrap();
    sender
        .try_send(filled(&provider, b"first").freeze())
        .unwrap();
    let first = receiver.recv().unwrap();
    let clone = first.clone();
    drop(first);
    assert!(
        sender
            .try_send(filled(&provider, b"second").freeze())
            .is_err(),
        "a clone holds the first"
    );
    drop(clone.clone());
    drop(clone);
    sender
        .try_send(filled(&provider, b"second").freeze())
        .unwrap();
    let second = receiver.recv().unwrap();
    drop((sender, receiver, provider));
    let clone = second.clone();
    drop(second);
    assert_eq!(clone, "second");
}

/// Several threads read, clone and drop one message. A buffer that went back too early would be
/// overwritten under one of them.
#[test]
fn clones_in_threads() {
    const LEN: usize = 4096;
    let provider = provider();
    let (mut sender, mut receiver) = channel("threads", &provider);
    for round in 0..300_u32 {
        sender
            .send(filled(&provider, &[round as u8; LEN]).freeze())
            .unwrap();
        let message = receiver.recv().unwrap();
        thread::scope(|scope| {
            for _ in 0..3 {
                let message = &message;
                scope.spawn(move || {
                    let clone = message.clone();
                    let again = clone.clone();
                    drop(clone);
                    assert!(again.iter().all(|&byte| byte == round as u8));
                });
            }
            let own = message.clone();
            scope.spawn(move || assert_eq!(own.len(), LEN));
        });
    }
    assert_eq!(provider.stats().bytes_leased, 0);
}

#[cfg(feature = "bytes")]
mod with_bytes {
    use super::{filled, same};
    use crate::fixtures::provider;
    use bytes::{BufMut, Bytes};

    /// Every type becomes a `Bytes` without a copy, which releases the memory with its last clone.
    #[test]
    fn into_bytes() {
        let same = same("bytes", b"some");
        let first = same.message.as_ptr();
        let message = Bytes::from(same.message);
        assert_eq!(message.as_ptr(), first, "nothing is copied");
        for bytes in [
            Bytes::from(same.writable),
            Bytes::from(same.view),
            Bytes::from(same.inline),
            message,
        ] {
            assert_eq!(bytes, "some");
        }
        let message = Bytes::from(same.bytes.clone());
        let part = message.slice(1..3);
        drop(message);
        assert_eq!(part, "om");
        assert_eq!(Bytes::from(same.bytes.slice(2..)), "me");
        drop(part);
        assert!(same.bytes.try_into_mut().is_ok(), "nothing else holds it");
    }

    #[test]
    fn buf_mut() {
        let provider = provider();
        let mut buffer = filled(&provider, b"old");
        buffer.clear();
        assert_eq!(buffer.remaining_mut(), buffer.capacity());
        buffer.put_u16(0x0102);
        buffer.put_slice(b"abc");
        assert_eq!(buffer, b"\x01\x02abc");
        buffer.put_bytes(7, buffer.remaining_mut());
        assert_eq!(buffer.len(), buffer.capacity());
        assert!(!buffer.has_remaining_mut());
        let overflow = std::panic::AssertUnwindSafe(|| buffer.put_u8(1));
        assert!(std::panic::catch_unwind(overflow).is_err());
    }
}

/// All public types but futures and what holds a `&mut`.
mod unwind_safe {
    use shm_pool::{backend, channel, inspect};
    use std::panic::{RefUnwindSafe, UnwindSafe};

    const fn is_unwind_safe<T: UnwindSafe + RefUnwindSafe>() {}

    macro_rules! assert_unwind_safe {
        ($($type:ty),+ $(,)?) => {
            $( const _: () = is_unwind_safe::<$type>(); )+
        };
    }

    assert_unwind_safe!(
        shm_pool::AllocError,
        shm_pool::AttachError,
        shm_pool::BuildError,
        shm_pool::CapacityError,
        shm_pool::ClassStats,
        shm_pool::Client,
        shm_pool::Counters,
        shm_pool::Descriptor,
        shm_pool::DescriptorError,
        shm_pool::OsError,
        shm_pool::ParseError,
        shm_pool::PeerId,
        shm_pool::Provider,
        shm_pool::ProviderBuilder,
        shm_pool::ProviderId,
        shm_pool::Request<'_>,
        shm_pool::Reservation,
        shm_pool::ShareError,
        shm_pool::ShmBytes,
        shm_pool::ShmBytesMut,
        shm_pool::ShmSlice<shm_pool::ShmBytes>,
        shm_pool::ShmView,
        shm_pool::Stats,
        shm_pool::Swept,
        shm_pool::Tuning,
        shm_pool::WakeFd,
        backend::Backend,
        backend::BackendBuilder,
        backend::Chunk,
        backend::SegmentFile,
        channel::ChannelChange,
        channel::ChannelError,
        channel::ChannelInfo,
        channel::ChannelEvent,
        channel::Interrupter,
        channel::IntoIter,
        channel::Message,
        channel::MessageType,
        channel::Missed,
        channel::OnFull,
        channel::OnStall,
        channel::Publisher,
        channel::PublisherBuilder,
        channel::Receiver,
        channel::ReceiverBuilder,
        channel::ReceiverId,
        channel::ReceiverState,
        channel::RecvError,
        channel::SendError<shm_pool::ShmBytes>,
        channel::SendErrorKind,
        channel::Sender,
        channel::SenderBuilder,
        channel::Sent,
        channel::Subscriber,
        channel::SubscriberBuilder,
        channel::Watcher,
        inspect::ChannelReport,
        inspect::ClassReport,
        inspect::DamagedReceiver,
        inspect::Inspector,
        inspect::PeerReport,
        inspect::Process,
        inspect::ProviderReport,
        inspect::ReceiverReport,
        inspect::Report,
        inspect::SegmentReport,
        inspect::ObjectState,
    );

    #[cfg(feature = "zerocopy")]
    assert_unwind_safe!(
        channel::IntoIter<u64>,
        channel::Publisher<u64>,
        channel::PublisherBuilder<u64>,
        channel::Receiver<[u64]>,
        channel::ReceiverBuilder<[u64]>,
        channel::Sender<u64>,
        channel::SenderBuilder<u64>,
        channel::Subscriber<[u64]>,
        channel::SubscriberBuilder<[u64]>,
        channel::typed::Value<shm_pool::ShmBytes, u64>,
        channel::typed::Value<channel::Message, [u64]>,
    );
}

/// A server that catches the panics of its handlers goes on with the same provider and channel.
#[test]
fn panic_beside_handles() {
    let provider = provider();
    let (sender, mut receiver) = channel("panic", &provider);
    let mut sender = Some(sender);
    let handler = || {
        let mut buffer = provider.alloc(8).unwrap();
        buffer[0] = 1;
        panic!("a handler fails");
    };
    assert!(panics(handler));
    assert_eq!(provider.stats().bytes_in_use, 0);
    let sender = sender.as_mut().unwrap();
    sender.send(filled(&provider, b"next").freeze()).unwrap();
    assert_eq!(receiver.recv().unwrap(), "next");
}

#[test]
fn ids_as_text() {
    let provider = ProviderId::from(0xab);
    assert_eq!(provider.to_string(), "00000000000000ab");
    assert_eq!("ab".parse(), Ok(provider));
    assert_eq!("00000000000000AB".parse(), Ok(provider));
    for text in ["", "+1", "-1", " 1", "g", "0x1", "00000000000000001"] {
        let error = text.parse::<ProviderId>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "expected a provider's id: up to 16 hexadecimal digits"
        );
        assert!(text.parse::<ReceiverId>().is_err(), "{text:?}");
    }
    let receiver = ReceiverId::from(u64::MAX);
    assert_eq!(receiver.to_string(), "ffffffffffffffff");
    assert_eq!(receiver.to_string().parse(), Ok(receiver));
    assert_eq!(format!("{receiver:?}"), "ReceiverId(ffffffffffffffff)");
    assert_eq!(u64::from(receiver), u64::MAX);
    assert_eq!(ReceiverId::from(u64::MAX), receiver);
    assert_eq!(
        (ProviderId::from(0xab), u64::from(provider)),
        (provider, 0xab)
    );

    let mut bytes = [0; PeerId::SIZE];
    bytes[0] = 0xab;
    bytes[8] = 17;
    bytes[16] = 3;
    let peer = PeerId::from_bytes(bytes);
    assert_eq!(peer.to_string(), "00000000000000ab-3-17");
    assert_eq!(format!("{peer:?}"), "PeerId(00000000000000ab-3-17)");
    assert_eq!(peer.to_string().parse(), Ok(peer));
    for text in [
        "",
        "ab-3",
        "ab-3-17-",
        "ab-+3-17",
        "ab-256-17",
        "ab--17",
        "+b-3-17",
    ] {
        assert!(text.parse::<PeerId>().is_err(), "{text:?}");
    }
}

/// Peers are keys of sorted maps.
#[test]
fn peers_are_sorted() {
    let peer = |provider, epoch, slot| {
        let mut bytes = [0; PeerId::SIZE];
        bytes[0] = provider;
        bytes[8] = epoch;
        bytes[16] = slot;
        PeerId::from_bytes(bytes)
    };
    let sorted = [peer(1, 9, 0), peer(1, 1, 2), peer(1, 2, 2), peer(2, 0, 0)];
    let set: BTreeSet<PeerId> = sorted.into_iter().rev().collect();
    assert!(set.into_iter().eq(sorted));
}

#[test]
fn ids_as_bytes() {
    const NONE: [u8; Descriptor::SIZE] = [0; Descriptor::SIZE];
    const REFUSED: Result<Descriptor, DescriptorError> = Descriptor::from_bytes(NONE);
    const PEER: [u8; PeerId::SIZE] = PeerId::from_bytes([1; PeerId::SIZE]).to_bytes();
    assert!(REFUSED.is_err());
    assert_eq!(PEER[..17], [1; 17]);

    let provider = provider();
    let message = filled(&provider, b"some").freeze();
    let descriptor = message.descriptor().unwrap();
    let bytes: [u8; 32] = descriptor.into();
    assert_eq!(bytes, descriptor.to_bytes());
    assert_eq!(Descriptor::try_from(bytes), Ok(descriptor));
    assert_eq!(Descriptor::try_from(&bytes[..]), Ok(descriptor));
    let error = Descriptor::try_from(&bytes[..31]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a descriptor has 32 bytes, but 31 were given"
    );

    let peer = Client::new().connect(provider.id()).unwrap();
    let bytes: [u8; 24] = peer.into();
    assert_eq!(PeerId::from(bytes), peer);
    assert_eq!(PeerId::try_from(&bytes[..]).unwrap(), peer);
    assert!(PeerId::try_from(&bytes[1..]).is_err());
}

#[test]
fn disconnect_where() {
    let provider = provider();
    let name = format!("traits-where-{}", std::process::id());
    let mut publisher = Publisher::create(&provider, &name).unwrap();
    let open = |capacity| {
        Subscriber::builder()
            .capacity(capacity)
            .open(&name)
            .unwrap()
    };
    let mut kept = open(8);
    let mut others = [open(4), open(4)];
    publisher.send_copy(b"some").unwrap();
    assert_eq!(publisher.served().receivers().count(), 3);
    assert_eq!(publisher.disconnect_where(|state| state.capacity == 4), 2);
    assert_eq!(publisher.disconnect_where(|state| state.capacity == 4), 0);
    assert_eq!(publisher.send_copy(b"more").unwrap().receivers, 1);
    assert_eq!(kept.recv().unwrap(), "some");
    for other in &mut others {
        assert!(matches!(other.recv(), Err(RecvError::Evicted)));
    }
}

#[test]
fn rules_as_text() {
    for rule in [OnFull::Block, OnFull::DropNewest, OnFull::DropOldest] {
        assert_eq!(rule.to_string().parse(), Ok(rule));
    }
    assert_eq!(OnFull::DropOldest.to_string(), "drop_oldest");
    assert_eq!(format!("{:>6}", OnFull::Block), " block");
    for rule in [OnStall::Skip, OnStall::Disconnect] {
        assert_eq!(rule.to_string().parse(), Ok(rule));
    }
    assert_eq!(OnStall::Disconnect.to_string(), "disconnect");
    assert_eq!(
        "Block".parse::<OnFull>().unwrap_err().to_string(),
        "expected block, drop_newest or drop_oldest"
    );
    assert!("".parse::<OnStall>().is_err());
    for rule in [OnEnd::Wait, OnEnd::Return] {
        assert_eq!(rule.to_string().parse(), Ok(rule));
    }
    assert!("".parse::<OnEnd>().is_err());
}

/// Options and types may be constants.
#[test]
fn constants() {
    const TUNING: Tuning = Tuning::new()
        .arena_size(1 << 20)
        .idle_window(64)
        .huge_pages(false);
    const SCAN: MessageType = MessageType::new("Scan", 1, Layout::new::<u64>()).with_elements(4);
    assert_eq!((SCAN.size(), SCAN.align(), SCAN.element_size()), (8, 8, 4));
    let provider = Provider::builder()
        .max_bytes(4 << 20)
        .tuning(TUNING)
        .build()
        .unwrap();
    drop(provider.alloc(1).unwrap());
    assert_eq!(provider.stats().bytes_mapped, 1 << 20);
}

#[test]
fn small_types_are_hashed() {
    let types = HashSet::from([
        MessageType::new("Scan", 1, Layout::new::<u64>()),
        MessageType::new("Scan", 1, Layout::new::<u64>()),
    ]);
    assert_eq!(types.len(), 1);
    let rules = HashSet::from([(OnFull::Block, OnStall::Skip)]);
    assert!(rules.contains(&(OnFull::Block, OnStall::Skip)));
    assert!(HashSet::from([ObjectState::Alive]).contains(&ObjectState::Alive));
}

/// A default builder is that of `builder()`.
#[test]
fn default_builders() {
    fn same<B: Default + Debug>(builder: B) {
        assert_eq!(format!("{:?}", B::default()), format!("{builder:?}"));
    }
    same(Provider::builder());
    same(Backend::builder());
    same(Sender::builder());
    same(Receiver::builder());
    same(Publisher::builder());
    same(Subscriber::builder());
}

/// No handle prints its private parts.
#[test]
fn debug_output() {
    let provider = Provider::builder()
        .max_bytes(1 << 20)
        .max_alloc(4096)
        .build()
        .unwrap();
    assert_eq!(
        format!("{provider:?}"),
        format!(
            "Provider {{ id: ProviderId({}), prefix: \"shm_pool\", max_bytes: 1048576, \
             max_alloc: 4096, .. }}",
            provider.id()
        )
    );
    let reservation = provider.reserve(100, 2).unwrap();
    assert_eq!(format!("{reservation:?}"), "Reservation { count: 2, .. }");
    let buffer = provider.alloc(100).unwrap();
    let capacity = buffer.capacity();
    assert_eq!(
        format!("{buffer:?}"),
        format!("ShmBytesMut {{ len: 100, capacity: {capacity} }}")
    );
    let wake = WakeFd::new().unwrap();
    assert_eq!(
        format!("{wake:?}"),
        format!("WakeFd {{ fd: {}, .. }}", wake.as_raw_fd())
    );
    let (_sender, receiver) = channel("debug", &provider);
    let interrupter = receiver.interrupter();
    assert_eq!(format!("{interrupter:?}"), "Interrupter { is_set: false }");
    interrupter.interrupt();
    assert_eq!(format!("{interrupter:?}"), "Interrupter { is_set: true }");
}

#[cfg(feature = "serde")]
mod with_serde {
    use super::filled;
    use crate::fixtures::{builder, unique_prefix};
    use shm_pool::channel::{OnFull, OnStall, ReceiverId};
    use shm_pool::inspect::Inspector;
    use shm_pool::{Client, Descriptor, PeerId, ProviderId};

    fn round_trip<T>(value: T) -> String
    where
        T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug,
    {
        let text = serde_json::to_string(&value).unwrap();
        assert_eq!(serde_json::from_str::<T>(&text).unwrap(), value);
        text
    }

    #[test]
    fn ids_and_rules() {
        assert_eq!(round_trip(ProviderId::from(0xab)), "\"00000000000000ab\"");
        assert_eq!(round_trip(ReceiverId::from(1)), "\"0000000000000001\"");
        let peer = PeerId::from_bytes([1; PeerId::SIZE]);
        assert_eq!(round_trip(peer), format!("\"{peer}\""));
        assert_eq!(round_trip(OnFull::DropNewest), "\"drop_newest\"");
        assert_eq!(round_trip(OnStall::Skip), "\"skip\"");
        assert!(serde_json::from_str::<ProviderId>("\"+1\"").is_err());
    }

    /// A descriptor is its 32 bytes, which are checked again.
    #[test]
    fn descriptors() {
        let provider = builder().build().unwrap();
        let message = filled(&provider, b"some").freeze();
        let descriptor = message.descriptor().unwrap();
        let text = round_trip(descriptor);
        let bytes: Vec<u8> = serde_json::from_str(&text).unwrap();
        assert_eq!(bytes, descriptor.to_bytes());
        let received: Descriptor = serde_json::from_str(&text).unwrap();
        assert_eq!(Client::new().attach(&received).unwrap(), "some");
        let zeros = serde_json::to_string(&[0; 32]).unwrap();
        assert!(serde_json::from_str::<Descriptor>(&zeros).is_err());
    }

    #[test]
    fn reports() {
        let prefix = unique_prefix("serde");
        let provider = builder()
            .namespace(&shm_pool::Namespace::new(&prefix).unwrap())
            .build()
            .unwrap();
        let _buffer = provider.alloc(100).unwrap();
        let report = Inspector::new()
            .namespace(&shm_pool::Namespace::new(&prefix).unwrap())
            .report()
            .unwrap();
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["directory"], "/dev/shm");
        assert_eq!(json["providers"][0]["id"], provider.id().to_string());
        assert_eq!(json["providers"][0]["state"], "alive");
        let stats = serde_json::to_value(provider.stats()).unwrap();
        assert_eq!(stats["bytes_in_use"], provider.stats().bytes_in_use);
        let counters = serde_json::to_value(provider.counters()).unwrap();
        assert!(counters.is_object());

        let missed = serde_json::to_value(shm_pool::channel::Missed::default()).unwrap();
        assert_eq!(missed["withdrawn"], 0);
    }
}
