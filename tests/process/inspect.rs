//! What an operator sees from outside: a stopped peer, a killed owner, channels, and damaged
//! objects.

use crate::child::Child;
use crate::ends::AnyReceiver;
use crate::killed_owner;
use crate::peer::Peer;
use crate::rlimits::with_only;
use crate::served::Served;
use crate::shm::{self, Names};
use crate::threads::beside;
use crate::users;
use crate::wire::{Link, Message};
use shm_pool::channel::{OnEnd, OnFull, Publisher, Receiver, Sender, Subscriber};
use shm_pool::inspect::{ChannelReport, Inspector, ObjectState, ProviderReport};
use shm_pool::{Namespace, Provider, Swept};
use std::fs;
use std::os::unix::fs::FileExt;
use std::time::Duration;

fn report_of(names: &Names) -> (Vec<ProviderReport>, Vec<ChannelReport>) {
    let report = inspector(names).report().unwrap();
    (report.providers, report.channels)
}

/// Inspects only this test's objects: other tests count their process's descriptors.
fn inspector(names: &Names) -> Inspector {
    Inspector::new().namespace(&names.namespace())
}

fn provider_of(names: &Names) -> ProviderReport {
    let (mut providers, _) = report_of(names);
    assert_eq!(providers.len(), 1);
    providers.remove(0)
}

/// An operator can find the process that holds the memory even if it is stopped and cannot answer.
#[test]
fn stopped_peer() {
    const LENGTHS: [usize; 2] = [40 << 20, 1_000];
    let names = Names::new("inspect-stopped");
    let provider = names.provider().max_bytes(64 << 20).build().unwrap();
    let mut messages = Vec::new();
    for len in LENGTHS {
        messages.push(shm::message(&provider, len, len as u64));
    }
    let peer = Peer::start(names.prefix());
    let idle = Peer::start(names.prefix());
    let idle_id = idle.connect(provider.id()).unwrap();
    let idle_slot = idle_id.slot();
    for message in &messages {
        peer.attach(message.descriptor().unwrap(), message.len() as u64)
            .unwrap();
    }
    peer.attach(messages[1].descriptor().unwrap(), 1_000)
        .unwrap();
    messages[1].grant(idle_id).unwrap();
    drop(messages);
    peer.child().stop();

    let mut inspector = inspector(&names);
    let mut seen = || inspector.report().unwrap().providers.remove(0);
    let report = seen();
    assert_eq!(
        (&report.state, report.id, report.orphans.objects > 0),
        (&ObjectState::Alive, provider.id(), false)
    );
    let owner = report.owner.as_ref().expect("it is alive");
    assert_eq!(owner.id, std::process::id());
    let stats = provider.stats();
    assert_eq!(
        (report.bytes_held, report.bytes_mapped),
        (stats.bytes_held as u64, stats.bytes_mapped as u64)
    );
    assert_eq!(report.bytes_leased, LENGTHS.iter().sum::<usize>() as u64);
    assert_eq!(report.leased.len(), 2);
    assert!(report.leased.iter().all(|class| class.messages == 1));
    let (waiting, holds) = match &report.peers[..] {
        [one, other] if one.slot == idle_slot => (one, other),
        [one, other] => (other, one),
        other => panic!("{other:?}"),
    };
    let process = holds.process.as_ref().unwrap();
    assert_eq!((process.id, process.is_stopped), (peer.child().id(), true));
    assert_eq!(
        (holds.messages, holds.bytes, holds.views, holds.grants),
        (2, report.bytes_leased, 3, 0)
    );
    assert_eq!(
        (
            waiting.messages,
            waiting.bytes,
            waiting.views,
            waiting.grants
        ),
        (1, 1_000, 0, 1)
    );
    assert!(report
        .segments
        .iter()
        .any(|segment| segment.mapped_by.contains(process)));

    // Only the second inspection knows the age.
    let age = |report: &ProviderReport| {
        report
            .peers
            .iter()
            .find(|peer| peer.views == 3)
            .unwrap()
            .oldest_lease
    };
    let first = age(&report).unwrap();
    let second = age(&seen()).unwrap();
    assert!(first == Duration::ZERO && second > first);

    peer.kill();
    let report = seen();
    let dead = report.peers.iter().find(|peer| peer.views == 3).unwrap();
    assert_eq!((dead.is_alive, &dead.process), (false, &None));
    provider.reclaim();
    let left = seen();
    assert_eq!(left.peers.len(), 1);
    assert_eq!(left.peers[0].slot, idle_slot);
    assert_eq!(left.bytes_leased, 1_000);
}

