//! Builder options: invalid values are typed errors that leave no object behind, boundary values
//! work, and modes and names are exact.

use crate::fixtures::{builder, files, holds, message, segment, unique_prefix, write, NONE};
use shm_pool::channel::{Publisher, Receiver, Sender, Subscriber};
use shm_pool::{AttachError, BuildError, Client, Namespace, Provider, ProviderBuilder, Tuning};
use shm_pool_support::machine::page_size;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{symlink, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, thread};

const MAX_LEN: usize = (1 << 48) - 1;

fn small() -> ProviderBuilder {
    Provider::builder().max_shared(1)
}

/// A miscalculated quota of 0 must not let each peer read one byte.
#[test]
fn quota_of_zero() {
    let error = small().max_bytes_per_peer(0).build().unwrap_err();
    assert!(
        matches!(
            &error,
            BuildError::OutOfRange(of) if of.option() == "max_bytes_per_peer" && *of.allowed().start() == 1
        ),
        "{error}"
    );
    assert!(small().max_bytes_per_peer(1).build().is_ok());
}

#[test]
fn numbers_out_of_range() {
    let prefix = unique_prefix("out-of-range");
    let builder = || small().namespace(&Namespace::new(prefix.as_str()).unwrap());
    let bad = [
        ("max_bytes", builder().max_bytes(0)),
        ("max_bytes", builder().max_bytes(MAX_LEN + 1)),
        ("max_bytes", builder().max_bytes(usize::MAX)),
        ("max_alloc", builder().max_alloc(0)),
        ("max_alloc", builder().max_alloc((1 << 30) + 1)),
        (
            "max_alloc",
            builder().max_bytes(1 << 20).max_alloc((1 << 20) + 1),
        ),
        (
            "max_alloc",
            builder()
                .max_bytes((1 << 20) + 100)
                .max_alloc((1 << 20) + page_size() + 1),
        ),
        (
            "max_alloc",
            builder().max_bytes(MAX_LEN).max_alloc((64 << 30) + 1),
        ),
        ("max_alloc", builder().max_alloc(usize::MAX)),
        ("arena_size", builder().tuning(Tuning::new().arena_size(0))),
        (
            "arena_size",
            builder().tuning(Tuning::new().arena_size((1 << 30) + 1)),
        ),
        (
            "arena_size",
            builder()
                .max_bytes(1 << 20)
                .tuning(Tuning::new().arena_size((1 << 20) + 1)),
        ),
        (
            "arena_size",
            builder().tuning(Tuning::new().arena_size(usize::MAX)),
        ),
        (
            "max_idle_per_class",
            builder().max_idle_per_class((1 << 20) + 1),
        ),
        (
            "max_idle_per_class",
            builder().max_idle_per_class(usize::MAX),
        ),
        ("max_shared", builder().max_shared(0)),
        ("max_shared", builder().max_shared((1 << 20) + 1)),
        ("max_shared", builder().max_shared(usize::MAX)),
    ];
    for (expected, builder) in bad {
        let described = format!("{builder:?}");
        let Err(error) = builder.build() else {
            panic!("{described} was built")
        };
        let text = error.to_string();
        let BuildError::OutOfRange(of) = error else {
            panic!("{described}: {text}")
        };
        assert_eq!(of.option(), expected, "{described}");
        let value = text.split([' ', ',']).nth(3).unwrap().parse().unwrap();
        assert!(!of.allowed().contains(&value), "{text}");
    }
    assert_eq!(files(&prefix), NONE, "a failed build leaves files");
}

#[test]
fn boundary_values_work() {
    let good = [
        small().max_bytes(1),
        small().max_bytes(42),
        small().max_bytes(10_240),
        small().max_bytes(1_000_000),
        small().max_bytes(64 << 10),
        small().max_bytes((64 << 10) + 1),
        small().max_bytes(MAX_LEN),
        small().max_alloc(1),
        small().max_alloc(1 << 30),
        small().max_bytes(1 << 20).max_alloc(1 << 20),
        small().tuning(Tuning::new().arena_size(1)),
        small().tuning(Tuning::new().arena_size(64 << 10)),
        small().tuning(Tuning::new().arena_size((64 << 10) + 1)),
        small().max_bytes(MAX_LEN).max_alloc(64 << 30),
        small()
            .max_bytes(1 << 20)
            .tuning(Tuning::new().arena_size(1 << 20)),
        small()
            .max_bytes(64 << 10)
            .tuning(Tuning::new().arena_size(64 << 10))
            .max_alloc(1),
        small().max_idle_per_class(0),
        small().max_idle_per_class(1 << 20),
    ];
    for builder in good {
        let described = format!("{builder:?}");
        let provider = match builder.build() {
            Ok(provider) => provider,
            Err(error) => panic!("{described}: {error}"),
        };
        assert_eq!(provider.alloc(1).unwrap().len(), 1, "{described}");
    }
}

