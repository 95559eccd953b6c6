//! Discovery: which channels there are, and when one is created or ends.

#![forbid(unsafe_code)]

use super::bell::Woken;
use super::error::WatchError;
use super::layout::{Kind, What};
use super::sleeper::{Interrupter, Interrupts};
use super::watch::{wait, Watch};
use crate::error::OsError;
use crate::os::fork;
use crate::os::futex::Deadline;
use crate::os::locks::LockFile;
use crate::os::mapping::Mapping;
use crate::os::name::{Inode, Name, Namespace};
use crate::os::posix::PAGE;
use crate::os::process::{Process, Seen};
use crate::os::segment::check_metadata;
use crate::peer::client::Client;
use crate::protocol::control::OWNER_BYTE;
use crate::protocol::ids::{parse, Object, ProviderId};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::task::{ready, Context, Poll};
use std::time::Duration;

/// A channel whose sender or publisher is alive. Created by [`list`] and [`Watcher`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChannelInfo {
    /// Its name.
    pub name: String,
    /// Whether it has a [`Publisher`](super::Publisher), and not a [`Sender`](super::Sender).
    pub is_publisher: bool,
    /// The provider of its messages.
    pub provider: ProviderId,
    object: Name,
    inode: Inode,
}

impl ChannelInfo {
    /// Returns the channel of a file, if it is one that can be opened now.
    fn of(names: &Namespace, uid: u32, file: &str) -> Result<Option<Self>, OsError> {
        let Some((prefix, Object::Channel(name))) = parse(file) else { return Ok(None) };
        if prefix != names.prefix() {
            return Ok(None);
        }
        let object = names.file(file);
        // For reading, so that the kernel does not report it to this process.
        let opened = LockFile::open(|| object.open(libc::O_RDONLY, 0));
        let opened = opened.map_err(|error| object.error("open", 0, error))?;
        let metadata = opened.file().metadata().map_err(|error| object.error("fstat", 0, error))?;
        if !check_metadata(&metadata, &object, uid).is_ok_and(|len| len >= PAGE) {
            return Ok(None);
        }
        let copy = Mapping::copy_of(opened.file(), &object, PAGE)?;
        let Ok(facts) = What::of(&copy).read(true, || object.path()) else { return Ok(None) };
        if facts.kind == Kind::Branch || !opened.is_locked(OWNER_BYTE) {
            return Ok(None);
        }
        let (name, is_publisher, provider) = (name.to_owned(), facts.kind == Kind::Meeting, facts.provider);
        let inode = (metadata.dev(), metadata.ino());
        Ok(Some(Self { name, is_publisher, provider, object, inode }))
    }

    /// Returns the process of the sender or publisher, if it is visible: one of the same user and
    /// PID namespace. Scans /proc, which takes milliseconds.
    pub fn process(&self) -> Option<Process> {
        Seen::holder_of(&self.object, self.inode, OWNER_BYTE)
    }
}

/// Returns the channels whose senders and publishers are alive, by name: those with the client's
/// directory, name prefix and user.
///
/// # Errors
///
/// [`OsError`] if the directory cannot be read, or descriptors or memory run out.
pub fn list(client: &Client) -> Result<Vec<ChannelInfo>, OsError> {
    let (names, uid) = client.trusted();
    Ok(scan(names, uid)?.into_values().collect())
}

fn scan(names: &Namespace, uid: u32) -> Result<BTreeMap<String, ChannelInfo>, OsError> {
    let files = names.files()?;
    let is_lacking = |errno| matches!(errno, libc::EMFILE | libc::ENFILE | libc::ENOMEM);
    let found = files.iter().filter_map(|file| match ChannelInfo::of(names, uid, file) {
        // Removed in between; or of another user, who may make any call fail: a link, a lease.
        Err(error) if !error.errno().is_some_and(is_lacking) => None,
        found => found.transpose(),
    });
    found.map(|channel| channel.map(|channel| (channel.name.clone(), channel))).collect()
}

/// What a [`Watcher`] reports.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// A sender or publisher has created this channel.
    Created(ChannelInfo),
    /// The sender or publisher of this channel has closed or died.
    Closed(ChannelInfo),
}