/// The report predicts exactly what a sweep removes, and excludes living objects.
#[test]
fn orphans() {
    let names = Names::new("inspect-dead");
    let (owner, id, _) = killed_owner::start(&names);
    let living = names.provider().build().unwrap();
    let message = living.alloc(100_000).unwrap();
    owner.kill();
    let report = inspector(&names).report().unwrap();
    let dead = report
        .providers
        .iter()
        .find(|provider| provider.id == id)
        .unwrap();
    assert_eq!(
        (&dead.state, &dead.owner, dead.orphans.objects > 0),
        (&ObjectState::Dead, &None, true)
    );
    assert!(report
        .providers
        .iter()
        .any(|provider| provider.id == living.id() && provider.orphans.objects == 0));
    let promised = report.orphans();
    assert!(promised.bytes >= 1 << 20, "{promised:?}");
    assert_eq!(
        Namespace::new(names.prefix()).unwrap().sweep().unwrap(),
        promised
    );
    assert_eq!(provider_of(&names).id, living.id());
    drop(message);
}

/// They are reported as removable exactly if a sweep removes them.
#[test]
fn half_made_objects() {
    let names = Names::new("inspect-half-made");
    let write = |kind: &str, word: u64, len: usize| {
        let mut content = word.to_ne_bytes().to_vec();
        content.resize(len, 0x5a);
        fs::write(shm::path(&format!("{}.{kind}", names.prefix())), content).unwrap();
    };
    // An invalid control object with a segment; an empty one; segments alone, one of them not in
    // whole pages.
    let kept = [
        "0123456789abcdef.ctl",
        "0123456789abcdef.1",
        "fedcba9876543210.3",
        "other.channel",
    ];
    write(kept[0], 7, 8_192);
    write(kept[1], 7, 8_192);
    write("89abcdef01234567.ctl", 0, 17);
    write("fedcba9876543210.2", 7, 8_192);
    write(kept[2], 7, 50_000);
    // Empty channel objects, and a foreign one.
    write("half.channel", 0, 0);
    write("half.0000000000000001.connection", 0, 4_096);
    write(kept[3], 7, 4_096);
    let report = inspector(&names).report().unwrap();
    let is_orphan: Vec<_> = report
        .providers
        .iter()
        .map(|provider| provider.orphans.objects > 0)
        .collect();
    assert_eq!(is_orphan, [false, true, true], "{report:?}");
    let is_orphan: Vec<_> = report
        .channels
        .iter()
        .map(|channel| (&channel.name[..], channel.is_orphan))
        .collect();
    assert_eq!(is_orphan, [("half", true), ("other", false)]);
    assert_eq!(
        (
            report.orphans().objects,
            Namespace::new(names.prefix()).unwrap().sweep().unwrap()
        ),
        (4, report.orphans())
    );
    assert_eq!(
        inspector(&names).report().unwrap().orphans(),
        Swept::default()
    );
    for kind in &kept {
        fs::remove_file(shm::path(&format!("{}.{kind}", names.prefix()))).unwrap()
    }
}

role!("receiver-that-stays", staying_role);

fn staying_role(link: &Link, arguments: &[&str]) {
    let receiver = AnyReceiver::open(&shm::namespace(arguments[0]), arguments[1]).unwrap();
    link.send(&Message::Done);
    while link.receive().unwrap().is_some() {}
    drop(receiver);
}

