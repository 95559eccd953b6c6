//! Publishing on a small /dev/shm that others fill meanwhile. Each message that was accepted
//! arrives, and each one that was refused was refused at the publisher, with a typed error.

use crate::child::{Child, Link};
use crate::invalidated;
use crate::session::{self, ANY_PORT, KEY};
use crate::support::{alloc, is_out_of_memory, Collecting, Provider};
use shm_pool_zenoh::{AllocError, BufferPool, PoolBackend};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsRawFd;
use zenoh::bytes::ZBytes;
use zenoh::shm::{PosixShmProviderBackend, ShmProvider, ShmProviderBuilder};
use zenoh::{Result as ZResult, Session, Wait};

const MIB: usize = 1 << 20;

const MESSAGES: usize = 300;

/// The shortest and the longest message in bytes. Each doubling between them is as frequent as any
/// other.
const SHORTEST: usize = 64;
const LONGEST: usize = 4 * MIB;

/// Fits in what zenoh's metadata and the spare memory leave of 4 MiB.
const SMALL: usize = 64 << 10;

/// Half of a segment.
const LONG: usize = 2 * MIB;

/// The other tenant of /dev/shm takes or releases the rest whenever that many messages were sent.
const TENANT_STEP: usize = 20;

/// Messages to collectors, which zenoh copies.
const ASK: &str = "what was received?";
const END: &str = "end";

/// What a session with shared memory needs of /dev/shm, and more.
const SESSION: u64 = 128 << 10;

/// The provider and the pool of whole buffers.
const MEMORY: [&str; 2] = ["provider", "buffers"];

/// zenoh's own provider, for comparison: what becomes of it is printed, and not judged.
const DEFAULT: &str = "default";

/// Publishes on a tmpfs with a cap below, at and above its size, with one pool, and with several
/// beside a tenant that takes the rest.
fn expect_no_loss(options: &'static [u8], tmpfs: usize) {
    let mut wrong = Vec::new();
    for cap in [tmpfs / 2, tmpfs, 4 * tmpfs] {
        for memory in MEMORY.into_iter().chain([DEFAULT]) {
            for (pools, tenant) in [("1", "alone"), ("1", "tenant"), ("3", "tenant")] {
                let arguments = [&*cap.to_string(), memory, pools, tenant];
                let Some(mut child) = Child::start_with_shm("small-shm", &arguments, options)
                else {
                    return;
                };
                let report = child.link.receive();
                println!("cap {cap}, {memory}, pools {pools}, {tenant}: {report}");
                // What fits is served.
                let may_refuse = tenant != "alone" || tmpfs < 8 * MIB;
                if memory == DEFAULT {
                    child.end();
                    continue;
                }
                if !report.starts_with("none lost") || !may_refuse && !report.contains("; 0 of") {
                    wrong.push(format!("{arguments:?}: {report}"));
                }
                child.end();
            }
        }
    }
    assert!(wrong.is_empty(), "tmpfs of {tmpfs} bytes: {wrong:#?}");
}

#[test]
fn none_lost_in_4_mib() {
    expect_no_loss(b"size=4m,mode=1777\0", 4 * MIB);
}

#[test]
fn none_lost_in_8_mib() {
    expect_no_loss(b"size=8m,mode=1777\0", 8 * MIB);
}

#[test]
fn none_lost_in_64_mib() {
    expect_no_loss(b"size=64m,mode=1777\0", 64 * MIB);
}

/// Guards against a segment that has returned a part of its memory, which a later receiver cannot
/// get back.
#[test]
fn late_receiver_where_others_took_the_rest() {
    for memory in MEMORY {
        let options = b"size=8m,mode=1777\0";
        let Some(mut child) = Child::start_with_shm("late-receiver", &[memory], options) else {
            return;
        };
        child.link.expect("none lost");
        child.end();
    }
}

fn backend(cap: usize) -> PoolBackend {
    PoolBackend::builder()
        .max_bytes(cap)
        .check_lock_limit(false)
        .build()
        .unwrap()
}

/// What allocates messages.
enum Memory {
    Provider(Provider),
    Buffers(BufferPool),
    Default(ShmProvider<PosixShmProviderBackend>),
}

impl Memory {
    fn new(kind: &str, backend: &PoolBackend) -> Self {
        if kind == "provider" {
            Self::Provider(backend.provider())
        } else {
            Self::Buffers(BufferPool::new(backend))
        }
    }

