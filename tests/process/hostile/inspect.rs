//! Copies of genuine objects of every kind, changed anywhere, under names that an inspection reads
//! as a provider's or a channel's. The inspection may report anything about them, but must report
//! the living objects beside them correctly.

use super::layout::{OpenObject, Write, RECORDS};
use super::{outside, Many};
use arbitrary::Arbitrary;
use shm_pool::channel::{Publisher, Sender, Subscriber};
use shm_pool::inspect::{Inspector, ObjectState};
use shm_pool::{Client, Namespace, Provider, ShmView, Swept, Tuning};
use std::fs::{self, File};
use std::hint::black_box;
use std::path::PathBuf;

/// The length of the message that the peer leases.
const LEN: usize = 5000;

/// Changes to copies, and an inspection after each.
#[derive(Arbitrary, Clone, Debug)]
pub(crate) struct Program(Many<Step, 16>);

#[derive(Arbitrary, Clone, Debug)]
struct Step {
    name: Name,
    /// Which genuine object to copy if it does not exist yet.
    of: u8,
    writes: Vec<Write>,
    /// Its new length.
    len: Option<u32>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Name {
    Control(u8),
    Segment(u8, u8),
    Channel(u8),
    Connection(u8, u8),
    /// Beside the living provider's objects.
    LivingSegment(u8),
    LivingConnection(u8),
}

/// A provider, its peer with a message, and a channel of each kind.
struct Scene<'a> {
    prefix: &'a str,
    inspector: Inspector,
    client: Client,
    genuine: Vec<Vec<u8>>,
    provider: Provider,
    _leased: ShmView,
    _ends: (Sender, Publisher, Subscriber),
}

impl Program {
    /// Runs under a prefix that is used only here.
    pub(crate) fn run(&self, prefix: &str) {
        let mut scene = Scene::new(prefix);
        scene.check();
        for step in &self.0 .0 {
            scene.change(step);
            scene.check();
        }
        // A sweep leaves the living objects alone.
        Namespace::new(prefix)
            .unwrap()
            .sweep()
            .expect("/dev/shm can be read");
        scene.check();
        drop(scene);
        for path in outside::files(prefix).iter() {
            outside::remove(path);
        }
        outside::assert_nothing_left(prefix);
    }
}

impl<'a> Scene<'a> {
    fn new(prefix: &'a str) -> Self {
        let builder = Provider::builder()
            .namespace(&Namespace::new(prefix).unwrap())
            .max_bytes(256 << 10)
            .tuning(Tuning::new().arena_size(64 << 10));
        let provider = builder
            .max_shared(RECORDS as usize)
            .build()
            .expect("a provider");
        let client = Client::in_namespace(&Namespace::new(prefix).unwrap());
        let message = provider.alloc(LEN).expect("room").freeze();
        let leased = client
            .attach(&message.descriptor().expect("a record"))
            .expect("a message");
        let mut sender = Sender::builder()
            .capacity(2)
            .max_borrowed(2)
            .create(&provider, "pair")
            .expect("a sender");
        sender.send_copy(b"message").expect("room");
        let builder = Publisher::builder()
            .max_subscribers(1)
            .capacity(2)
            .max_borrowed(2);
        let mut publisher = builder.create(&provider, "many").expect("a publisher");
        let receiver = Subscriber::builder()
            .namespace(client.namespace())
            .open("many")
            .expect("a place");
        publisher.try_send_copy(b"message").expect("room");
        // Sorted, so that a program is deterministic.
        let mut files = outside::files(prefix);
        files.sort_by_key(|path| path.extension().map(ToOwned::to_owned));
        let genuine = files
            .iter()
            .map(|path| fs::read(path).expect("an object"))
            .collect();
        let inspector = Inspector::new().namespace(&Namespace::new(prefix).unwrap());
        Self {
            prefix,
            inspector,
            client,
            genuine,
            provider,
            _leased: leased,
            _ends: (sender, publisher, receiver),
        }
    }