/// The report shows how far behind a receiver is, and which process it is in.
#[test]
fn channels() {
    let names = Names::new("inspect-channels");
    let provider = names.provider().build().unwrap();
    let mut sender = Sender::builder()
        .capacity(8)
        .max_borrowed(16)
        .create(&provider, "alone")
        .unwrap();
    for _ in 0..3 {
        sender.send_copy(b"early").unwrap();
    }
    let mut publisher = Publisher::builder()
        .max_subscribers(4)
        .capacity(4)
        .create(&provider, "many")
        .unwrap();
    let options = Subscriber::builder()
        .on_end(OnEnd::Return)
        .on_full(OnFull::DropNewest)
        .capacity(2);
    let mut receiver = options.namespace(&names.namespace()).open("many").unwrap();
    let keeper = Child::start_ready("receiver-that-stays", &[names.prefix(), "many"]);
    for number in 0..5_u8 {
        publisher.try_send_copy(&[number]).unwrap();
    }
    let (_, channels) = report_of(&names);
    let [alone, many] = &channels[..] else {
        panic!("{channels:?}")
    };
    let me = std::process::id();
    assert_eq!(
        (
            &alone.name[..],
            &alone.state,
            alone.is_publisher,
            alone.is_orphan
        ),
        ("alone", &ObjectState::Alive, false, false)
    );
    assert_eq!(alone.sender.as_ref().unwrap().id, me);
    let [never_came] = &alone.receivers[..] else {
        panic!("{alone:?}")
    };
    assert_eq!(
        (
            never_came.is_alive,
            never_came.sent,
            never_came.waiting,
            never_came.capacity
        ),
        (false, 3, 3, 8)
    );
    assert_eq!(
        (many.provider, many.is_publisher),
        (Some(provider.id()), true)
    );
    let of = |id: u32| {
        for receiver in &many.receivers {
            match &receiver.process {
                Some(process) if process.id == id => return receiver,
                _ => {}
            }
        }
        panic!("process {id} has no receiver");
    };
    let mine = of(me);
    let theirs = of(keeper.id());
    assert_eq!(
        (mine.is_alive, mine.on_full, mine.capacity),
        (true, OnFull::DropNewest, 2)
    );
    // One of the three has the extra slot.
    assert_eq!(
        (mine.sent, mine.waiting, mine.missed.full),
        (3, 2, 2),
        "at once, not with the next message"
    );
    assert_eq!(
        (theirs.on_full, theirs.waiting, theirs.sent),
        (OnFull::DropOldest, 4, 5)
    );
    let mut states = Vec::new();
    for state in publisher.served().receivers() {
        states.push((Some(state.id), state.process, state.missed));
    }
    for (report, process) in [(mine, me), (theirs, keeper.id())] {
        let id = report.id;
        assert!(
            states.contains(&(id, Some(process), report.missed)),
            "the publisher counts alike: {states:?}"
        );
        assert!(report.is_connected && !report.is_evicted);
    }
    assert_eq!(receiver.missed(), mine.missed);
    for _ in 0..3 {
        drop(receiver.try_recv().unwrap());
    }
    assert!(receiver.try_recv().is_err());
    publisher.send_copy(&[5]).unwrap();
    let (_, channels) = report_of(&names);
    let again = channels[1]
        .receivers
        .iter()
        .find(|it| it.id == mine.id)
        .unwrap();
    assert_eq!((again.sent, again.waiting, again.missed.full), (4, 1, 2));

    keeper.kill();
    let (_, channels) = report_of(&names);
    let dead = channels[1]
        .receivers
        .iter()
        .find(|it| it.id == theirs.id)
        .unwrap();
    assert_eq!((dead.is_alive, dead.is_orphan), (false, true));
    assert_eq!(names.sweep(), 1);
}

role!("receiver-that-borrows", borrowers_role);

/// The role of a receiver that gets three messages and drops the first.
fn borrowers_role(link: &Link, arguments: &[&str]) {
    let mut receiver = AnyReceiver::open(&shm::namespace(arguments[0]), arguments[1]).unwrap();
    drop(receiver.recv().unwrap());
    let messages = [receiver.recv().unwrap(), receiver.recv().unwrap()];
    link.send(&Message::Done);
    while link.receive().unwrap().is_some() {}
    drop((messages, receiver));
}

