//! Channels of one type, and values in place.

use crate::fixtures::{alloc_many, pair, unique_prefix, FOR_EVER, NOW};
use shm_pool::channel::typed::{Schema, Value, WithHeader};
use shm_pool::channel::{
    wait_any, ChannelError, ChannelEvent, Message, MessageType, OnEnd, OnFull, Payload, Publisher,
    Receiver, RecvError, SendErrorKind, Sender, Subscriber, MAX_INLINE,
};
use shm_pool::inspect::Inspector;
use shm_pool::{AllocError, Client, Provider};
use shm_pool_support::tasks::block_on;
use std::alloc::Layout;
use std::fmt::Debug;
use std::fs::OpenOptions;
use std::future::poll_fn;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::Duration;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, TryFromBytes};

shm_pool::message_type! {
    #[derive(Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
    #[repr(C)]
    pub(crate) struct Sample {
        stamp: u64,
        pub(crate) axes: [f32; 10],
    }
}

shm_pool::message_type! {
    #[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
    #[repr(C)]
    struct Cloud {
        stamp: u32,
    }
}

mod swapped {
    use super::*;

    shm_pool::message_type! {
        /// Of the same size and alignment.
        #[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
        #[repr(C)]
        pub(crate) struct Sample {
            axes: [f32; 10],
            stamp: u64,
        }
    }
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C, align(256))]
struct Wide([u8; 256]);

impl Schema for Wide {
    const NAME: &'static str = "Wide";
    const VERSION: u64 = 1;
}

fn ends<T: Payload + ?Sized>(test: &str) -> (Provider, Publisher<T>, Subscriber<T>) {
    let ((provider, _), name) = (pair(), unique_prefix(test));
    let publisher = Publisher::create_typed(&provider, &name).unwrap();
    (provider, publisher, subscriber(&name))
}

/// The publisher declares the type, and sends any bytes.
fn faulty_ends<T: Payload + ?Sized>(test: &str) -> (Provider, Publisher, Subscriber<T>) {
    let ((provider, _), name) = (pair(), unique_prefix(test));
    let message_type = T::message_type().unwrap();
    let publisher = Publisher::builder().message_type(message_type);
    let publisher = publisher.create(&provider, &name).unwrap();
    (provider, publisher, subscriber(&name))
}

fn subscriber<T: Payload + ?Sized>(name: &str) -> Subscriber<T> {
    let subscriber = Subscriber::builder().on_end(OnEnd::Return).typed();
    subscriber.open(name).unwrap()
}

fn sample(stamp: u64) -> Sample {
    Sample {
        stamp,
        axes: [0.0; 10],
    }
}

#[test]
fn value_in_place() {
    let (provider, mut publisher, mut receiver) = ends::<Sample>("value");
    let mut sample = provider.alloc_value_zeroed::<Sample>().unwrap();
    sample.stamp = 7;
    sample.axes = [0.5; 10];
    let sample = Value::freeze(sample);
    assert_eq!(publisher.send(sample.clone()).unwrap().receivers, 1);
    let received = receiver.recv().unwrap();
    assert_eq!(
        (received.stamp, received.axes, Value::missed(&received)),
        (7, [0.5; 10], 0)
    );
    assert_eq!(received.as_bytes(), sample.as_bytes());
    assert!(matches!(receiver.try_recv(), Err(RecvError::Empty)));
    drop(sample);
    assert_eq!(provider.stats().bytes_leased, 64, "it is read in place");
}

#[test]
fn copy_in_slot() {
    let (provider, mut publisher, mut receiver) = ends::<Sample>("copy");
    assert_eq!(std::mem::size_of::<Sample>(), MAX_INLINE);
    assert_eq!(
        publisher
            .send_copy(&Sample {
                stamp: 7,
                axes: [0.5; 10]
            })
            .unwrap()
            .receivers,
        1
    );
    // It is read where it was moved to.
    let received = [Some(receiver.recv_timeout(Duration::ZERO).unwrap()), None];
    assert_eq!(
        (
            received[0].as_ref().unwrap().stamp,
            provider.stats().bytes_held
        ),
        (7, 0)
    );
}

/// A value that is too long for a slot, or aligned to more than a slot is, is copied into a buffer.
#[test]
fn copy_in_buffer() {
    #[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
    #[repr(C, align(128))]
    struct Aligned {
        number: u64,
        rest: [u64; 15],
    }

    impl Schema for Aligned {
        const NAME: &'static str = "Aligned to 128";
        const VERSION: u64 = 1;
    }

    let (provider, mut publisher, mut receiver) = ends::<[u64; 1000]>("copy-long");
    publisher.send_copy(&[7; 1000]).unwrap();
    assert_eq!(*receiver.recv().unwrap(), [7; 1000]);
    let (_, mut small, mut of_small) = ends::<u128>("copy-aligned");
    let (_, mut large, mut of_large) = ends::<Aligned>("copy-page");
    for number in 0..8 {
        small.try_send_copy(&u128::from(number)).unwrap();
        assert_eq!(*of_small.recv().unwrap(), u128::from(number));
        let rest = [number; 15];
        large.send_copy(&Aligned { number, rest }).unwrap();
        let value = of_large.recv().unwrap();
        assert_eq!((value.number, value.rest), (number, rest));
    }
    assert_eq!(provider.stats().bytes_leased, 0);
}