#[test]
fn max_shared_limit() {
    match Provider::builder().max_shared(1 << 20).build() {
        Ok(provider) => assert!(provider.alloc(1).unwrap().freeze().descriptor().is_ok()),
        // It needs 128 MiB, which not every machine has.
        Err(error) => assert!(matches!(error, BuildError::Os(_)), "{error}"),
    }
}

#[test]
fn invalid_prefixes_of_both_sides() {
    let long = "x".repeat(61);
    for prefix in [
        "",
        long.as_str(),
        "a/b",
        "../a",
        "a..b",
        ".a",
        "a.",
        ".",
        "..",
        "a b",
        "a\0b",
        "ä",
        "a\n",
    ] {
        {
            let error = Namespace::new(prefix).err();
            let Some(BuildError::Prefix(named)) = error else {
                panic!("{prefix:?}: {error:?}")
            };
            assert_eq!(named, prefix);
        }
    }
}

#[test]
fn prefix() {
    for fill in [
        "x".repeat(60),
        "Z".to_owned(),
        "a-b_C-9".to_owned(),
        ".a.b".to_owned(),
    ] {
        let unique = unique_prefix("prefix");
        // Limited to 60 characters, so that the longest prefix is tested too.
        let prefix: String = format!("{unique}{fill}").chars().take(60).collect();
        let provider = small()
            .namespace(&Namespace::new(prefix.as_str()).unwrap())
            .build()
            .unwrap();
        let messages = [
            provider.alloc(100).unwrap().freeze(),
            provider.alloc(1 << 20).unwrap().freeze(),
        ];
        let names = files(&provider.id().to_string());
        assert_eq!(names.len(), 2);
        assert!(
            names
                .iter()
                .all(|name| name.starts_with(&format!("{prefix}."))),
            "{names:?}"
        );
        let descriptor = messages[0].descriptor().unwrap();
        let client = Client::in_namespace(&Namespace::new(&prefix).unwrap());
        assert!(client.attach(&descriptor).is_ok());
        assert!(matches!(
            Client::new().attach(&descriptor),
            Err(AttachError::NoProvider { .. })
        ));
    }
}

#[test]
fn invalid_modes() {
    let prefix = unique_prefix("bad-mode");
    for mode in [
        0,
        0o400,
        0o200,
        0o060,
        0o066,
        0o700,
        0o610,
        0o601,
        0o1600,
        0o4600,
        0o100600,
        u32::MAX,
    ] {
        let error = small()
            .namespace(&Namespace::new(prefix.as_str()).unwrap())
            .mode(mode)
            .build()
            .err();
        let Some(BuildError::Mode(named)) = error else {
            panic!("mode {mode:o}: {error:?}")
        };
        assert_eq!(named, mode);
    }
    assert_eq!(files(&prefix), NONE, "a failed build leaves files");
}

/// Builds a provider with `mode`, and returns the modes of its control object and its segment.
fn modes_on_disk(mode: u32) -> Vec<u32> {
    let provider = small().mode(mode).build().unwrap();
    let _live = [
        provider.alloc(100).unwrap(),
        provider.alloc(1 << 20).unwrap(),
    ];
    let mut modes = Vec::new();
    for name in files(&provider.id().to_string()) {
        let metadata = fs::metadata(format!("/dev/shm/{name}")).unwrap();
        modes.push(metadata.permissions().mode() & 0o7777);
    }
    // Sorted, "1" precedes "ctl".
    modes.reverse();
    modes
}

#[test]
fn mode_ignores_umask() {
    // All threads of a process share the umask. This thread takes a private copy, so that no other
    // test sees the change.
    let masked = thread::spawn(|| {
        // SAFETY: `unshare(CLONE_FS)` gives this thread its own working directory and umask. It
        // touches no memory.
        let is_private = unsafe { libc::unshare(libc::CLONE_FS) } == 0;
        for mask in [0o000, 0o022, 0o077, 0o777] {
            if is_private {
                // SAFETY: `umask` has no preconditions.
                unsafe { libc::umask(mask) };
            }
            for (mode, payload) in [
                (0o600, 0o600),
                (0o660, 0o640),
                (0o640, 0o640),
                (0o666, 0o644),
                (0o606, 0o604),
            ] {
                assert_eq!(
                    modes_on_disk(mode),
                    [mode, payload],
                    "mode {mode:o} under umask {mask:o}"
                );
            }
        }
    });
    assert!(masked.join().is_ok(), "see above");
}