/// Returned borrowed buffers no longer count, even before the sender sends again.
#[test]
fn stopped_receiver() {
    const LENGTHS: [usize; 4] = [1_000, 3 << 20, 0, 3 << 20];
    let names = Names::new("inspect-borrowed");
    let provider = names.provider().build().unwrap();
    let mut sender = Sender::builder()
        .capacity(8)
        .max_borrowed(4)
        .create(&provider, "c")
        .unwrap();
    for &len in &LENGTHS {
        sender.send(provider.alloc(len).unwrap().freeze()).unwrap();
    }
    let mut inspector = inspector(&names);
    let mut seen = || {
        let mut report = inspector.report().unwrap();
        (
            report.providers.remove(0),
            report.channels.remove(0).receivers.remove(0),
        )
    };
    let (of_all, waiting) = seen();
    let bytes = LENGTHS.iter().sum::<usize>() as u64;
    assert_eq!(
        (
            waiting.is_alive,
            waiting.borrowed,
            waiting.bytes_borrowed,
            of_all.bytes_borrowed
        ),
        (false, 4, bytes, bytes)
    );

    let child = Child::start_ready("receiver-that-borrows", &[names.prefix(), "c"]);
    child.stop();
    let (of_all, held) = seen();
    let process = held.process.as_ref().unwrap();
    assert_eq!((process.id, process.is_stopped), (child.id(), true));
    assert_eq!(
        (
            held.borrowed,
            held.bytes_borrowed,
            held.max_borrowed,
            held.waiting
        ),
        (3, bytes - 1_000, 4, 2),
        "read, or waits"
    );
    let classes: Vec<_> = of_all
        .borrowed
        .iter()
        .map(|class| (class.size, class.messages, class.bytes))
        .collect();
    assert_eq!(classes, [(64, 1, 0), (3 << 20, 2, 6 << 20)]);
    assert_eq!((of_all.bytes_leased, of_all.peers.len()), (0, 0));
    let age = held.oldest_borrowed.expect("seen by both looks");
    assert!(age > Duration::ZERO, "seen by both looks");

    // Another message now has the number of a returned one.
    sender.send(provider.alloc(5).unwrap().freeze()).unwrap();
    assert_eq!(seen().1.bytes_borrowed, bytes - 1_000 + 5);

    child.kill();
    let (_, dead) = seen();
    assert_eq!(
        (dead.is_alive, &dead.process, dead.borrowed),
        (false, &None, 4)
    );
    provider.reclaim();
    let (of_all, dead) = seen();
    assert_eq!(
        (
            dead.borrowed,
            dead.bytes_borrowed,
            dead.oldest_borrowed,
            of_all.bytes_borrowed
        ),
        (0, 0, None, 0)
    );
    assert!(of_all.borrowed.is_empty());
}

/// The age starts again when a receiver takes the next message.
#[test]
fn age_of_borrowed() {
    let names = Names::new("inspect-borrow-age");
    let provider = names.provider().build().unwrap();
    let mut sender = Sender::builder()
        .capacity(2)
        .max_borrowed(1)
        .create(&provider, "c")
        .unwrap();
    let mut receiver = Receiver::builder()
        .namespace(&names.namespace())
        .open("c")
        .unwrap();
    let mut inspector = inspector(&names);
    let mut age = || inspector.report().unwrap().channels[0].receivers[0].oldest_borrowed;
    assert_eq!(age(), None);
    for _ in 0..3 {
        sender
            .send(provider.alloc(1_000).unwrap().freeze())
            .unwrap();
        let message = receiver.recv().unwrap();
        assert_eq!(age(), Some(Duration::ZERO));
        assert!(age().unwrap() > Duration::ZERO);
        drop(message);
    }
    assert_eq!(age(), None);
}

/// A process that keeps memory of a closed provider is still listed with it.
#[test]
fn borrowed_without_publisher() {
    let names = Names::new("inspect-borrowed-still");
    let provider = names.provider().build().unwrap();
    let mut publisher = Publisher::create(&provider, "c").unwrap();
    let mut receiver = Subscriber::builder()
        .on_end(OnEnd::Return)
        .namespace(&names.namespace())
        .open("c")
        .unwrap();
    for len in [1_000, 2_000] {
        publisher
            .send(provider.alloc(len).unwrap().freeze())
            .unwrap();
    }
    let first = receiver.recv().unwrap();
    let _second = receiver.recv().unwrap();
    drop((publisher, provider));
    let seen = || report_of(&names).1.remove(0).receivers.remove(0);
    assert_eq!((seen().borrowed, seen().bytes_borrowed), (2, 3_000));
    drop(first);
    assert_eq!((seen().borrowed, seen().bytes_borrowed), (1, 2_000));
}