#[test]
fn header_and_slice() {
    let (provider, mut publisher, mut receiver) = ends::<WithHeader<Cloud, [[f64; 2]]>>("slice");
    for len in [0, 1, 10_000] {
        let mut cloud = provider
            .alloc_slice_zeroed::<WithHeader<Cloud, [[f64; 2]]>>(len)
            .unwrap();
        cloud.stamp = len as u32;
        Value::items_mut(&mut cloud).fill([1.0, 2.0]);
        publisher.send(cloud).unwrap();
        let cloud = receiver.recv().unwrap();
        assert_eq!((cloud.stamp, Value::items(&cloud).len()), (len as u32, len));
        assert!(Value::items(&cloud)
            .iter()
            .all(|point| *point == [1.0, 2.0]));
    }
    let too_many = provider
        .alloc_slice_zeroed::<WithHeader<Cloud, [[f64; 2]]>>(usize::MAX)
        .err()
        .expect("more than there is memory");
    assert!(
        matches!(too_many, AllocError::TooLarge { .. }),
        "{too_many}"
    );
    // Of no whole number of items, without a header, and one that is moved with its slot.
    let (_provider, mut publisher, mut receiver) =
        faulty_ends::<WithHeader<Cloud, [[f64; 2]]>>("slice-faulty");
    for (len, is_value) in [
        (0, false),
        (4, false),
        (7, false),
        (8, true),
        (23, false),
        (24, true),
        (25, false),
    ] {
        publisher.send_copy(&vec![0; len]).unwrap();
        assert_eq!(receiver.recv().is_ok(), is_value, "{len} bytes");
    }
}

#[test]
fn large_alignment() {
    let (provider, mut publisher, mut receiver) = ends::<WithHeader<Wide, [Wide]>>("aligned");
    // The next one of that length is not aligned by chance.
    let _first = provider.alloc(320).unwrap();
    for len in [0, 1, 2] {
        let mut slice = provider
            .alloc_slice_zeroed::<WithHeader<Wide, [Wide]>>(len)
            .unwrap();
        slice.0.fill(len as u8);
        publisher.send(slice).unwrap();
        let slice = receiver.recv().unwrap();
        assert_eq!(
            (slice.0, Value::items(&slice).len()),
            ([len as u8; 256], len)
        );
        assert_eq!(slice.0.as_ptr() as usize % 256, 0);
        assert!(provider.alloc_value_zeroed::<Wide>().is_ok());
    }
}

/// Items of another type are noticed, too.
#[test]
fn other_items_are_refused() {
    let ((provider, _), name) = (pair(), unique_prefix("items"));
    let _sender = Sender::builder()
        .typed::<WithHeader<Cloud, [[f32; 2]]>>()
        .create(&provider, &name)
        .unwrap();
    let mismatch = |error| matches!(error, ChannelError::TypeMismatch { .. });
    let other = Receiver::builder()
        .typed::<WithHeader<Cloud, [[u32; 2]]>>()
        .open(&name);
    assert!(other.is_err_and(mismatch));
    assert!(Receiver::builder()
        .typed::<WithHeader<Cloud, [[[f32; 1]; 2]]>>()
        .open(&name)
        .is_err_and(mismatch));
    assert!(Receiver::builder()
        .typed::<Cloud>()
        .open(&name)
        .is_err_and(mismatch));
    assert!(Receiver::builder()
        .typed::<WithHeader<Cloud, [[f32; 2]]>>()
        .open(&name)
        .is_ok());
}

/// Returns the types that the error tells of.
fn refused<E: Debug>(opened: Result<E, ChannelError>) -> [Option<MessageType>; 2] {
    let error = opened.expect_err("a channel of another type was opened");
    let text = error.to_string();
    let ChannelError::TypeMismatch {
        expected, found, ..
    } = error
    else {
        panic!("{error}")
    };
    assert!(text.contains(&expected.to_string()), "{text}");
    if let Some(found) = &found {
        assert!(text.contains(&found.to_string()), "{text}");
    }
    [Some(*expected), found.map(|found| *found)]
}

