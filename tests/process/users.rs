//! Peers of another user: denied by default, admitted when both sides say so (D10).

use crate::child::{self, Child};
use crate::ends::AnyReceiver;
use crate::own_shm;
use crate::peer::{self, Peer};
use crate::served::Served;
use crate::shm::{self, Names};
use crate::sys;
use crate::wire::{Link, Message, FOR_EVER};
use shm_pool::channel::{ChannelError, OnEnd, OnFull, Publisher, Sender, Subscriber};
use shm_pool::{Client, Namespace, Provider};
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

/// `nobody` on most systems. Any user except root will do.
pub(crate) const STRANGER: u32 = 65_534;

role!("stranger", role);

/// The role. The arguments are the prefix and the user whose providers it trusts, or "".
fn role(link: &Link, arguments: &[&str]) {
    be_stranger(link);
    link.send(&Message::Done);
    let mut namespace = shm::namespace(arguments[0]);
    if let Ok(uid) = arguments[1].parse() {
        namespace = namespace.of_user(uid);
    }
    let client = Client::in_namespace(&namespace);
    peer::serve(link, &client, arguments[0]);
}

/// Makes this child another user's. If that is not possible, reports why, and exits.
pub(crate) fn be_stranger(link: &Link) {
    be_user(link, STRANGER, &[]);
}

fn be_user(link: &Link, id: u32, more_groups: &[u32]) {
    if let Err(error) = sys::become_user(id, more_groups) {
        link.send(&Message::Refused(error.to_string()));
        std::process::exit(0);
    }
}

/// Starts a peer of another user. Returns `None` if that is not possible here.
fn stranger(names: &Names, trusted: &str) -> Option<Peer> {
    start("stranger", &[names.prefix(), trusted]).map(Peer::of)
}

/// Starts a child in a role that makes it another user's. Returns `None` if that is not possible
/// here.
pub(crate) fn start(role: &str, arguments: &[&str]) -> Option<Child> {
    if !own_shm::is_root() {
        println!("SKIPPED: only root can be another user");
        return None;
    }
    let child = Child::start(role, arguments);
    match child.receive() {
        Message::Done => Some(child),
        refused => {
            child::skip(&format!("there is no other user: {refused:?}"));
            None
        }
    }
}

#[test]
fn default_mode() {
    let names = Names::new("user-default");
    let provider = names.provider().build().unwrap();
    let message = shm::message(&provider, 100_000, 1);
    let Some(stranger) = stranger(&names, "0") else {
        return;
    };
    let refused = stranger
        .attach(message.descriptor().unwrap(), 1)
        .unwrap_err();
    assert!(
        refused.starts_with("Os(") && refused.contains(&format!("code: {}", libc::EACCES)),
        "{refused}"
    );
    assert!(
        refused.contains("option `mode`"),
        "the error says what can be done: {refused}"
    );
}

#[test]
fn open_mode() {
    let names = Names::new("user-open");
    let provider = names.provider().mode(0o666).build().unwrap();
    let message = shm::message(&provider, 100_000, 1);
    for name in shm::objects(names.prefix()) {
        let mode = shm::path(&name).metadata().unwrap().permissions().mode() & 0o777;
        let expected = if name.ends_with(".ctl") { 0o666 } else { 0o644 };
        assert_eq!(
            mode, expected,
            "{name}: payload is the owner's to write, leases are everybody's"
        );
    }
    let Some(stranger) = stranger(&names, "0") else {
        return;
    };
    let id = stranger.connect(provider.id()).unwrap();
    let view = stranger.attach(message.grant(id).unwrap(), 1).unwrap();
    drop(message);
    assert!(provider.stats().bytes_leased > 0);
    stranger.check(view);
    stranger.release(view);
    assert_eq!(provider.stats().bytes_leased, 0);
}

/// Guards against a user who replaces a provider's control object to feed its peers.
#[test]
fn untrusted_owner() {
    let names = Names::new("user-trust");
    let provider = names.provider().mode(0o666).build().unwrap();
    let message = shm::message(&provider, 100_000, 1);
    for trusted in ["", "1"] {
        let Some(stranger) = stranger(&names, trusted) else {
            return;
        };
        let refused = stranger
            .attach(message.descriptor().unwrap(), 1)
            .unwrap_err();
        assert!(refused.starts_with("WrongUid"), "{refused}");
    }
}

const CHANNEL: &str = "c";