/// Withdrawn messages leave the book without being returned.
#[test]
fn loans_by_receiver() {
    let names = Names::new("inspect-borrowed-steps");
    let provider = names.provider().build().unwrap();
    let mut publisher = Publisher::builder()
        .max_subscribers(2)
        .capacity(4)
        .max_borrowed(8)
        .create(&provider, "c")
        .unwrap();
    let open = |rule| {
        Subscriber::builder()
            .on_end(OnEnd::Return)
            .on_full(rule)
            .namespace(&names.namespace())
            .open("c")
            .unwrap()
    };
    let mut receivers = Vec::new();
    for rule in [OnFull::DropOldest, OnFull::DropNewest] {
        receivers.push((rule, open(rule), Vec::new()));
    }
    let mut random = fastrand::Rng::with_seed(17);
    let mut inspector = inspector(&names);
    for step in 0..500 {
        match random.u8(..6) {
            0 | 1 => {
                let buffer = provider.alloc(random.usize(..200_000)).unwrap();
                assert!(publisher.try_send(buffer.freeze()).is_ok());
            }
            2 => assert!(publisher.try_send_copy(b"bytes").is_ok()),
            3 => drop(provider.trim()),
            of => {
                let (_, receiver, held) = random.choice(&mut receivers).unwrap();
                match of {
                    4 => held.extend(receiver.try_recv()),
                    _ if held.is_empty() => {}
                    _ => drop(held.swap_remove(random.usize(..held.len()))),
                }
            }
        }
        let report = inspector.report().unwrap();
        for (rule, _, held) in &receivers {
            let seen = report.channels[0]
                .receivers
                .iter()
                .find(|seen| seen.on_full == *rule)
                .unwrap();
            let mut borrowed = 0;
            let mut bytes = 0;
            for message in held {
                if !message.is_inline() {
                    borrowed += 1;
                    bytes += message.len() as u64;
                }
            }
            // Beyond the messages being read, at most those that wait.
            assert!(
                (borrowed..=borrowed + seen.waiting).contains(&seen.borrowed),
                "{step}: {borrowed} {seen:?}"
            );
            assert!(
                seen.bytes_borrowed >= bytes
                    && (seen.borrowed > borrowed || seen.bytes_borrowed == bytes),
                "{step}: {seen:?}"
            );
            let state = publisher
                .served()
                .receivers()
                .into_iter()
                .find(|state| state.on_full == *rule)
                .unwrap();
            assert!(
                state.borrowed >= seen.borrowed,
                "{step}: {state:?} {seen:?}"
            );
        }
        let mut of_all = 0;
        for receiver in &report.channels[0].receivers {
            of_all += receiver.bytes_borrowed;
        }
        assert_eq!(report.providers[0].bytes_borrowed, of_all);
    }
    // Once all messages are received and dropped, no buffer is borrowed, even before the publisher
    // looks.
    for (_, receiver, held) in &mut receivers {
        held.clear();
        while receiver.try_recv().is_ok() {}
    }
    let report = inspector.report().unwrap();
    assert!(
        report.channels[0]
            .receivers
            .iter()
            .all(|receiver| receiver.borrowed == 0),
        "{report:?}"
    );
}

/// Damage neither crashes the operator's tool nor hides other objects.
#[test]
fn damaged_objects_are_reported() {
    let names = Names::new("inspect-garbage");
    let provider = names.provider().max_shared(8).build().unwrap();
    let sender = Sender::builder()
        .capacity(2)
        .max_borrowed(2)
        .create(&provider, "c")
        .unwrap();
    let publisher = Publisher::builder()
        .max_subscribers(1)
        .capacity(2)
        .max_borrowed(2)
        .create(&provider, "p")
        .unwrap();
    let receiver = Subscriber::builder()
        .on_end(OnEnd::Return)
        .namespace(&names.namespace())
        .open("p")
        .unwrap();
    let genuine: Vec<_> = shm::objects(names.prefix())
        .iter()
        .map(|file| fs::read(shm::path(file)).unwrap())
        .collect();
    let kinds = [
        "0123456789abcdef.ctl",
        "0123456789abcdef.1",
        "d.channel",
        "d.0123456789abcdef.connection",
    ];
    let words = [0, 3, 1 << 30, u32::MAX];
    for content in &genuine {
        for kind in kinds {
            let path = shm::path(&format!("{}.{kind}", names.prefix()));
            for len in [0, 1, 63, 4_095, 4_096, content.len()] {
                fs::write(&path, &content[..len.min(content.len())]).unwrap();
                assert_seen(&names, &provider);
            }
            let file = fs::File::options().write(true).open(&path).unwrap();
            for at in (0..48).step_by(8) {
                for word in words {
                    file.write_all_at(&content[..content.len().min(4_096)], 0)
                        .unwrap();
                    file.write_all_at(&u32::to_ne_bytes(word), at).unwrap();
                    report_of(&names);
                }
            }
            // As long as possible, and without memory.
            file.set_len(1 << 46).unwrap();
            assert_seen(&names, &provider);
            fs::remove_file(&path).unwrap();
        }
    }
    fs::create_dir(shm::path(&format!("{}.e.channel", names.prefix()))).unwrap();
    std::os::unix::fs::symlink(
        "/nowhere",
        shm::path(&format!("{}.l.channel", names.prefix())),
    )
    .unwrap();
    assert_seen(&names, &provider);
    fs::remove_dir(shm::path(&format!("{}.e.channel", names.prefix()))).unwrap();
    fs::remove_file(shm::path(&format!("{}.l.channel", names.prefix()))).unwrap();
    drop((sender, publisher, receiver));
}