/// A change that keeps name, size and alignment is noticed too.
#[test]
fn other_version_is_refused() {
    let ((provider, _), name) = (pair(), unique_prefix("version"));
    let open = || {
        Subscriber::builder()
            .on_end(OnEnd::Return)
            .typed::<Sample>()
            .open(&name)
    };
    let _publisher = Publisher::builder()
        .typed::<swapped::Sample>()
        .create(&provider, &name)
        .unwrap();
    let [expected, found] = refused(open()).map(Option::unwrap);
    assert_ne!(expected.version(), found.version());
    let layout = |it: &MessageType| {
        (
            it.name().to_owned(),
            it.size(),
            it.align(),
            it.element_size(),
        )
    };
    assert_eq!(layout(&expected), layout(&found));
    assert_eq!(layout(&found), ("Sample".to_owned(), 48, 8, 0));
    assert!(
        Subscriber::builder()
            .on_end(OnEnd::Return)
            .open(&name)
            .is_ok(),
        "an untyped receiver may open any channel"
    );
}

#[test]
fn every_difference_is_refused() {
    let ((provider, _), name) = (pair(), unique_prefix("differences"));
    let sample = || MessageType::new("Sample", Sample::VERSION, Layout::new::<Sample>());
    let layout = |size, align| Layout::from_size_align(size, align).unwrap();
    let others = [
        MessageType::new("sample", Sample::VERSION, Layout::new::<Sample>()),
        MessageType::new("Sample\0", Sample::VERSION, Layout::new::<Sample>()),
        MessageType::new("Sample", Sample::VERSION ^ 1 << 63, Layout::new::<Sample>()),
        MessageType::new("Sample", Sample::VERSION, layout(56, 8)),
        MessageType::new("Sample", Sample::VERSION, layout(48, 16)),
        sample().with_elements(1),
    ];
    let open = || Receiver::builder().typed::<Sample>().open(&name);
    let mut declared = Vec::from(others.map(Some));
    declared.push(None);
    for other in declared {
        let sender = Sender::builder();
        let publisher = Publisher::builder();
        let sender = match &other {
            Some(other) => sender.message_type(other.clone()),
            None => sender,
        };
        let sender = sender.create(&provider, &name).unwrap();
        assert_eq!(refused(open()), [Some(sample()), other.clone()]);
        drop(sender);
        let publisher = match &other {
            Some(other) => publisher.message_type(other.clone()),
            None => publisher,
        };
        let _publisher = publisher.create(&provider, &name).unwrap();
        let opened = Subscriber::builder().typed::<Sample>().open(&name);
        assert_eq!(refused(opened), [Some(sample()), other.clone()]);
        assert_eq!(
            Subscriber::open(&name).unwrap().message_type(),
            other.as_ref()
        );
        let report = Inspector::new().report().unwrap();
        let channel = report
            .channels
            .into_iter()
            .find(|channel| channel.name == name)
            .unwrap();
        assert_eq!(channel.message_type, other);
    }
    let mut sender = Sender::builder()
        .message_type(sample())
        .create(&provider, &name)
        .unwrap();
    assert!(open().is_ok() && sender.wait_for_receiver(Duration::ZERO).is_err());
}

/// An image: a header, and bytes that need no type of their own.
#[test]
fn bytes_after_a_header() {
    type Image = WithHeader<[u32; 2], [u8]>;
    let provider = pair().0;
    let name = unique_prefix("type-image");
    let mut publisher = Publisher::<Image>::create_typed(&provider, &name).unwrap();
    let mut subscriber = Subscriber::<Image>::open_typed(&name).unwrap();
    let mut image = publisher.alloc_slice_zeroed(5).unwrap();
    *image = [5, 1];
    Value::items_mut(&mut image).copy_from_slice(b"bytes");
    publisher.send(image).unwrap();
    let image = subscriber.recv().unwrap();
    assert_eq!((*image, Value::items(&image)), ([5, 1], &b"bytes"[..]));

    let other = Subscriber::<WithHeader<[u32; 2], [i8]>>::open_typed(&name);
    assert!(matches!(other, Err(ChannelError::TypeMismatch { .. })));
}

#[test]
fn name_of_type() {
    let ((provider, _), name) = (pair(), unique_prefix("type-name"));
    let named = |name| MessageType::new(name, 1, Layout::new::<u64>());
    let longest: &str = Box::leak("ü".repeat(48).into_boxed_str());
    let too_long: &str = Box::leak("x".repeat(97).into_boxed_str());
    for (bad, len) in [("", 0), (too_long, 97)] {
        let error = Sender::builder()
            .message_type(named(bad))
            .create(&provider, &name)
            .unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with(&format!("option message_type is {len},")),
            "{text}"
        );
        assert!(
            matches!(&error, ChannelError::OutOfRange(of) if of.allowed() == (1..=96)),
            "{text}"
        );
        assert!(Publisher::builder()
            .message_type(named(bad))
            .create(&provider, &name)
            .is_err());
    }
    let _sender = Sender::builder()
        .message_type(named(longest))
        .create(&provider, &name)
        .unwrap();
    assert!(Receiver::builder()
        .message_type(named(longest))
        .open(&name)
        .is_ok());
}

