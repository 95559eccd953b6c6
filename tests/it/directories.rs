//! Objects in a directory other than /dev/shm.

use crate::support::{builder, files, holds, unique_prefix, write, NONE};
use shm_pool::channel::{Message, Receiver, Sender};
use shm_pool::{AttachError, BuildError, Client, Provider, ProviderBuilder};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

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
        builder().directory(&self.0)
    }

    fn client(&self) -> Client {
        Client::builder().directory(&self.0).build().unwrap()
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
        assert!(is_empty || std::thread::panicking(), "objects are left in {:?}", self.0);
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
    let mut receiver = Receiver::open(&client, "it").unwrap();
    let mut buffer = provider.alloc(100_000).unwrap();
    write(&mut buffer, 5);
    let message = buffer.freeze();
    assert_eq!(directory.count(), 3, "a control object, a segment, a channel");
    assert_eq!(files(&provider.id().to_string()), NONE);
    let view = client.attach(&message.descriptor().unwrap()).unwrap();
    assert!(holds(&view, 5));
    sender.send(message).unwrap();
    let Ok(Message::Buffer(loan)) = receiver.recv() else { panic!("not a buffer") };
    assert!(holds(&loan, 5));
    let elsewhere = Client::new().connect(provider.id());
    assert!(matches!(elsewhere, Err(AttachError::NoProvider { .. })), "{elsewhere:?}");
}

/// The objects of killed publishers are swept there too.
#[test]
fn sweep_of_directory() {
    let directory = Directory::new(b"swept");
    let prefix = unique_prefix("swept-there");
    let leave = || fs::write(directory.0.join(format!("{prefix}.0123456789abcdef.1")), [7; 8192]).unwrap();
    leave();
    assert_eq!(Provider::sweep(&prefix).unwrap().objects, 0, "another directory");
    let swept = Provider::sweep_in(&directory.0, &prefix).unwrap();
    assert_eq!((swept.objects, swept.bytes), (1, 8192));
    leave();
    let provider = directory.provider().name_prefix(prefix.as_str()).build().unwrap();
    assert_eq!(directory.count(), 1, "the next provider has removed it");
    drop(provider);
}

/// A user who can write to the directory cannot redirect an object to another file.
#[test]
fn symbolic_link() {
    let directory = Directory::new(b"link");
    let (provider, other) = (directory.provider().build().unwrap(), unique_prefix("linked"));
    let names = || fs::read_dir(&directory.0).unwrap().map(|entry| entry.unwrap().path());
    let control = names().next().unwrap();
    let link = directory.0.join(format!("{other}.{}.ctl", provider.id()));
    symlink(control, &link).unwrap();
    let client = Client::builder().directory(&directory.0).name_prefix(other).build().unwrap();
    let error = client.connect(provider.id()).unwrap_err();
    let AttachError::Os(error) = error else { panic!("{error}") };
    assert_eq!((error.call(), error.errno(), error.object()), ("open", Some(libc::ELOOP), link.to_str().unwrap()));
    fs::remove_file(link).unwrap();
}

#[test]
fn invalid_directory() {
    for path in ["", "tmp", "./tmp", "../dev/shm", "/dev/shm\0/x"] {
        let path = PathBuf::from(path);
        let errors = [
            builder().directory(&path).build().err(),
            Client::builder().directory(&path).build().err(),
            Provider::sweep_in(&path, "it").err(),
        ];
        for error in errors {
            let Some(BuildError::Directory { directory, .. }) = error else { panic!("{path:?}: {error:?}") };
            assert_eq!(directory, path);
        }
    }
    let missing = format!("/dev/shm/{}", unique_prefix("missing"));
    let Err(BuildError::Os(error)) = builder().directory(&missing).build() else { panic!("there is none") };
    assert_eq!((error.object(), error.errno()), (missing.as_str(), Some(libc::ENOENT)));
    let file = builder().directory("/proc/self/status").build().err();
    assert!(matches!(&file, Some(BuildError::Directory { .. })), "{file:?}");
}