fn assert_seen(names: &Names, provider: &Provider) {
    let (providers, channels) = report_of(names);
    let own = providers
        .iter()
        .find(|found| found.id == provider.id())
        .unwrap();
    assert_eq!(own.state, ObjectState::Alive);
    let mut alive = Vec::new();
    for channel in &channels {
        if channel.state == ObjectState::Alive {
            alive.push(&channel.name[..]);
        }
    }
    assert_eq!(alive, ["c", "p"]);
}

/// Garbage is neither overlooked nor mistaken for a receiver.
#[test]
fn damaged_connections_are_listed() {
    let names = Names::new("inspect-connections");
    let garbage = shm::path(&format!(
        "{}.noise.0000000000000001.connection",
        names.prefix()
    ));
    fs::write(&garbage, [0x5a; 8_192]).unwrap();
    let provider = names.provider().build().unwrap();
    let mut publisher = Publisher::create(&provider, "p").unwrap();
    let receiver = Subscriber::builder()
        .on_end(OnEnd::Return)
        .namespace(&names.namespace())
        .open("p")
        .unwrap();
    assert_eq!(publisher.served().receivers().count(), 1);
    let is_connection = |name: &String| name.contains(".p.") && name.ends_with(".connection");
    let connection = shm::path(
        &shm::objects(names.prefix())
            .into_iter()
            .find(is_connection)
            .unwrap(),
    );
    fs::OpenOptions::new()
        .write(true)
        .open(connection)
        .unwrap()
        .write_all_at(&[0x5a; 8], 0)
        .unwrap();

    let (_, channels) = report_of(&names);
    let [noise, p] = &channels[..] else {
        panic!("{channels:?}")
    };
    assert_eq!(
        (&noise.name[..], &noise.state),
        ("noise", &ObjectState::Dead)
    );
    assert_eq!((&p.name[..], &p.state), ("p", &ObjectState::Alive));
    for channel in [noise, p] {
        assert_eq!(
            (
                channel.damaged.len(),
                channel.receivers.len(),
                channel.orphans.objects
            ),
            (1, 0, 0)
        );
        assert!(!channel.damaged[0].reason.is_empty() && !channel.damaged[0].is_orphan);
    }
    assert_eq!(u64::from(noise.damaged[0].id), 1);
    // It is not known to be this crate's.
    assert_eq!(names.sweep(), 0);
    fs::remove_file(garbage).unwrap();
    drop((receiver, publisher));
}

/// A display never shows 9 messages where 8 fit.
#[test]
fn waiting_within_capacity() {
    let names = Names::new("inspect-waiting");
    let provider = names.provider().build().unwrap();
    let sender = Sender::builder()
        .capacity(2)
        .create(&provider, "c")
        .unwrap();
    let object = shm::channel_object(names.prefix(), "c");
    // All three slots carry a message: the sequence of slot n is n + 1.
    for slot in 0..3_u64 {
        object
            .write_all_at(&(slot + 1).to_ne_bytes(), 4096 + slot * 64)
            .unwrap();
    }
    let (_, channels) = report_of(&names);
    let receiver = &channels[0].receivers[0];
    assert_eq!((receiver.waiting, receiver.capacity), (2, 2));
    drop(sender);
}

role!("stranger-looks", strangers_role);