/// What is sent past the type is an error, and the next message is good.
#[test]
fn message_of_wrong_length() {
    let (provider, mut publisher, mut receiver) = faulty_ends::<Sample>("length");
    for len in [0, 47, 49, 96, 5_000] {
        let leased = provider.stats().bytes_leased;
        match len {
            0..=47 => publisher.send_copy(&vec![0; len]).unwrap(),
            _ => publisher.send(provider.alloc(len).unwrap()).unwrap(),
        };
        let error = receiver.recv().unwrap_err();
        assert!(
            matches!(error, RecvError::WrongType { name: "Sample", len: wrong } if wrong == len),
            "{error}"
        );
        assert_eq!(provider.stats().bytes_leased, leased, "it comes back");
        publisher.send_copy(sample(len as u64).as_bytes()).unwrap();
        assert_eq!(receiver.recv().unwrap().stamp, len as u64);
    }
}

/// Bytes in a slot move with the message, so they cannot keep a large alignment.
#[test]
fn unaligned_value() {
    #[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
    #[repr(C, align(16))]
    struct Aligned([u8; 16]);

    impl Schema for Aligned {
        const NAME: &'static str = "Aligned";
        const VERSION: u64 = 1;
    }

    let (provider, mut publisher, mut receiver) = faulty_ends::<Aligned>("unaligned");
    for _ in 0..8 {
        publisher.send_copy(&[0; 16]).unwrap();
        assert!(matches!(
            receiver.recv(),
            Err(RecvError::WrongType {
                name: "Aligned",
                len: 16
            })
        ));
    }
    publisher
        .send(Value::into_inner(
            provider.alloc_value(Aligned([7; 16])).unwrap(),
        ))
        .unwrap();
    assert_eq!(receiver.recv().unwrap().0, [7; 16]);
    let buffer = provider.alloc(17).unwrap();
    assert_eq!(
        Value::<_, Aligned>::try_new(buffer)
            .err()
            .expect("it is too long")
            .len(),
        17
    );
}

#[test]
fn view_as_value() {
    let (provider, client) = pair();
    let mut sample = provider.alloc_value_zeroed::<Sample>().unwrap();
    sample.stamp = 7;
    let sample = Value::freeze(sample);
    let view = client
        .attach(&Value::get_ref(&sample).descriptor().unwrap())
        .unwrap();
    assert_eq!(
        Value::<_, Sample>::try_new(view).expect("it was one").stamp,
        7
    );
    assert!(Value::<_, swapped::Sample>::try_new(
        Client::new()
            .attach(&Value::get_ref(&sample).descriptor().unwrap())
            .unwrap()
    )
    .is_ok());
}

#[tokio::test(flavor = "current_thread")]
async fn awaited_value() {
    let (provider, mut publisher, mut receiver) = ends::<Sample>("awaited");
    let mut sample = provider.alloc_value_zeroed::<Sample>().unwrap();
    sample.stamp = 7;
    publisher.send_async(sample).await.unwrap();
    assert_eq!(receiver.recv_async().await.unwrap().stamp, 7);
}

fn follow<T: Payload + ?Sized>(name: &str) -> Receiver<T> {
    Receiver::builder()
        .on_end(OnEnd::Wait)
        .typed()
        .open(name)
        .unwrap()
}

/// Returns the types of the sender that the receiver has refused.
fn open_error<T: Debug>(received: Result<T, RecvError>) -> [Option<MessageType>; 2] {
    let Err(RecvError::Open(error)) = received else {
        panic!("{received:?}")
    };
    refused::<()>(Err(*error))
}

/// Returns the stamp of the next event, which must be a message.
fn stamp(event: Result<ChannelEvent<Value<Message, Sample>>, RecvError>) -> u64 {
    match event {
        Ok(ChannelEvent::Message(sample)) => sample.stamp,
        other => panic!("{other:?}"),
    }
}

#[test]
fn restart_with_same_type() {
    let ((provider, _), name) = (pair(), unique_prefix("restart-same"));
    let mut receiver = follow::<Sample>(&name);
    let options = Subscriber::builder().typed::<Sample>();
    let channel = unique_prefix("restart-same-many");
    let mut subscriber = options.open(&channel).unwrap();
    assert!(matches!(receiver.try_recv(), Err(RecvError::Empty)));
    for number in 0..4 {
        let sample = provider.alloc_value(sample(number)).unwrap();
        let sample = Value::freeze(sample);
        let mut sender = Sender::<Sample>::create_typed(&provider, &name).unwrap();
        sender.send(sample.clone()).unwrap();
        assert!(matches!(
            receiver.recv_event(),
            Ok(ChannelEvent::Connected(_))
        ));
        assert_eq!(stamp(receiver.recv_event()), number);
        drop(sender);
        assert!(matches!(
            receiver.recv_event(),
            Ok(ChannelEvent::Disconnected)
        ));

        let mut publisher = Publisher::<Sample>::create_typed(&provider, &channel).unwrap();
        assert!(matches!(
            subscriber.recv_event(),
            Ok(ChannelEvent::Connected(_))
        ));
        publisher.send(sample).unwrap();
        assert_eq!(stamp(subscriber.recv_event()), number);
        drop(publisher);
        assert!(matches!(
            subscriber.recv_event(),
            Ok(ChannelEvent::Disconnected)
        ));
    }
}

