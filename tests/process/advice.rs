//! Errors of a system that is set up in another way than usual say what is wrong with it.

use crate::child::{in_child, skip_without_mounts, try_in_child};
use crate::own_shm::{give_mounts, give_shm, keep_mounts, mount, Inside};
use crate::shm::{self, Names};
use crate::sys;
use crate::users;
use crate::wire::{Link, Message};
use shm_pool::channel::Sender;
use shm_pool::{BuildError, Namespace, Provider};
use std::os::unix::fs::PermissionsExt;
use std::{fs, io};

const MIB: usize = 1 << 20;

/// Builds a provider and allocates from it. Returns the text of the error.
fn refused(namespace: &Namespace) -> String {
    let provider = match Provider::builder().namespace(namespace).build() {
        Ok(provider) => provider,
        Err(error) => return text(&error),
    };
    match provider.alloc(MIB) {
        Ok(_) => "allocated".to_owned(),
        Err(error) => text(&error),
    }
}

fn text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

#[track_caller]
fn assert_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part:?} in {text:?}");
    }
}

/// The control object, whose length follows from `max_shared`, does not fit.
#[test]
fn shm_of_one_page() {
    skip_without_mounts(try_in_child(
        "",
        |command| give_shm(command, b"size=4k,mode=1777\0"),
        |prefix| {
            let text = refused(&shm::namespace(prefix));
            assert_says(&text, &["posix_fallocate", "lower max_shared"]);
            assert!(!text.contains("max_bytes"), "{text}");
        },
    ));
}

#[test]
fn read_only_shm() {
    fn mount_read_only() -> io::Result<()> {
        let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_RDONLY;
        keep_mounts()?;
        mount(b"tmpfs\0", b"/dev/shm\0", flags, b"size=4m\0")
    }
    skip_without_mounts(try_in_child(
        "",
        |command| give_mounts(command, Inside::Itself, mount_read_only),
        |prefix| {
            let text = refused(&shm::namespace(prefix));
            assert_says(&text, &["/dev/shm is mounted read-only", "--tmpfs"]);
        },
    ));
}

#[test]
fn no_directory() {
    let namespace = shm::namespace("advice")
        .in_directory("/dev/shm/missing")
        .unwrap();
    assert_says(
        &refused(&namespace),
        &["/dev/shm/missing", "does not exist: mount a tmpfs there"],
    );
}

/// A sandbox forbids one call.
#[test]
fn forbidden_call() {
    in_child(|prefix| {
        sys::forbid_call(libc::SYS_fallocate, libc::EPERM).unwrap();
        let text = refused(&shm::namespace(prefix));
        assert_says(
            &text,
            &["a sandbox or security policy forbids posix_fallocate"],
        );
        assert!(!text.contains("mode"), "{text}");
    });
}

/// There are no locks of open file descriptions.
#[test]
fn no_locks() {
    in_child(|prefix| {
        sys::forbid_call(libc::SYS_fcntl, libc::EINVAL).unwrap();
        let text = refused(&shm::namespace(prefix));
        assert_says(&text, &["fcntl(F_OFD_SETLK)", "choose a tmpfs"]);
    });
}

role!("unwritable", unwritable_role);

fn unwritable_role(link: &Link, arguments: &[&str]) {
    users::be_stranger(link);
    link.send(&Message::Done);
    let namespace = shm::namespace("advice").in_directory(arguments[0]).unwrap();
    link.send(&Message::Refused(refused(&namespace)));
}

/// A directory in which this user may not create files.
#[test]
fn unwritable_directory() {
    let names = Names::new("advice-unwritable");
    let directory = shm::path(&format!("{}.directory", names.prefix()));
    fs::create_dir(&directory).unwrap();
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
    let child = users::start("unwritable", &[directory.to_str().unwrap()]);
    let answer = child.map(|child| child.receive());
    fs::remove_dir(&directory).unwrap();
    match answer {
        Some(Message::Refused(text)) => {
            assert_says(&text, &["may not create files in", "mode 755 of uid 0"])
        }
        Some(other) => panic!("{other:?}"),
        None => {}
    }
}

/// A channel does not fit beside a full pool.
#[test]
fn no_room_for_a_channel() {
    skip_without_mounts(try_in_child(
        "",
        |command| give_shm(command, b"size=256k,mode=1777\0"),
        |prefix| {
            let builder = Provider::builder().namespace(&shm::namespace(prefix));
            let provider = builder.max_shared(64).max_bytes(MIB).build().unwrap();
            let mut held = Vec::new();
            while let Ok(buffer) = provider.alloc(4096) {
                held.push(buffer);
            }
            let error = Sender::create(&provider, "c").err().unwrap();
            assert_says(&text(&error), &["the channel's capacity"]);
        },
    ));
}

/// The error has the kind and the number of the system's.
#[test]
fn kind_is_kept() {
    let namespace = shm::namespace("advice")
        .in_directory("/dev/shm/missing")
        .unwrap();
    let built = Provider::builder().namespace(&namespace).build();
    let Err(BuildError::Os(error)) = built else {
        panic!("built")
    };
    assert_eq!(error.errno(), Some(libc::ENOENT));
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::NotFound);
}