    /// Returns pools of this kind, or why zenoh's own cannot be built.
    fn several(kind: &str, cap: usize, count: usize) -> ZResult<Vec<Self>> {
        let mut pools = Vec::new();
        for _ in 0..count {
            pools.push(if kind == DEFAULT {
                Self::Default(ShmProviderBuilder::default_backend(cap).wait()?)
            } else {
                Self::new(kind, &backend(cap))
            });
        }
        Ok(pools)
    }

    /// Allocates and writes a message. Returns `None` if it was refused as it must be.
    fn message(&self, number: usize, len: usize) -> Option<ZBytes> {
        let write = |bytes: &mut [u8]| {
            bytes.fill(number as u8);
            bytes[..8].copy_from_slice(&number.to_le_bytes());
        };
        match self {
            Self::Provider(provider) => match alloc::<Collecting>(provider, len, 0) {
                Ok(mut message) => {
                    write(&mut message);
                    Some(message.into())
                }
                Err(error) => {
                    assert!(is_out_of_memory(&error), "{error:?}");
                    None
                }
            },
            Self::Default(provider) => {
                let message = provider.alloc(len).with_policy::<Collecting>().wait();
                let mut message = message.ok()?;
                write(&mut message);
                Some(message.into())
            }
            Self::Buffers(pool) => match pool.alloc(len) {
                Ok(mut message) => {
                    write(&mut message);
                    Some(message.into())
                }
                Err(error) => {
                    match &error {
                        AllocError::Exhausted { len: needed, .. } => assert!(*needed >= len),
                        AllocError::Os(os) => {
                            assert_eq!(os.errno(), Some(libc::ENOSPC), "{error}");
                            assert!(os.bytes() > Some(0), "{error}");
                        }
                        _ => panic!("{error}"),
                    }
                    None
                }
            },
        }
    }
}

/// Another user of /dev/shm.
struct Tenant(File);

impl Tenant {
    fn new() -> Self {
        Self(File::create("/dev/shm/tenant").unwrap())
    }

    /// Takes all memory that is left.
    fn take_the_rest(&self) {
        let mut len = self.0.metadata().unwrap().len() as libc::off_t;
        for step in [MIB, 64 << 10, 4 << 10] {
            let step = step as libc::off_t;
            // SAFETY: the file keeps the descriptor open.
            while unsafe { libc::posix_fallocate(self.0.as_raw_fd(), len, step) } == 0 {
                len += step;
            }
        }
    }

    fn release(&self) {
        self.0.set_len(0).unwrap();
    }

    /// Returns its last `bytes`.
    fn release_some(&self, bytes: u64) {
        let len = self.0.metadata().unwrap().len();
        self.0.set_len(len - bytes).unwrap();
    }
}

/// Returns the length of the next message.
fn random_len(random: &mut fastrand::Rng, cap: usize) -> usize {
    let doublings = (LONGEST / SHORTEST) as f64;
    let len = SHORTEST as f64 * doublings.powf(random.f64());
    (len as usize).min(cap)
}

/// A collector, and the messages that were sent to it since it was last asked.
struct Line {
    collector: Child,
    sent: BTreeSet<usize>,
    invalidated: usize,
}

impl Line {
    /// Starts a collector, and returns once `session` sends to it.
    fn start(session: &Session, name: &str) -> Self {
        let ready = format!("{KEY}/ready/{name}");
        let collector = Child::start("collector", &[&session::endpoint(session), &ready]);
        session::publisher_of(session, &ready);
        Self {
            collector,
            sent: BTreeSet::new(),
            invalidated: 0,
        }
    }

    /// Returns the messages that the collector has not received, once it has received all later
    /// ones. Forgives as many as zenoh has invalidated.
    fn missing(&mut self) -> Vec<usize> {
        let reply = self.collector.link.receive();
        let mut words = reply.split_whitespace();
        let invalidated: usize = words.next().expect("a reply in time").parse().unwrap();
        for number in words {
            let number = number.parse().unwrap();
            assert!(self.sent.remove(&number), "{number} arrived twice");
        }
        let missing: Vec<usize> = self.sent.iter().copied().collect();
        self.sent.clear();
        self.invalidated += invalidated;
        if missing.len() <= invalidated {
            return Vec::new();
        }
        missing
    }
}