/// The role of another user who inspects. The second argument is the number of objects.
fn strangers_role(link: &Link, arguments: &[&str]) {
    users::be_stranger(link);
    link.send(&Message::Done);
    let report = Inspector::new()
        .namespace(&shm::namespace(arguments[0]))
        .report()
        .unwrap();
    assert_eq!(report.others.to_string(), arguments[1]);
    assert!(
        report.providers.is_empty() && report.channels.is_empty(),
        "{report:?}"
    );
    link.send(&Message::Done);
}

/// Objects of other users that may not be read are not reported as damaged.
#[test]
fn objects_of_other_users() {
    let names = Names::new("inspect-stranger");
    let provider = names.provider().build().unwrap();
    let buffer = provider.alloc(100_000).unwrap();
    let sender = Sender::create(&provider, "c").unwrap();
    let objects = shm::objects(names.prefix()).len().to_string();
    assert_eq!(objects, "3");
    let Some(stranger) = users::start("stranger-looks", &[names.prefix(), &objects]) else {
        return;
    };
    stranger.expect_done();
    stranger.finish();
    drop((buffer, sender));
}

/// A sender that restarts during an inspection appears neither as damaged nor twice.
#[test]
fn restart_during_look() {
    let names = Names::new("inspect-again");
    let provider = names.provider().build().unwrap();
    let mut inspector = inspector(&names);
    let look = || {
        let report = inspector.report().unwrap();
        assert!(report.channels.len() <= 1, "{report:?}");
        for channel in &report.channels {
            assert!(
                !matches!(channel.state, ObjectState::Unusable(_)),
                "{channel:?}"
            );
            assert!(
                channel.state != ObjectState::Dead || channel.sender.is_none(),
                "{channel:?}"
            );
        }
        assert!(
            report
                .providers
                .iter()
                .all(|found| found.state == ObjectState::Alive),
            "{report:?}"
        );
    };
    beside(look, || {
        for _ in 0..5000 {
            let mut sender = Sender::builder()
                .capacity(2)
                .max_borrowed(2)
                .create(&provider, "c")
                .unwrap();
            sender.send_copy(b"message").unwrap();
        }
    });
}

/// The number of channels, for a process that may open far fewer files.
const MANY: usize = 50;

role!("looks-with-few-descriptors", poor_role);

/// The role of an inspector with few descriptors.
fn poor_role(link: &Link, arguments: &[&str]) {
    let mut inspector = Inspector::new().namespace(&shm::namespace(arguments[0]));
    let report = with_only(6, || inspector.report()).unwrap();
    let alive = report
        .channels
        .iter()
        .filter(|channel| channel.state == ObjectState::Alive && channel.receivers.len() == 1);
    assert_eq!((report.providers.len(), alive.count()), (1, MANY));
    assert!(report.providers[0].owner.is_some());
    link.send(&Message::Done);
}

#[test]
fn few_descriptors() {
    let names = Names::new("inspect-many");
    let provider = names.provider().build().unwrap();
    let sender = |number| {
        Sender::builder()
            .capacity(2)
            .max_borrowed(2)
            .create(&provider, &format!("c{number}"))
            .unwrap()
    };
    let senders: Vec<_> = (0..MANY).map(sender).collect();
    let child = Child::start_ready("looks-with-few-descriptors", &[names.prefix()]);
    child.finish();
    drop(senders);
}

/// An inspection does not count as a peer, block a lock, or keep an object alive.
#[test]
fn no_trace() {
    let names = Names::new("inspect-no-trace");
    let provider = names.provider().build().unwrap();
    let mut publisher = Publisher::builder()
        .max_subscribers(1)
        .create(&provider, "c")
        .unwrap();
    let mut inspector = inspector(&names);
    let before = shm::open_objects(names.prefix(), "");
    let look = || inspector.report().unwrap();
    beside(look, || {
        // Each needs a lock that an inspection queries, and all slots are used in turn.
        for _ in 0..100 {
            let clients: Vec<_> = (0..64).map(|_| names.client()).collect();
            for client in &clients {
                client.connect(provider.id()).unwrap();
            }
            let receiver = Subscriber::builder()
                .on_end(OnEnd::Return)
                .namespace(clients[0].namespace())
                .open("c")
                .unwrap();
            assert!(publisher.served().receivers().next().is_some());
            drop(receiver);
        }
    });
    assert!(publisher.served().receivers().next().is_none());
    assert_eq!(shm::open_objects(names.prefix(), ""), before);
}