role!("stranger-publishes", publishing_role);

/// The role of a publisher. It reports its number of receivers.
fn publishing_role(link: &Link, arguments: &[&str]) {
    be_stranger(link);
    let provider = Provider::builder()
        .namespace(&Namespace::new(arguments[0]).unwrap())
        .build()
        .unwrap();
    let mut publisher = Publisher::create(&provider, CHANNEL).unwrap();
    link.send(&Message::Done);
    while let Some(Message::Go) = link.receive().unwrap() {
        link.send(&Message::Number(
            publisher.served().receivers().count() as u64
        ));
    }
}

role!("stranger-opens", opening_role);

/// The role of a receiver that trusts root. It tells why it cannot open the channel.
fn opening_role(link: &Link, arguments: &[&str]) {
    be_stranger(link);
    link.send(&Message::Done);
    let namespace = shm::namespace(arguments[0]).of_user(0);
    link.send(&Message::Refused(
        AnyReceiver::open(&namespace, CHANNEL)
            .err()
            .expect("an error")
            .to_string(),
    ));
}

/// The error names the option that opens the channel, not the provider's mode.
#[test]
fn denied_channel() {
    let names = Names::new("user-channel");
    let provider = names.provider().build().unwrap();
    let sender = Sender::create(&provider, CHANNEL).unwrap();
    let Some(stranger) = start("stranger-opens", &[names.prefix()]) else {
        return;
    };
    let Message::Refused(text) = stranger.receive() else {
        panic!("it has the channel")
    };
    assert!(text.contains("option `mode`"), "{text}");
    stranger.finish();
    drop(sender);
}

/// A receiver does not wait for a publisher that could not open the receiver's objects.
#[test]
fn publisher_of_other_user() {
    let names = Names::new("user-publisher");
    let Some(stranger) = start("stranger-publishes", &[names.prefix()]) else {
        return;
    };
    let objects = shm::objects(names.prefix());
    let is_refused = |error: ChannelError| {
        let ChannelError::WrongUid(owner) = &error else {
            panic!("{error}")
        };
        assert_eq!(owner.found(), STRANGER, "{error}");
        assert!(
            owner
                .object()
                .ends_with(format!("{}.{CHANNEL}.channel", names.prefix())),
            "{error}"
        );
    };
    for namespace in [names.namespace(), names.namespace().of_user(STRANGER)] {
        is_refused(
            Subscriber::builder()
                .on_end(OnEnd::Return)
                .namespace(&namespace)
                .open(CHANNEL)
                .unwrap_err(),
        );
    }
    let provider = names.provider().build().unwrap();
    is_refused(Publisher::create(&provider, CHANNEL).unwrap_err());
    drop(provider);
    assert_eq!(
        shm::objects(names.prefix()),
        objects,
        "nothing is left of the attempts"
    );
    assert_eq!(stranger.request(&Message::Go), Message::Number(0));
    stranger.shut_down();
}

/// Another user, in a group of its own.
const OTHER: u32 = 65_533;

role!("user-publishes", publishing_with_mode);

/// The role of a user's publisher. The arguments are the prefix, the user and the mode. Sends a
/// buffer at each `Go`, and answers its number of receivers.
fn publishing_with_mode(link: &Link, arguments: &[&str]) {
    be_user(link, arguments[1].parse().unwrap(), &[]);
    let mode = u32::from_str_radix(arguments[2], 8).unwrap();
    let provider = Provider::builder()
        .namespace(&Namespace::new(arguments[0]).unwrap())
        .mode(mode)
        .build()
        .unwrap();
    let builder = Publisher::builder()
        .mode(mode)
        .max_subscribers(1)
        .on_full(OnFull::Block);
    let mut publisher = builder.create(&provider, CHANNEL).unwrap();
    link.send(&Message::Done);
    while let Some(Message::Go) = link.receive().unwrap() {
        let count = publisher.send(shm::message(&provider, 100_000, 7)).unwrap();
        link.send(&Message::Number(count.receivers as u64));
    }
}

role!("user-receives", receiving_role);