#[test]
fn provider_ids_are_unique() {
    let mut ids: Vec<_> = (0..100).map(|_| small().build().unwrap().id()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 100);
}

// ---- directories other than /dev/shm ------------------------------------------------------------

/// A directory on a tmpfs, removed on drop, which fails if any file is left in it.
struct Directory(PathBuf);

impl Directory {
    fn new(test: &[u8]) -> Self {
        let mut name = unique_prefix("directory-").into_bytes();
        name.extend_from_slice(test);
        let path = Path::new("/dev/shm").join(OsStr::from_bytes(&name));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn provider(&self) -> ProviderBuilder {
        builder().namespace(&self.namespace())
    }

    fn client(&self) -> Client {
        Client::in_namespace(&self.namespace())
    }

    fn namespace(&self) -> Namespace {
        Namespace::default().in_directory(&self.0).unwrap()
    }

    fn with_prefix(&self, prefix: &str) -> Namespace {
        let namespace = Namespace::new(prefix).unwrap();
        namespace.in_directory(&self.0).unwrap()
    }

    fn count(&self) -> usize {
        fs::read_dir(&self.0).unwrap().count()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let is_empty = fs::remove_dir(&self.0).is_ok();
        if !is_empty {
            let _ = fs::remove_dir_all(&self.0);
        }
        assert!(
            is_empty || std::thread::panicking(),
            "objects are left in {:?}",
            self.0
        );
    }
}

/// A pool with its own tmpfs takes no memory of /dev/shm, and its peers find it.
#[test]
fn directory() {
    // A path need not be UTF-8.
    let directory = Directory::new(b"all-\xff");
    let provider = directory.provider().build().unwrap();
    let mut sender = Sender::create(&provider, "it").unwrap();
    let client = directory.client();
    let mut receiver = Receiver::builder()
        .namespace(client.namespace())
        .open("it")
        .unwrap();
    let mut buffer = provider.alloc(100_000).unwrap();
    write(&mut buffer, 5);
    let message = buffer.freeze();
    assert_eq!(
        directory.count(),
        3,
        "a control object, a segment, a channel"
    );
    assert_eq!(files(&provider.id().to_string()), NONE);
    let view = client.attach(&message.descriptor().unwrap()).unwrap();
    assert!(holds(&view, 5));
    sender.send(message).unwrap();
    let received = receiver.recv().unwrap();
    assert!(!received.is_inline() && holds(&received, 5));
    let elsewhere = Client::new().connect(provider.id());
    assert!(
        matches!(elsewhere, Err(AttachError::NoProvider { .. })),
        "{elsewhere:?}"
    );
}

/// The objects of killed publishers are swept there too.
#[test]
fn sweep_of_directory() {
    // Whole pages of any system.
    const LEN: usize = 64 << 10;
    let directory = Directory::new(b"swept");
    let prefix = unique_prefix("swept-there");
    let leave = || {
        fs::write(
            directory.0.join(format!("{prefix}.0123456789abcdef.1")),
            [7; LEN],
        )
        .unwrap()
    };
    leave();
    assert_eq!(
        Namespace::new(&prefix).unwrap().sweep().unwrap().objects,
        0,
        "another directory"
    );
    let swept = directory.with_prefix(&prefix).sweep().unwrap();
    assert_eq!((swept.objects, swept.bytes), (1, LEN as u64));
    leave();
    let provider = directory
        .provider()
        .namespace(&directory.with_prefix(&prefix))
        .build()
        .unwrap();
    assert_eq!(directory.count(), 1, "the next provider has removed it");
    drop(provider);
}

/// A user who can write to the directory cannot redirect an object to another file.
#[test]
fn symbolic_link() {
    let directory = Directory::new(b"link");
    let provider = directory.provider().build().unwrap();
    let other = unique_prefix("linked");
    let names = || {
        fs::read_dir(&directory.0)
            .unwrap()
            .map(|entry| entry.unwrap().path())
    };
    let control = names().next().unwrap();
    let link = directory.0.join(format!("{other}.{}.ctl", provider.id()));
    symlink(control, &link).unwrap();
    let client = Client::in_namespace(&directory.with_prefix(&other));
    let error = client.connect(provider.id()).unwrap_err();
    let AttachError::Os(error) = error else {
        panic!("{error}")
    };
    assert_eq!(
        (error.call(), error.errno(), error.object()),
        ("open", Some(libc::ELOOP), &*link)
    );
    fs::remove_file(link).unwrap();
}

/// A directory that is on no tmpfs, on most machines.
#[test]
fn directory_on_disk() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(unique_prefix("directory"));
    fs::create_dir_all(&path).unwrap();
    let directory = Directory(path);
    let namespace = directory.namespace();
    let provider = directory.provider().build().unwrap();
    let mut publisher = Publisher::create(&provider, "c").unwrap();
    let builder = Subscriber::builder().namespace(&namespace);
    let mut subscriber = builder.open("c").unwrap();
    publisher
        .wait_for_receivers(1, Duration::from_secs(60))
        .unwrap();
    for round in 0..20 {
        let mut buffer = provider.alloc(5000 * (round + 1)).unwrap();
        buffer.fill(round as u8);
        publisher.send(buffer).unwrap();
        let message = subscriber.recv().unwrap();
        assert!(message.iter().all(|&byte| byte == round as u8));
    }
}

