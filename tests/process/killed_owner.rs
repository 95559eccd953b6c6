//! An owner that is killed while a peer holds views: mappings stay valid and can be released.

use crate::child::Child;
use crate::peer::Peer;
use crate::shm::{self, Names};
use crate::wire::{Link, Message};
use shm_pool::{Descriptor, Provider, ProviderId};

/// The lengths of a large message and a small one.
const LENGTHS: [usize; 2] = [1 << 20, 4 << 10];

role!("owner", role);

/// The role: builds a provider with the prefix, publishes one message of each length, and keeps
/// them.
pub(crate) fn role(link: &Link, arguments: &[&str]) {
    let provider = Provider::builder().name_prefix(arguments[0]).build().unwrap();
    link.send(&Message::Provider(provider.id()));
    let messages = LENGTHS.map(|len| {
        let mut buffer = provider.alloc(len).unwrap();
        shm::fill(&mut buffer, len as u64);
        buffer.freeze()
    });
    messages.iter().for_each(|message| link.send(&Message::Sent(message.descriptor().unwrap())));
    while link.receive().unwrap().is_some() {}
}

pub(crate) fn start(names: &Names) -> (Child, ProviderId, [Descriptor; 2]) {
    let owner = Child::start("owner", &[names.prefix()]);
    let Message::Provider(id) = owner.hear() else { panic!("the owner tells its id first") };
    let descriptors = LENGTHS.map(|_| match owner.hear() {
        Message::Sent(descriptor) => descriptor,
        other => panic!("not a descriptor: {other:?}"),
    });
    (owner, id, descriptors)
}

/// A publisher's crash neither crashes its readers nor leaves them waiting.
#[test]
fn views_outlive_killed_owner() {
    let names = Names::new("owner-dead");
    let (owner, id, descriptors) = start(&names);
    let peer = Peer::start(names.prefix());
    let attach = |descriptor: Descriptor| peer.attach(descriptor, descriptor.payload_len()).unwrap();
    let views = descriptors.map(attach);
    assert_eq!(peer.trim(), 0, "the owner lives, and all its segments exist");
    owner.kill();

    views.iter().for_each(|&view| peer.check(view));
    let another = descriptors.map(attach);
    let newcomer = Peer::start(names.prefix());
    let refused = newcomer.connect(id).unwrap_err();
    assert!(refused.starts_with("OwnerDied"), "{refused}");
    assert_eq!(newcomer.mappings(), 0, "a refused peer keeps no mapping");

    views.iter().chain(&another).for_each(|&view| peer.release(view));
    assert_eq!(peer.trim(), 2, "the control object and a segment");
    assert_eq!((peer.segments(), peer.mappings()), (0, 0));
    assert_eq!(shm::objects(names.prefix()), [""; 0], "the last reader has removed them");
    let refused = peer.connect(id).unwrap_err();
    assert!(refused.starts_with("NoProvider"), "{refused}");
}

/// `Client::trim` keeps what a view still reads, and what it keeps is unmapped with the view.
#[test]
fn trim_spares_views_of_killed_owner() {
    let names = Names::new("owner-trim");
    let (owner, _, descriptors) = start(&names);
    let peer = Peer::start(names.prefix());
    let views = descriptors.map(|descriptor| peer.attach(descriptor, descriptor.payload_len()).unwrap());
    owner.kill();
    assert_eq!(peer.trim(), 2);
    assert_eq!(peer.segments(), 0);
    views.iter().for_each(|&view| peer.check(view));
    let swept = Provider::sweep(names.prefix()).unwrap();
    assert_eq!(swept.objects, 2, "a swept object stays mapped where it is read");
    views.iter().for_each(|&view| peer.check(view));
    views.iter().for_each(|&view| peer.release(view));
    assert_eq!(peer.mappings(), 0, "what the views needed is let go with them");
}

#[test]
fn views_outlive_exited_owner() {
    let names = Names::new("owner-ends");
    let (owner, id, descriptors) = start(&names);
    let peer = Peer::start(names.prefix());
    let views = descriptors.map(|descriptor| peer.attach(descriptor, descriptor.payload_len()).unwrap());
    owner.shut_down();
    assert_eq!(shm::objects(names.prefix()), [""; 0], "it has removed its objects");
    views.iter().for_each(|&view| peer.check(view));
    let newcomer = Peer::start(names.prefix()).connect(id).unwrap_err();
    assert!(newcomer.starts_with("NoProvider"), "{newcomer}");
    views.iter().for_each(|&view| peer.release(view));
    peer.trim();
    assert_eq!((peer.segments(), peer.mappings()), (0, 0));
}