/// The role of a user's receiver. The arguments are the prefix, the user, one more group, and the
/// trusted user. It opens the channel at the first `Go`, and receives a message at each further
/// one.
fn receiving_role(link: &Link, arguments: &[&str]) {
    let number = |at: usize| arguments[at].parse::<u32>().unwrap();
    let user = number(1);
    let group = number(2);
    let trusted = number(3);
    be_user(link, user, &[group]);
    link.send(&Message::Done);
    let namespace = shm::namespace(arguments[0]).of_user(trusted);
    let mut receiver = None;
    while let Some(Message::Go) = link.receive().unwrap() {
        let Some(receiver) = &mut receiver else {
            match AnyReceiver::open(&namespace, CHANNEL) {
                Ok(opened) => receiver = Some(opened),
                Err(error) => return link.send(&Message::Refused(error.to_string())),
            }
            link.send(&Message::Done);
            continue;
        };
        match receiver.recv_timeout(FOR_EVER) {
            Ok(message) => shm::check(&message, 7).unwrap(),
            Err(error) => return link.send(&Message::Refused(format!("{error:?}"))),
        }
        link.send(&Message::Done);
    }
}

fn user_receives(names: &Names, user: u32, group: u32, trusted: u32) -> Option<Child> {
    start(
        "user-receives",
        &[
            names.prefix(),
            &user.to_string(),
            &group.to_string(),
            &trusted.to_string(),
        ],
    )
}

/// A publisher admits the users that its mode says: all, or those in its group. They keep what it
/// sent before it was killed, and the place of a killed one is free again.
#[test]
fn publisher_for_others() {
    for (mode, group) in [("666", OTHER), ("660", STRANGER)] {
        let names = Names::new(&format!("user-admits-{mode}"));
        let Some(publishing) = start(
            "user-publishes",
            &[names.prefix(), &STRANGER.to_string(), mode],
        ) else {
            return;
        };
        for _ in 0..2 {
            let receiving = user_receives(&names, OTHER, group, STRANGER).unwrap();
            assert_eq!(receiving.request(&Message::Go), Message::Done);
            for object in shm::objects(names.prefix()) {
                let metadata = shm::path(&object).metadata().unwrap();
                let connection = object.ends_with(".connection");
                assert_eq!(
                    metadata.uid(),
                    if connection { OTHER } else { STRANGER },
                    "{object}"
                );
                let group = if connection && mode == "666" {
                    OTHER
                } else {
                    STRANGER
                };
                assert_eq!(
                    metadata.gid(),
                    group,
                    "{object}: a group that its creator is in"
                );
            }
            assert_eq!(publishing.request(&Message::Go), Message::Number(1));
            assert_eq!(receiving.request(&Message::Go), Message::Done);
            receiving.kill();
        }
        // Its user's next receiver removes what the killed one left.
        let receiving = user_receives(&names, OTHER, group, STRANGER).unwrap();
        assert_eq!(receiving.request(&Message::Go), Message::Done);
        // A member of no group of the publisher's.
        let outsider = user_receives(&names, OTHER - 1, OTHER, STRANGER).unwrap();
        let Message::Refused(text) = outsider.request(&Message::Go) else {
            panic!("it has the channel")
        };
        let expected = if mode == "666" {
            "the maximum"
        } else {
            "option `mode`"
        };
        assert!(text.contains(expected), "{text}");
        // What a killed publisher sent is received, although another user's sweep meets it.
        assert_eq!(publishing.request(&Message::Go), Message::Number(1));
        publishing.kill();
        sweep_as(&names, STRANGER);
        assert_eq!(receiving.request(&Message::Go), Message::Done);
        receiving.shut_down();
        let left = shm::objects(names.prefix());
        assert!(
            left.iter().any(|object| object.ends_with(".ctl")),
            "the last reader is another user's, and cannot remove them: {left:?}"
        );
        sweep_as(&names, STRANGER);
        assert!(shm::objects(names.prefix()).is_empty());
    }
}

role!("user-sweeps", sweeping_role);

fn sweeping_role(link: &Link, arguments: &[&str]) {
    be_user(link, arguments[1].parse().unwrap(), &[]);
    link.send(&Message::Done);
    Namespace::new(arguments[0]).unwrap().sweep().unwrap();
}

fn sweep_as(names: &Names, user: u32) {
    start("user-sweeps", &[names.prefix(), &user.to_string()])
        .unwrap()
        .finish();
}