/// A sender of another type, or of none, is an error, once; then the next one is awaited, also by a
/// receiver that sleeps.
#[test]
fn restart_with_other_type() {
    let ((provider, _), name) = (pair(), unique_prefix("restart-other"));
    let mut receiver = follow::<Sample>(&name);
    for number in 0..3 {
        let other = Sender::builder()
            .typed::<swapped::Sample>()
            .create(&provider, &name)
            .unwrap();
        let [expected, found] = open_error(receiver.recv_timeout(FOR_EVER)).map(Option::unwrap);
        assert_ne!(expected.version(), found.version());
        assert!(
            matches!(receiver.try_recv(), Err(RecvError::Empty)),
            "reported once"
        );
        assert!(receiver.provider().is_none() && receiver.last_error().is_none());
        drop(other);
        let untyped = Sender::create(&provider, &name).unwrap();
        assert_eq!(open_error(receiver.try_recv())[1], None);
        let receiving = thread::spawn(move || {
            let received = match number {
                0 => receiver.recv(),
                1 => receiver.recv_timeout(FOR_EVER),
                _ => block_on(receiver.recv_async()),
            };
            assert_eq!(received.unwrap().stamp, number);
            receiver
        });
        drop(untyped);
        let mut sender = Sender::builder()
            .typed::<Sample>()
            .create(&provider, &name)
            .unwrap();
        sender
            .send_copy(&Sample {
                stamp: number,
                axes: [0.0; 10],
            })
            .unwrap();
        receiver = receiving.join().unwrap();
        drop(sender);
        assert!(matches!(
            receiver.recv_event(),
            Ok(ChannelEvent::Disconnected)
        ));
    }
}

/// An option that the publisher does not allow is refused when the channel is opened, and reported
/// once if a later publisher does not allow it.
#[test]
fn subscriber_of_wrong_messages() {
    let ((provider, _), name) = (pair(), unique_prefix("subscribed-length"));
    let impatient = || {
        Publisher::builder()
            .allow_blocking(false)
            .typed::<Sample>()
            .create(&provider, &name)
            .unwrap()
    };
    let blocking = || {
        Subscriber::builder()
            .on_full(OnFull::Block)
            .typed::<Sample>()
            .open(&name)
    };
    let publisher = impatient();
    assert!(matches!(
        blocking(),
        Err(ChannelError::BlockingNotAllowed { .. })
    ));
    drop(publisher);
    let mut subscriber = blocking().unwrap();
    let publisher = impatient();
    let Err(RecvError::Open(error)) = subscriber.recv() else {
        panic!("it was opened")
    };
    assert!(
        matches!(*error, ChannelError::BlockingNotAllowed { .. }),
        "{error}"
    );
    assert!(matches!(
        subscriber.recv_timeout(NOW),
        Err(RecvError::TimedOut)
    ));
    drop(publisher);
    let message_type = Sample::message_type().unwrap();
    let publisher = Publisher::builder().message_type(message_type);
    let mut publisher = publisher.create(&provider, &name).unwrap();
    assert!(matches!(
        subscriber.recv_event(),
        Ok(ChannelEvent::Connected(_))
    ));
    publisher.send_copy(&[0; 47]).unwrap();
    publisher.send_copy(sample(7).as_bytes()).unwrap();
    let error = subscriber.recv().unwrap_err();
    assert!(
        matches!(
            error,
            RecvError::WrongType {
                name: "Sample",
                len: 47
            }
        ),
        "{error}"
    );
    assert_eq!(stamp(subscriber.recv_event()), 7);
}

/// A `bool` and an enum have bytes that are no value.
#[derive(Debug, PartialEq, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(u8)]
enum Mode {
    Idle,
    Driving = 4,
}

shm_pool::message_type! {
    #[derive(Debug, PartialEq, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
    #[repr(C)]
    struct Status {
        mode: Mode,
        is_charging: bool,
    }
}