    fn change(
        &self,
        Step {
            name,
            of,
            writes,
            len,
        }: &Step,
    ) {
        let path = self.path(*name);
        if !path.exists() {
            let mut copy = self.genuine[usize::from(*of) % self.genuine.len()].clone();
            if let (Name::Control(id), Some(provider)) = (name, copy.get_mut(16..24)) {
                provider.copy_from_slice(&number(*id).to_le_bytes());
            }
            fs::write(&path, copy).expect("room in /dev/shm");
        }
        if path.metadata().is_ok_and(|metadata| metadata.len() > 7) {
            let object = OpenObject::open(&path, RECORDS);
            for write in writes {
                object.apply(write);
            }
        }
        if let Some(len) = len {
            let file = File::options().write(true).open(&path).expect("an object");
            file.set_len(u64::from(*len)).expect("a sparse file");
        }
    }

    fn path(&self, name: Name) -> PathBuf {
        let rest = match name {
            Name::Control(id) => format!("{:016x}.ctl", number(id)),
            Name::Segment(id, serial) => format!("{:016x}.{serial:x}", number(id)),
            Name::Channel(name) => format!("c{}.channel", name % 4),
            Name::Connection(name, id) => format!("c{}.{id:016x}.connection", name % 4),
            Name::LivingSegment(serial) => {
                format!("{}.{:x}", self.provider.id(), 1000 + u64::from(serial))
            }
            Name::LivingConnection(id) => format!("many.{id:016x}.connection"),
        };
        PathBuf::from(format!("/dev/shm/{}.{rest}", self.prefix))
    }

    /// Checks that the report describes all living objects correctly, beside any others.
    fn check(&mut self) {
        let report = self
            .inspector
            .report()
            .expect("/dev/shm and /proc can be read");
        black_box((format!("{report:?}"), report.orphans()));
        let own = report
            .providers
            .iter()
            .find(|found| found.id == self.provider.id())
            .expect("the provider");
        let stats = self.provider.stats();
        assert_eq!(
            (&own.state, own.orphans),
            (&ObjectState::Alive, Swept::default())
        );
        let mut held = 0;
        let mut len = 0;
        for segment in &own.segments {
            let is_genuine = segment.serial < 1000;
            if is_genuine {
                held += segment.bytes_held;
                len += segment.len;
            }
        }
        assert_eq!(
            (held, len),
            (stats.bytes_held as u64, stats.bytes_mapped as u64)
        );
        // No process holds the lock of a copy.
        let listed = self
            .client
            .namespace()
            .channels()
            .expect("/dev/shm can be read");
        let names: Vec<_> = listed
            .iter()
            .map(|channel| (channel.name.as_str(), channel.is_publisher))
            .collect();
        assert_eq!(names, [("many", true), ("pair", false)]);
        let [peer] = &own.peers[..] else {
            panic!("{own:?}")
        };
        assert_eq!(
            (peer.is_alive, peer.is_refused, peer.messages, peer.views),
            (true, false, 1, 1)
        );
        assert_eq!((peer.bytes, own.bytes_leased), (LEN as u64, LEN as u64));
        for name in ["pair", "many"] {
            let channel = report
                .channels
                .iter()
                .find(|channel| channel.name == name)
                .expect("the channel");
            let genuine = channel
                .receivers
                .iter()
                .filter(|receiver| receiver.id.is_none() || receiver.is_alive);
            let [receiver] = genuine.collect::<Vec<_>>()[..] else {
                panic!("{channel:?}")
            };
            assert_eq!(
                (&channel.state, channel.is_orphan, channel.provider),
                (&ObjectState::Alive, false, Some(own.id))
            );
            assert_eq!(
                (receiver.sent, receiver.waiting, receiver.capacity),
                (1, 1, 2)
            );
        }
        let dead = report.providers.iter().filter(|found| found.id != own.id);
        assert!(dead
            .into_iter()
            .all(|found| found.state != ObjectState::Alive && found.owner.is_none()));
    }
}

fn number(id: u8) -> u64 {
    u64::from(id % 4)
}