/// A channel that the user may not open does not keep what its own killed publisher left.
#[test]
fn sweep_beside_another_users_channel() {
    let names = Names::new("user-sweep");
    let provider = names.provider().build().unwrap();
    let _denied = Sender::create(&provider, "denied").unwrap();
    let own = shm::objects(names.prefix());
    let Some(stranger) = start("stranger-publishes", &[names.prefix()]) else {
        return;
    };
    stranger.kill();
    assert_ne!(shm::objects(names.prefix()), own);
    sweep_as(&names, STRANGER);
    assert_eq!(shm::objects(names.prefix()), own);
}

role!("stranger-leases", leasing_role);

/// The role of a user that holds a lease on a file under a channel's name.
fn leasing_role(link: &Link, arguments: &[&str]) {
    be_stranger(link);
    let file = File::create(shm::path(&format!("{}.leased.channel", arguments[0]))).unwrap();
    sys::lease(&file).unwrap();
    link.send(&Message::Done);
    while link.receive().unwrap().is_some() {}
}

/// Another user's file does not keep the channels beside it from being found.
#[test]
fn leased_name() {
    let names = Names::new("user-leases");
    let sender = Sender::create(&names.provider().build().unwrap(), CHANNEL).unwrap();
    let Some(stranger) = start("stranger-leases", &[names.prefix()]) else {
        return;
    };
    let found = names.namespace().channels().unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].name, CHANNEL);
    // The kernel may have ended it: a signal tells it of the attempt.
    stranger.kill();
    fs::remove_file(shm::path(&format!("{}.leased.channel", names.prefix()))).unwrap();
    drop(sender);
}

role!("unmapped", unmapped_role);

/// The role: a process that is shown as the user that the owner of `prefix` is shown as, too. It
/// reports what refuses those objects, and then uses objects of its own.
fn unmapped_role(link: &Link, arguments: &[&str]) {
    if own_shm::is_root() {
        be_user(link, 4321, &[]);
    }
    // Its program has several threads, and a user namespace is entered by one.
    let Some(forked) = sys::fork() else {
        sys::end_with(|| {
            if let Err(error) = sys::leave_user_namespace() {
                link.send(&Message::Refused(error.to_string()));
                return;
            }
            link.send(&Message::Done);
            try_unmapped(link, arguments[0], arguments[1]);
        });
    };
    forked.wait();
}

fn try_unmapped(link: &Link, strangers: &str, own: &str) {
    let namespace = shm::namespace(strangers);
    assert_eq!(namespace.uid(), STRANGER, "the overflow uid");
    let opened = Subscriber::builder()
        .namespace(&namespace)
        .on_end(OnEnd::Return)
        .open(CHANNEL);
    // `Ok(Err(error))` if it was opened.
    let refused = opened.map(|mut subscriber| subscriber.recv().map(drop));
    link.send(&Message::Refused(format!("{refused:?}")));
    assert_eq!(namespace.channels().unwrap(), [], "nor is it listed");

    let namespace = shm::namespace(own);
    let provider = Provider::builder().namespace(&namespace).build().unwrap();
    let mut publisher = Publisher::create(&provider, CHANNEL).unwrap();
    let mut subscriber = Subscriber::builder()
        .namespace(&namespace)
        .open(CHANNEL)
        .unwrap();
    publisher.wait_for_receivers(1, FOR_EVER).unwrap();
    publisher.send_copy(&[7; 100]).unwrap();
    assert_eq!(&*subscriber.recv().unwrap(), [7; 100], "its own objects");
    assert_eq!(namespace.channels().unwrap().len(), 1);
    drop(subscriber);
    drop(publisher);
    drop(provider);
    link.send(&Message::Done);
}

/// In a user namespace that maps neither of them, a process and the owner of a forged object are
/// both shown as user 65534.
#[test]
fn unmapped_owner() {
    let names = Names::new("user-unmapped");
    let own = Names::new("user-unmapped-own");
    let provider = names.provider().mode(0o666).build().unwrap();
    let mut publisher = Publisher::builder()
        .mode(0o666)
        .create(&provider, CHANNEL)
        .unwrap();
    if !own_shm::is_root() {
        println!("SKIPPED: only root can be another user");
        return;
    }
    let child = Child::start("unmapped", &[names.prefix(), own.prefix()]);
    match child.receive() {
        Message::Done => {}
        refused => {
            println!("SKIPPED: no user namespace: {refused:?}");
            return;
        }
    }
    publisher.send_copy(&[1; 10]).unwrap();
    let Message::Refused(refused) = child.receive() else {
        panic!("no answer")
    };
    assert!(refused.contains("WrongUid"), "{refused}");
    child.expect_done();
}