#[test]
fn invalid_content() {
    let (_provider, mut publisher, mut subscriber) = faulty_ends::<Status>("content");
    for (bytes, is_status) in [
        ([0, 0], true),
        ([4, 1], true),
        ([1, 0], false),
        ([5, 0], false),
        ([0, 2], false),
    ] {
        publisher.send_copy(&bytes).unwrap();
        match subscriber.recv() {
            Ok(status) => {
                assert!(is_status, "{bytes:?}");
                assert_eq!(status.as_bytes(), bytes);
            }
            Err(error) => {
                assert!(!is_status, "{bytes:?}");
                assert!(matches!(
                    error,
                    RecvError::WrongType {
                        name: "Status",
                        len: 2
                    }
                ));
            }
        }
    }

    let (provider, mut publisher, mut subscriber) = ends::<Status>("status");
    let idle = Status {
        mode: Mode::Idle,
        is_charging: false,
    };
    publisher.send_copy(&idle).unwrap();
    assert_eq!(*subscriber.recv().unwrap(), idle);
    let driving = || Status {
        mode: Mode::Driving,
        is_charging: true,
    };
    publisher.send_copy(&driving()).unwrap();
    publisher
        .send(provider.alloc_value(driving()).unwrap())
        .unwrap();
    for _ in 0..2 {
        assert_eq!(*subscriber.recv().unwrap(), driving());
    }
    let buffer = provider.alloc(2).unwrap();
    let mut status: Value<_, Status> = match Value::try_new(buffer) {
        Ok(status) => status,
        Err(mut buffer) => {
            buffer.fill(0);
            Value::try_new(buffer).unwrap()
        }
    };
    status.mode = Mode::Driving;
    publisher.send(status).unwrap();
    assert_eq!(subscriber.recv().unwrap().mode, Mode::Driving);
}

#[test]
fn nothing_is_left_of_earlier_messages() {
    let provider = pair().0;
    let dirty = |len| {
        // As many as are idle, so that the next one is one of them.
        for buffer in &mut alloc_many(&provider, len, 4) {
            buffer.fill(0xff);
        }
    };
    type Cloud = WithHeader<u16, [u64]>; // with six bytes between header and items
    for _ in 0..4 {
        dirty(800);
        let value = provider.alloc_value_zeroed::<[u64; 100]>().unwrap();
        assert_eq!(*value, [0; 100]);
        drop(value);
        dirty(800);
        let slice = provider.alloc_slice_zeroed::<[u64]>(100).unwrap();
        assert_eq!(*slice, [0; 100]);
        drop(slice);
        dirty(808);
        let cloud = provider.alloc_slice_zeroed::<Cloud>(100).unwrap();
        assert_eq!(Value::into_inner(cloud)[..], [0; 808]);
        dirty(800);
        let waited = provider.request(800).wait().unwrap();
        let value = Value::<_, [u64; 100]>::try_zeroed(waited).unwrap();
        assert_eq!(*value, [0; 100]);
    }
}

#[test]
fn slice_without_header() {
    let (provider, mut publisher, mut subscriber) = ends::<[Sample]>("headerless");
    for len in [0, 1, 1_000] {
        let mut samples = publisher.alloc_slice_zeroed(len).unwrap();
        for (stamp, item) in samples.iter_mut().enumerate() {
            item.stamp = stamp as u64;
        }
        publisher.send(samples).unwrap();
        let samples = subscriber.recv().unwrap();
        assert_eq!(samples.len(), len);
        for (stamp, item) in samples.iter().enumerate() {
            assert_eq!(item.stamp, stamp as u64);
        }
    }
    let too_many = publisher.alloc_slice_zeroed(usize::MAX).err().unwrap();
    assert!(
        matches!(too_many, AllocError::TooLarge { .. }),
        "{too_many}"
    );

    // It is no channel of bytes, of one sample, or of samples with a header.
    let name = publisher.name();
    assert!(matches!(
        Subscriber::<Sample>::open_typed(name),
        Err(ChannelError::TypeMismatch { .. })
    ));
    let with_header = Subscriber::<WithHeader<Sample, [Sample]>>::open_typed(name);
    assert!(matches!(
        with_header,
        Err(ChannelError::TypeMismatch { .. })
    ));
    drop(provider);
}