/// Reports the channels that [`list`] returns, and then each one that is created or ends. A restart
/// is reported as `Closed` and `Created`. A channel that ends before the watcher has looked at it
/// is not reported.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shm_pool::channel::{Change, Sender, Watcher};
/// use shm_pool::{Client, Provider};
///
/// # let prefix = format!("doc-watch-{}", std::process::id());
/// # let client = Client::builder().name_prefix(&prefix).build()?;
/// # let provider = Provider::builder().name_prefix(&prefix).build()?;
/// let mut watcher = Watcher::new(&client);
/// let camera = Sender::create(&provider, "camera")?; // in another process
/// assert!(matches!(watcher.recv()?, Change::Created(channel) if channel.name == "camera"));
/// drop(camera);
/// assert!(matches!(watcher.recv()?, Change::Closed(channel) if channel.name == "camera"));
/// # Ok(())
/// # }
/// ```
pub struct Watcher {
    names: Namespace,
    uid: u32,
    known: BTreeMap<String, ChannelInfo>,
    changes: VecDeque<Change>,
    watch: Option<Watch>,
    interrupts: Arc<Interrupts>,
    fork_epoch: u64,
}

impl Watcher {
    /// Creates a watcher of the channels that [`list`] returns.
    pub fn new(client: &Client) -> Self {
        let ((names, uid), known, changes) = (client.trusted(), BTreeMap::new(), VecDeque::new());
        let (interrupts, fork_epoch) = (Interrupts::new(), fork::epoch());
        Self { names: names.clone(), uid, known, changes, watch: None, interrupts, fork_epoch }
    }

    /// Returns the next change, blocking until there is one.
    ///
    /// # Errors
    ///
    /// [`WatchError::Os`], as from [`list`]; [`WatchError::Interrupted`];
    /// [`WatchError::Forked`].
    pub fn recv(&mut self) -> Result<Change, WatchError> {
        self.receive(None)
    }

    /// Like [`recv`](Self::recv), but blocks for at most `timeout`. With zero, this only looks.
    ///
    /// # Errors
    ///
    /// [`WatchError::TimedOut`], and those of [`recv`](Self::recv).
    pub fn recv_timeout(&mut self, timeout: Duration) -> Result<Change, WatchError> {
        self.receive(Deadline::after(timeout))
    }

    fn receive(&mut self, deadline: Option<Deadline>) -> Result<Change, WatchError> {
        loop {
            if let Some(change) = self.next()? {
                return Ok(change);
            }
            if deadline.is_some_and(Deadline::has_passed) {
                return Err(WatchError::TimedOut);
            }
            // Without a watch, a check is due after a pause.
            let _ = self.watch();
            if wait(self.watch.as_ref(), deadline, Some(&self.interrupts)) == Woken::Interrupted {
                return Err(WatchError::Interrupted);
            }
        }
    }

    /// Returns the next change without blocking the thread, with any executor. Cancel safe: dropping
    /// the future loses no change.
    ///
    /// # Errors
    ///
    /// [`WatchError::NoHelper`], and those of [`recv`](Self::recv) except
    /// [`WatchError::Interrupted`].
    pub async fn recv_async(&mut self) -> Result<Change, WatchError> {
        poll_fn(|context| self.poll_recv(context)).await
    }

    /// Returns the next change if there is one; otherwise registers the task to be woken when there
    /// may be. Only the waker of the last call is kept.
    ///
    /// # Errors
    ///
    /// As [`recv_async`](Self::recv_async).
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Result<Change, WatchError>> {
        loop {
            if let Some(change) = self.next()? {
                return Poll::Ready(Ok(change));
            }
            ready!(self.watch().map_err(WatchError::NoHelper)?.poll(context));
        }
    }

    /// Returns a handle that can interrupt this watcher's blocking waits.
    pub fn interrupter(&self) -> Interrupter {
        Interrupter::new(&self.interrupts)
    }

    fn watch(&mut self) -> Result<&Watch, OsError> {
        let watch = match self.watch.take() {
            Some(watch) => watch,
            None => Watch::new(self.names.directory(), &format!("{}.", self.names.prefix()))?,
        };
        Ok(self.watch.insert(watch))
    }

    fn next(&mut self) -> Result<Option<Change>, WatchError> {
        if self.fork_epoch != fork::epoch() {
            return Err(WatchError::Forked);
        }
        if self.changes.is_empty() {
            let found = scan(&self.names, self.uid).map_err(WatchError::Os)?;
            let Self { known, changes, .. } = self;
            // Those that ended come first: a name has one channel at a time.
            let closed = known.values().filter(|channel| found.get(&channel.name) != Some(channel));
            changes.extend(closed.cloned().map(Change::Closed));
            let created = found.values().filter(|channel| known.get(&channel.name) != Some(channel));
            changes.extend(created.cloned().map(Change::Created));
            *known = found;
        }
        Ok(self.changes.pop_front())
    }
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watcher").field("prefix", &self.names.prefix()).field("known", &self.known.len()).finish()
    }
}

/// A stream of the watcher's changes (feature `stream`), which never ends. Errors are items.
#[cfg(feature = "stream")]
impl futures_core::Stream for Watcher {
    type Item = Result<Change, WatchError>;

    fn poll_next(mut self: std::pin::Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_recv(context).map(Some)
    }
}