/// Role: publishes messages of random lengths to a collector in another process. Says what was
/// lost.
pub(crate) fn publisher(link: &mut Link, arguments: &[&str]) {
    let [cap, kind, pools, tenant] = arguments else {
        panic!("{arguments:?}")
    };
    let session = session::open("listen", ANY_PORT);
    let mut line = Line::start(&session, "first");
    let publisher = session::publisher(&session);
    let cap = cap.parse().unwrap();
    let pools = match Memory::several(kind, cap, pools.parse().unwrap()) {
        Ok(pools) => pools,
        Err(error) => {
            link.send(&format!("cannot be built: {error}"));
            publisher.put(END).wait().unwrap();
            line.collector.end();
            link.expect("end");
            return;
        }
    };
    let has_tenant = *tenant == "tenant";
    let tenant = Tenant::new();
    let mut random = fastrand::Rng::with_seed(16);
    let mut lost = Vec::new();
    let mut refused = 0;
    let mut refused_small = 0;
    for number in 0..MESSAGES {
        let len = random_len(&mut random, cap);
        let memory = &pools[number % pools.len()];
        let mut message = memory.message(number, len);
        if message.is_none() {
            // All that was sent is read then.
            publisher.put(ASK).wait().unwrap();
            lost.extend(line.missing());
            message = memory.message(number, len);
        }
        // Between the allocation and the reception.
        if has_tenant && number % (2 * TENANT_STEP) == 0 {
            tenant.take_the_rest();
        } else if has_tenant && number % TENANT_STEP == 0 {
            tenant.release();
        }
        match message {
            Some(message) => {
                line.sent.insert(number);
                publisher.put(message).wait().unwrap();
            }
            None => {
                refused += 1;
                refused_small += usize::from(len <= SMALL);
            }
        }
    }
    publisher.put(ASK).wait().unwrap();
    lost.extend(line.missing());
    let outcome = if lost.is_empty() {
        "none lost".to_owned()
    } else {
        format!("{} lost ({lost:?})", lost.len())
    };
    link.send(&format!(
        "{outcome}; {refused} of {MESSAGES} refused, {refused_small} of them small; {} invalidated",
        line.invalidated
    ));
    publisher.put(END).wait().unwrap();
    line.collector.end();
    link.expect("end");
}

/// Role: publishes to one collector, returns idle memory, and publishes to another one that joins
/// when a tenant has taken the rest of /dev/shm.
pub(crate) fn late_receiver(link: &mut Link, kind: &str) {
    let session = session::open("listen", ANY_PORT);
    let mut lines = vec![Line::start(&session, "first")];
    let publisher = session::publisher(&session);
    let backend = backend(4 * MIB);
    let memory = Memory::new(kind, &backend);
    let tenant = Tenant::new();
    let held = memory.message(0, LONG).unwrap();
    let mut lost = Vec::new();
    for number in 0..10 {
        if number == 5 {
            backend.trim();
            tenant.take_the_rest();
            tenant.release_some(SESSION);
            lines.push(Line::start(&session, "second"));
        }
        let message = memory.message(number, SMALL).unwrap();
        for line in &mut lines {
            line.sent.insert(number);
        }
        publisher.put(message).wait().unwrap();
        publisher.put(ASK).wait().unwrap();
        for line in &mut lines {
            lost.extend(line.missing());
        }
    }
    drop(held);
    if lost.is_empty() {
        link.send("none lost");
    } else {
        link.send(&format!("{lost:?} lost"));
    }
    publisher.put(END).wait().unwrap();
    for line in lines {
        line.collector.end();
    }
    link.expect("end");
}

/// Role: receives, checks and drops messages. When asked, says which have arrived since it was last
/// asked.
pub(crate) fn collector(link: &mut Link, endpoint: &str, ready: &str) {
    invalidated::watch();
    let session = session::open("connect", endpoint);
    let subscriber = session.declare_subscriber(KEY).wait().unwrap();
    let _ready = session.declare_subscriber(ready.to_owned()).wait().unwrap();
    let mut numbers = Vec::new();
    let mut reported = 0;
    while let Ok(sample) = subscriber.recv() {
        let payload = sample.payload();
        let bytes = payload.to_bytes();
        if *bytes == *END.as_bytes() {
            break;
        }
        if *bytes == *ASK.as_bytes() {
            let invalidated = invalidated::count();
            let new = invalidated - reported;
            link.send(&format!("{new} {}", numbers.join(" ")));
            reported = invalidated;
            numbers.clear();
            continue;
        }
        assert!(payload.as_shm().is_some());
        let number = usize::from_le_bytes(bytes[..8].try_into().unwrap());
        assert!(bytes[8..].iter().all(|&byte| byte == number as u8));
        numbers.push(number.to_string());
    }
    link.expect("end");
}