/// An end of a type receives in each way that one of bytes does.
#[tokio::test(flavor = "current_thread")]
async fn every_way_to_receive() {
    let (_provider, mut publisher, mut subscriber) = ends::<u64>("ways");
    for number in 0..11 {
        publisher.send_copy(&number).unwrap();
    }
    assert_eq!(wait_any(&mut [&mut subscriber], FOR_EVER), Ok(0));
    assert_eq!(*subscriber.recv().unwrap(), 0);
    assert_eq!(*subscriber.try_recv().unwrap(), 1);
    assert_eq!(*subscriber.recv_timeout(FOR_EVER).unwrap(), 2);
    assert_eq!(*subscriber.recv_async().await.unwrap(), 3);
    assert_eq!(
        *poll_fn(|context| subscriber.poll_recv(context))
            .await
            .unwrap(),
        4
    );
    let connected = subscriber.recv_event().unwrap();
    assert!(matches!(connected, ChannelEvent::Connected(_)));
    let number = |event: Result<ChannelEvent<Value<Message, u64>>, RecvError>| match event {
        Ok(ChannelEvent::Message(number)) => *number,
        event => panic!("{event:?}"),
    };
    assert_eq!(number(subscriber.recv_event()), 5);
    assert_eq!(number(subscriber.try_recv_event()), 6);
    assert_eq!(number(subscriber.recv_event_timeout(FOR_EVER)), 7);
    assert_eq!(number(subscriber.recv_event_async().await), 8);
    assert_eq!(*subscriber.iter().next().unwrap().unwrap(), 9);
    let rest: Vec<u64> = subscriber
        .try_iter()
        .map(|number| *number.unwrap())
        .collect();
    assert_eq!(rest, [10]);
    publisher.send_copy(&11).unwrap();
    publisher.send_copy(&12).unwrap();
    drop(publisher);
    #[cfg(feature = "stream")]
    {
        use futures_core::Stream;
        use std::pin::Pin;
        let next = poll_fn(|context| Pin::new(&mut subscriber).poll_next(context)).await;
        assert_eq!(*next.unwrap().unwrap(), 11);
    }
    #[cfg(not(feature = "stream"))]
    assert_eq!(*subscriber.recv().unwrap(), 11);
    let rest: Vec<u64> = subscriber
        .into_iter()
        .map(|number| *number.unwrap())
        .collect();
    assert_eq!(rest, [12]);
}

/// Options set after the type stay, and so does the type.
#[test]
fn options_in_any_order() {
    let ((provider, _), name) = (pair(), unique_prefix("order"));
    let builder = Publisher::builder().typed::<u64>().capacity(4).clone();
    let publisher: Publisher<u64> = builder.create(&provider, &name).unwrap();
    assert_eq!(publisher.capacity(), 4);
    let options = Subscriber::builder().capacity(2).typed::<u64>();
    let subscriber: Subscriber<u64> = options.clone().max_borrowed(8).open(&name).unwrap();
    assert_eq!((subscriber.capacity(), subscriber.max_borrowed()), (2, 8));
    let buffers = Publisher::builder().typed::<u64>().buffers([(&options, 1)]);
    assert!(buffers > 1);
    let other = Subscriber::builder().typed::<u32>().capacity(2).open(&name);
    assert!(matches!(other, Err(ChannelError::TypeMismatch { .. })));

    let name = unique_prefix("order-pair");
    let builder = Sender::builder().typed::<u64>().capacity(4);
    let mut sender = builder.create(&provider, &name).unwrap();
    assert_eq!(sender.capacity(), 4);
    let builder = Receiver::builder().typed::<u64>().on_end(OnEnd::Wait);
    let mut receiver = builder.open(&name).unwrap();
    sender.send(sender.alloc_value(7).unwrap()).unwrap();
    assert_eq!(*receiver.recv().unwrap(), 7);
}

/// What a value has of its own hides nothing of the type.
#[test]
fn methods_of_the_type() {
    #[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
    #[repr(C)]
    struct Count {
        missed: u64,
    }

    impl Count {
        fn missed(&self) -> u64 {
            self.missed
        }
    }

    impl Schema for Count {
        const NAME: &'static str = "Count";
        const VERSION: u64 = 1;
    }

    let (provider, mut publisher, mut subscriber) = ends::<Count>("methods");
    let count = provider.alloc_value(Count { missed: 7 }).unwrap();
    publisher.send(count).unwrap();
    let count = subscriber.recv().unwrap();
    assert_eq!((count.missed(), Value::missed(&count)), (7, 0));
}

/// The message that was not sent is in the error, as it was given.
#[test]
fn value_not_sent() {
    let (provider, client) = pair();
    let name = unique_prefix("not-sent");
    let mut publisher = Publisher::<[u64]>::create_typed(&provider, &name).unwrap();
    let other = pair().0;
    let mut numbers = other.alloc_slice_zeroed::<[u64]>(2).unwrap();
    numbers[1] = 7;
    let error = publisher.send(numbers).unwrap_err();
    assert!(
        matches!(error.kind(), SendErrorKind::OtherProvider { .. }),
        "{error}"
    );
    assert_eq!(*error.into_message(), [0, 7]);
    drop(client);
}

#[cfg(feature = "derive")]
mod derived {
    use super::*;

