//! Files of any name, kind and content under a prefix, beside a living owner. Clients that connect
//! or attach, and sweeps, encounter them; the owner is not disturbed.

use super::layout::{OpenObject, Write, RECORDS};
use super::{outside, Many};
use arbitrary::Arbitrary;
use shm_pool::{
    AttachError, Client, Descriptor, Namespace, Provider, ProviderId, ShmBytes, Tuning,
};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::hint::black_box;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The sparse files are shorter than this.
const MAX_LEN: u32 = 1 << 22;

/// Files to create, and a message to look for in each provider that they seem to belong to.
#[derive(Arbitrary, Clone, Debug)]
pub(crate) struct Objects {
    /// The message's record, which each apparent provider is asked for.
    record: u8,
    generation: u64,
    len: u16,
    is_swept_first: bool,
    objects: Many<Object, 12>,
}

#[derive(Arbitrary, Clone, Debug)]
struct Object {
    name: Name,
    kind: Kind,
}

#[derive(Arbitrary, Clone, Debug)]
enum Name {
    Control(Id),
    Segment(Id, u8),
    /// Arbitrary bytes after the prefix and a dot.
    Any(Vec<u8>),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Id {
    Living,
    Small(u8),
    Any(u64),
}

#[derive(Arbitrary, Clone, Debug)]
enum Kind {
    /// A copy of the living owner's control object, first changed and then truncated or extended.
    Copy(Vec<Write>, Option<u16>),
    Bytes(Vec<u8>),
    Sparse(u32),
    Directory,
    Link,
}

struct Scene<'a> {
    prefix: &'a str,
    provider: Provider,
    message: ShmBytes,
    sent: Descriptor,
    genuine: Vec<u8>,
}

impl Objects {
    /// Creates the files beside a provider, under this prefix, which is used only here.
    pub(crate) fn run(&self, prefix: &str) {
        let scene = Scene::new(prefix);
        let living = outside::files(prefix);
        for object in &self.objects.0 {
            scene.make(object);
        }
        if self.is_swept_first {
            scene.sweep();
        }
        let client = Client::in_namespace(&Namespace::new(prefix).unwrap());
        for object in &self.objects.0 {
            if let Name::Control(id) | Name::Segment(id, _) = &object.name {
                self.visit(&client, id.number(&scene.provider));
            }
        }
        client.unmap_unused();
        scene.check();
        scene.sweep();
        // `build` sweeps first.
        drop(
            Provider::builder()
                .namespace(&Namespace::new(prefix).unwrap())
                .max_shared(1)
                .build()
                .expect("another provider"),
        );
        assert!(
            living.iter().all(|path| path.exists()),
            "the living owner's objects were swept away"
        );
        scene.check();
        drop((client, scene));
        assert!(
            living.iter().all(|path| !path.exists()),
            "the owner does not take its objects along"
        );
        for path in outside::files(prefix).iter() {
            outside::remove(path);
        }
        outside::assert_nothing_left(prefix);
    }

    /// Connects to a provider that may not exist, and attaches to a message that may not exist.
    fn visit(&self, client: &Client, provider: ProviderId) {
        for result in [
            client.connect(provider).map(drop),
            client.attach(&self.descriptor(provider)).map(drop),
        ] {
            black_box(result.map_err(|error| error.to_string())).ok();
        }
    }

    fn descriptor(&self, provider: ProviderId) -> Descriptor {
        let mut bytes = [0; Descriptor::SIZE];
        bytes[..3].copy_from_slice(&[0xd7, 0x5b, 1]);
        bytes[4] = self.record % RECORDS as u8;
        bytes[8..16].copy_from_slice(&u64::from(provider).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.generation.to_le_bytes());
        bytes[24..26].copy_from_slice(&self.len.to_le_bytes());
        super::descriptor::sign(bytes).expect("magic number and version are right")
    }
}

impl Id {
    fn number(self, living: &Provider) -> ProviderId {
        match self {
            Self::Living => living.id(),
            Self::Small(id) => ProviderId::from(u64::from(id % 4)),
            Self::Any(id) => ProviderId::from(id),
        }
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
        let mut buffer = provider.alloc(1000).expect("room");
        buffer.fill(1);
        let message = buffer.freeze();
        let sent = message.descriptor().expect("a record");
        let genuine =
            fs::read(format!("/dev/shm/{prefix}.{}.ctl", provider.id())).expect("a control object");
        Self {
            prefix,
            provider,
            message,
            sent,
            genuine,
        }
    }

    fn make(&self, Object { name, kind }: &Object) {
        let path = self.path(name);
        match kind {
            Kind::Directory => drop(fs::create_dir(&path)),
            Kind::Link => drop(symlink(
                format!("{}.{}.ctl", self.prefix, self.provider.id()),
                &path,
            )),
            Kind::Bytes(bytes) => drop(create(&path, bytes)),
            Kind::Sparse(len) => {
                if let Some(file) = create(&path, &[]) {
                    file.set_len(u64::from(len % MAX_LEN))
                        .expect("a sparse file");
                }
            }
            Kind::Copy(writes, len) => {
                let mut copy = self.genuine.clone();
                if let Name::Control(id) = name {
                    copy[16..24]
                        .copy_from_slice(&u64::from(id.number(&self.provider)).to_le_bytes());
                }
                if let Some(file) = create(&path, &copy) {
                    let control = OpenObject::open(&path, RECORDS);
                    for write in writes {
                        control.apply(write);
                    }
                    file.set_len(len.map_or(copy.len() as u64, u64::from))
                        .expect("room in /dev/shm");
                }
            }
        }
    }

    fn path(&self, name: &Name) -> PathBuf {
        let file = match name {
            Name::Control(id) => {
                format!("{}.{}.ctl", self.prefix, id.number(&self.provider)).into_bytes()
            }
            Name::Segment(id, serial) => {
                format!("{}.{}.{serial:x}", self.prefix, id.number(&self.provider)).into_bytes()
            }
            Name::Any(bytes) => {
                let plain = bytes.iter().filter(|byte| !b"/\0".contains(byte));
                let mut name = format!("{}.", self.prefix).into_bytes();
                name.extend(plain.take(100));
                name
            }
        };
        Path::new("/dev/shm").join(OsStr::from_bytes(&file))
    }

    fn sweep(&self) {
        Namespace::new(self.prefix)
            .unwrap()
            .sweep()
            .expect("/dev/shm can be read");
    }

    /// The owner works as before, and its message is intact.
    fn check(&self) {
        let client = Client::in_namespace(&Namespace::new(self.prefix).unwrap());
        let view = client.attach(&self.sent);
        let is_right =
            matches!(&view, Ok(view) if view.iter().all(|&byte| byte == 1) && view.len() == 1000);
        assert!(
            is_right,
            "the living owner's message: {:?}",
            view.map_err(|error: AttachError| error.to_string())
        );
        assert!(self.message.is_leased());
        let another = self.provider.alloc(100_000).expect("room");
        another.freeze().descriptor().expect("a record");
    }
}

/// Leaves an existing file alone: it may be the living owner's.
fn create(path: &Path, bytes: &[u8]) -> Option<File> {
    let mut file = File::options()
        .write(true)
        .create_new(true)
        .open(path)
        .ok()?;
    file.write_all(bytes).expect("room in /dev/shm");
    Some(file)
}