#[test]
fn invalid_directory() {
    for path in ["", "tmp", "./tmp", "../dev/shm", "/dev/shm\0/x"] {
        let path = PathBuf::from(path);
        let error = Namespace::default().in_directory(&path).err();
        let Some(BuildError::Directory { directory, .. }) = error else {
            panic!("{path:?}: {error:?}")
        };
        assert_eq!(directory, path);
    }
    let in_directory =
        |path: &str| builder().namespace(&Namespace::default().in_directory(path).unwrap());
    let missing = format!("/dev/shm/{}", unique_prefix("missing"));
    let Err(BuildError::Os(error)) = in_directory(&missing).build() else {
        panic!("there is none")
    };
    assert_eq!(
        (error.object(), error.errno()),
        (Path::new(&missing), Some(libc::ENOENT))
    );
    let file = in_directory("/proc/self/status").build().err();
    assert!(
        matches!(&file, Some(BuildError::Directory { .. })),
        "{file:?}"
    );
}

// ---- foreign files under the names that a provider would use next -------------------------------

/// How many consecutive names are taken.
const TAKEN: u64 = 6;
const CONTENT: &str = "nobody's message";

/// Files of all kinds under the names of the provider's first segments. Removed on drop.
struct Foreign(Vec<PathBuf>);

impl Foreign {
    fn new(prefix: &str, provider: &Provider) -> Self {
        let path =
            |serial| PathBuf::from(format!("/dev/shm/{prefix}{}", segment(provider, serial)));
        let foreign = Self((1..=TAKEN).map(path).collect());
        for (nth, path) in foreign.0.iter().enumerate() {
            match nth % 3 {
                0 => fs::write(path, CONTENT).unwrap(),
                1 => fs::create_dir(path).unwrap(),
                _ => symlink("/nowhere", path).unwrap(),
            }
        }
        foreign
    }

    fn assert_untouched(&self) {
        for (nth, path) in self.0.iter().enumerate() {
            let is_as_it_was = match nth % 3 {
                0 => fs::read_to_string(path).unwrap() == CONTENT,
                1 => path.is_dir(),
                _ => fs::read_link(path).unwrap().as_os_str() == "/nowhere",
            };
            assert!(is_as_it_was, "{path:?} was changed");
        }
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        for path in &self.0 {
            // After a failure, any subset may be left.
            if fs::remove_file(path).is_err() {
                let _ = fs::remove_dir(path);
            }
        }
    }
}

/// An allocation does not fail because the name of its segment is taken.
#[test]
fn name_in_use() {
    for len in [100, 1 << 20] {
        let prefix = unique_prefix(&format!("taken-{len}"));
        let provider = builder()
            .namespace(&Namespace::new(&prefix).unwrap())
            .build()
            .unwrap();
        let foreign = Foreign::new(&prefix, &provider);
        let sent = message(&provider, len, 1);
        let client = Client::in_namespace(&Namespace::new(&prefix).unwrap());
        let view = client.attach(&sent.descriptor().unwrap()).unwrap();
        assert!(holds(&view, 1));
        let stats = provider.stats();
        assert_eq!(
            (stats.segments, stats.bytes_held),
            (1, stats.peak_bytes_held),
            "a name that was passed by is held"
        );
        drop((sent, view));
        drop(provider);
        foreign.assert_untouched();
        assert_eq!(
            files(&prefix).len(),
            foreign.0.len(),
            "only somebody else's files are left"
        );
        drop(foreign);
        assert_eq!(files(&prefix), NONE);
    }
}