    macro_rules! both {
        ($(#[$attribute:meta])* struct $name:ident { $($field:ident: $type:ty),* $(,)? }) => {
            mod by_macro {
                use super::*;
                shm_pool::message_type! {
                    $(#[$attribute])*
                    pub(super) struct $name { $($field: $type),* }
                }
            }

            mod by_derive {
                use super::*;
                #[derive(Schema)]
                $(#[$attribute])*
                pub(super) struct $name { $($field: $type),* }
            }
        };
    }

    both! {
        #[derive(TryFromBytes, IntoBytes, KnownLayout, Immutable)]
        #[repr(C)]
        struct Scan {
            stamp: u64,
            pose: [[f32; 4]; 3],
            name: [u8; 1 + 3],
            id: std::primitive::u32,
            r#type: u64,
        }
    }

    #[test]
    fn same_as_macro() {
        assert_eq!(by_derive::Scan::NAME, "Scan");
        assert_eq!(by_derive::Scan::NAME, by_macro::Scan::NAME);
        assert_eq!(by_derive::Scan::VERSION, by_macro::Scan::VERSION);
        assert_eq!(
            by_derive::Scan::message_type(),
            by_macro::Scan::message_type()
        );
    }

    #[derive(Schema, Debug, PartialEq, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
    #[schema(name = "robot/Gear")]
    #[repr(u8)]
    enum Gear {
        Neutral,
        First = 4,
    }

    #[derive(Schema, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
    #[repr(u8)]
    #[allow(dead_code)]
    enum OtherGear {
        Neutral,
        First = 5,
    }

    #[derive(Schema, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
    #[repr(u8)]
    #[allow(dead_code)]
    enum Shape {
        Square(u8),
        Circle { radius: u8 },
    }

    #[derive(Schema, Debug, PartialEq, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
    #[repr(C)]
    struct Pair(Gear, bool);

    #[test]
    fn enums_and_tuples() {
        assert_eq!(
            (Gear::NAME, OtherGear::NAME, Pair::NAME),
            ("robot/Gear", "OtherGear", "Pair")
        );
        assert_ne!(Gear::VERSION, OtherGear::VERSION);
        assert_ne!(Shape::VERSION, OtherGear::VERSION);
        let (provider, mut publisher, mut subscriber) = ends::<Pair>("tuple");
        let pair = provider.alloc_value(Pair(Gear::First, true)).unwrap();
        publisher.send(pair).unwrap();
        assert_eq!(*subscriber.recv().unwrap(), Pair(Gear::First, true));
        let (_provider, mut publisher, mut subscriber) = ends::<Gear>("enum");
        publisher.send_copy(&Gear::Neutral).unwrap();
        assert_eq!(*subscriber.recv().unwrap(), Gear::Neutral);
    }
}

/// Any bytes in the words of the type are refused as another one.
#[test]
fn garbage_in_type() {
    let ((provider, _), name) = (pair(), unique_prefix("garbage-type"));
    let _publisher = Publisher::builder()
        .typed::<Sample>()
        .create(&provider, &name)
        .unwrap();
    let object = format!("/dev/shm/shm_pool.{name}.channel");
    let object = OpenOptions::new()
        .read(true)
        .write(true)
        .open(object)
        .unwrap();
    let mut genuine = [0; 128];
    object.read_exact_at(&mut genuine, 3968).unwrap();
    let open = || {
        Subscriber::builder()
            .on_end(OnEnd::Return)
            .typed::<Sample>()
            .open(&name)
    };
    let mut random = fastrand::Rng::with_seed(7);
    let used = [0, 1, 2, 3, 4, 8, 15, 16, 23, 24, 31, 32, 37]; // of each field; the name has 6 bytes
    for at in (0..used.len() * 40).map(|at| used[at % used.len()]) {
        let byte = genuine[at] ^ random.u8(1..);
        object.write_all_at(&[byte], 3968 + at as u64).unwrap();
        let [_, found] = refused(open());
        assert_eq!(found.is_none(), at == 0 && byte == 0);
        object.write_all_at(&genuine, 3968).unwrap();
        assert!(open().is_ok());
    }
    object.write_all_at(&[0xff; 128], 3968).unwrap();
    assert_eq!(
        refused(open())[1].as_ref().unwrap().name().chars().count(),
        96
    );
}

/// A typed end sends its values with tags, in a slot and in a buffer.
#[test]
fn tags_of_values() {
    const TAG: [u8; 16] = *b"sixteen bytes...";
    let (provider, _) = pair();
    let name = unique_prefix("typed-tag");
    let mut sender = Sender::builder()
        .typed::<u64>()
        .create(&provider, &name)
        .unwrap();
    let mut receiver = Receiver::builder().typed::<u64>().open(&name).unwrap();
    sender.send_copy_with(&7, TAG).unwrap();
    let value = receiver.recv().unwrap();
    assert_eq!((*value, Value::tag(&value)), (7, Some(TAG)));
    let value = provider.alloc_value(8_u64).unwrap();
    sender.send_with(value, TAG).unwrap();
    let value = receiver.recv().unwrap();
    assert_eq!((*value, Value::tag(&value)), (8, Some(TAG)));
    sender.send_copy(&9).unwrap();
    assert_eq!(Value::tag(&receiver.recv().unwrap()), None);
}
