//! Putting programs into production: containers, systemd, snaps, several users, kernels and sandboxes.
//!
//! # A checklist
//!
//! * All programs see the same /dev/shm, or share another tmpfs: [containers](#containers).
//! * That tmpfs is larger than the sum of all [`max_bytes`](crate::ProviderBuilder::max_bytes), and
//!   so is the memory limit of the publisher's container.
//! * All programs run as one user, or [admit each other](#several-users).
//! * Nothing removes the objects under a living program: [systemd](#systemd).
//! * The [limits](#systemd) of descriptors, file size and locked memory are high enough.
//! * A program that restricts itself does so after it has connected: [sandboxes](#sandboxes).
//! * Your monitoring runs `shm-pool ls --check`: see [`debugging`](super::debugging#a-killed-process).
//!
//! # Containers
//!
//! A container has a /dev/shm of its own, which no other container sees. A program in another one
//! finds no provider ([`AttachError::NoProvider`](crate::AttachError::NoProvider)) and no channel.
//!
//! | runtime | a /dev/shm for several containers |
//! |---|---|
//! | Docker, Podman | start one with `--ipc=shareable --shm-size=1g`, and the others with `--ipc=container:NAME` |
//! | the same, shared with the host | `--ipc=host` |
//! | Kubernetes, containers of one pod | an `emptyDir` with `medium: Memory` and a `sizeLimit`, mounted at /dev/shm in each |
//!
//! A volume on a tmpfs at another path serves too:
//! [`Namespace::in_directory`](crate::Namespace::in_directory).
//!
//! * **Size:** Docker gives /dev/shm 64 MiB by default. If it is full, an allocation fails; there is
//!   never a signal.
//! * **Memory limit:** The kernel counts a page of a tmpfs against the cgroup that first uses it. A
//!   provider reserves its payload itself, so its container is charged for all of it, whichever program
//!   reads it. Above the limit, the kernel kills a process of that container, and no call returns an
//!   error. Set the limit to the sum of the `max_bytes` of its providers and of what the programs use
//!   themselves.
//! * **PID namespaces** may differ. Locks on files show which processes are alive, not their ids.
//! * **User namespaces:** Both programs must be the same user in the eyes of the kernel. A user without
//!   an id in the namespace is shown there as 65534. Such a user's objects are refused with `WrongUid`,
//!   even if the program itself runs as 65534. `podman run --userns=keep-id` keeps the user the same
//!   inside and outside.
//! * **`docker pause`** stops a process, and a stopped process counts as alive. It keeps what it holds.
//!   [`block_limit`](crate::channel::PublisherBuilder::block_limit) and
//!   [`max_bytes_per_receiver`](crate::channel::PublisherBuilder::max_bytes_per_receiver) limit what
//!   that costs a publisher.
//!
//! # systemd
//!
//! ```ini
//! [Service]
//! User=camera
//! ExecStart=/usr/bin/camera
//! Restart=on-failure
//! LimitNOFILE=4096
//! LimitMEMLOCK=256M
//! ```
//!
//! `camera` is a system user, as `useradd --system camera` creates one.
//!
//! * **`RemoveIPC=` of `logind.conf`** is `yes` by default. When the last session of a user ends, logind
//!   removes all files of that user in /dev/shm, even under a living program. Run programs that outlive
//!   a session as a system user, set `RemoveIPC=no`, or keep the user with `loginctl enable-linger`.
//! * **`RemoveIPC=` of a unit** does the same when the last unit of that user stops. `DynamicUser=`
//!   implies it, and runs each service as a different user.
//! * **Removed under a living program:** connected receivers get all messages at first. The next
//!   [`build`](crate::ProviderBuilder::build) in the namespace, or a sweep, also removes the segments
//!   that the publisher has made since its files were removed, so later messages are lost. New receivers do not find the
//!   channel. `shm-pool ls` lists such objects with their processes, and so does
//!   [`Report::removed`](crate::inspect::Report::removed). Restart the publisher.
//! * **`systemd-tmpfiles`** removes old files only from directories that a rule names with an age.
//!   systemd's own rules name /tmp and /var/tmp, not /dev/shm. Messages change no time stamp, but each
//!   object of a living program carries a shared `flock`, and systemd 254 and later leave locked files
//!   alone. For an earlier version, exclude your directory with a line `x /tmp/frames`.
//! * **`PrivateTmp=`** does not concern /dev/shm. Nor does `PrivateIPC=`, which is about System V IPC
//!   and message queues. `PrivateUsers=` shows the objects of other users as those of user 65534, which
//!   are refused.
//! * **Signals:** the threads of this crate block them, so yours get them. See
//!   [`threads`](crate::threads).
//!
//! | limit | if it is too low | for |
//! |---|---|---|
//! | `LimitNOFILE=` | an error that names `ulimit -n` | a descriptor for each segment (at most 16), and some for each channel |
//! | `LimitFSIZE=` | an error that names it, and no `SIGXFSZ` | the longest object: a segment has at most `max_bytes` |
//! | `LimitMEMLOCK=` | [`BuildError::LockMemory`](crate::BuildError::LockMemory), with both numbers | `max_bytes` and the control object, with [`lock_memory`](crate::ProviderBuilder::lock_memory) only |
//!
//! # Snaps
//!
//! A confined snap may only use names in /dev/shm that begin with `snap.`, its own name and a dot.
//! Choose such a prefix:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let namespace = shm_pool::Namespace::new("snap.robot.topics")?;
//! # assert_eq!(namespace.prefix(), "snap.robot.topics");
//! # Ok(())
//! # }
//! ```
//!
//! # Several users
//!
//! By default only programs of one user see each other. Three settings open a channel to others:
//!
//! | side | setting | says |
//! |---|---|---|
//! | publisher | [`ProviderBuilder::mode`](crate::ProviderBuilder::mode) | who may read its messages |
//! | publisher | [`PublisherBuilder::mode`](crate::channel::PublisherBuilder::mode) | who may join its channel |
//! | subscriber | [`Namespace::of_user`](crate::Namespace::of_user) | which user's objects it trusts |
//!
//! With mode `0o660`, a subscriber must be in the group of the publisher's objects. That is the group
//! that the publisher runs with (`Group=` of a unit). With `0o666`, any user may join. The umask does not
//! matter.
//!
//! ```
//! use shm_pool::channel::{Publisher, Subscriber};
//! use shm_pool::{Namespace, Provider};
//! # use std::error::Error;
//! # use std::time::Duration;
//!
//! # fn main() -> Result<(), Box<dyn Error>> {
//! # let prefix = format!("docs-users-{}", std::process::id());
//! # let prefix = prefix.as_str();
//! # let camera_uid = Namespace::default().uid();
//! # /*
//! let prefix = "robot";
//! # */
//! // As the user `camera`, in the group `video`.
//! let namespace = Namespace::new(prefix)?;
//! let provider = Provider::builder().namespace(&namespace).mode(0o660).build()?;
//! let mut publisher = Publisher::builder().mode(0o660).create(&provider, "front")?;
//!
//! // As another user in the group `video`. `id -u camera` prints 990.
//! # /*
//! let namespace = Namespace::new(prefix)?.of_user(990);
//! # */
//! # let namespace = Namespace::new(prefix)?.of_user(camera_uid);
//! let mut subscriber = Subscriber::builder().namespace(&namespace).open("front")?;
//! # publisher.wait_for_receivers(1, Duration::from_secs(60))?;
//!
//! let mut frame = publisher.alloc(640 * 480 * 3)?;
//! frame.fill(0x7f);
//! publisher.send(frame)?;
//! assert_eq!(subscriber.recv()?[0], 0x7f);
//! # Ok(())
//! # }
//! ```
//!
//! * An admitted user can never write payload. It can write what both sides write: see the [threat
//!   model](super::guarantees#threat-model).
//! * Only a process of the publisher's user removes what a killed publisher has left. If the last
//!   reader is another user's, the objects wait for the publisher's next
//!   [`build`](crate::ProviderBuilder::build) or a [sweep](crate::Namespace::sweep) by its user.
//! * After a restart with another uid (`DynamicUser=`, a new image), subscribers refuse the objects with
//!   `WrongUid`. Give the publisher a fixed uid.
//!
//! # Kernels and file systems
//!
//! 64-bit Linux, x86-64 or aarch64. Only the first row of this table is indispensable:
//!
//! | since Linux | for | before |
//! |---|---|---|
//! | 3.15 | locks of open file descriptions, which show which processes are alive | nothing works: the first build fails, and the error names the version |
//! | 4.4 | [`lock_memory`](crate::ProviderBuilder::lock_memory) (`mlock2`) | an error that names `mlock2` |
//! | 4.16 | waits for memory that end at once (`membarrier`) | such a wait may end up to 50 milliseconds late |
//! | 5.14 | [`warm`](crate::channel::Subscriber::warm) (`MADV_POPULATE_READ`) | `warm` maps, but faults nothing in, and returns 0 |
//! | 5.16 | one helper thread for 127 awaited ends, and a [`wait_any`](crate::channel::wait_any) that sleeps by itself (`futex_waitv`) | more threads; an interrupt takes up to 10 milliseconds |
//! | 6.1 | [`huge_pages`](crate::Tuning::huge_pages) (`MADV_COLLAPSE`) | the option has no effect |
//!
//! | file system | |
//! |---|---|
//! | tmpfs | works |
//! | another local one | works, but writes messages to the disk now and then |
//! | a network file system | does not work |
//! | hugetlbfs | refused by `build`: [`BuildError::Directory`](crate::BuildError::Directory) |
//! | one that is mounted read-only, or full | an error that says so |
//!
//! # Sandboxes
//!
//! ## Filters of system calls
//!
//! | used for | calls |
//! |---|---|
//! | objects | `openat`, `close`, `fstat`, `newfstatat`, `statx`, `statfs`, `fchmod`, `fchown`, `ftruncate`, `fallocate`, `lseek`, `pread64`, `pwrite64`, `unlink`, `rename`, `getdents64`, `fcntl`, `flock` |
//! | memory | `mmap`, `munmap`, `madvise`; `mlock2` and `mbind` with the options that need them |
//! | waiting | `futex`, `futex_waitv`, `membarrier`, `clock_gettime`, `ppoll`, `eventfd2`, `inotify_init1`, `inotify_add_watch`, `read`, `write` |
//! | threads | `clone3` or `clone`, `set_robust_list`, `rt_sigprocmask`, `sched_yield`, `getcpu`, `gettid`, `prctl` |
//! | the rest | `getrandom`, `geteuid`, `getpid`, `prlimit64`, `faccessat` |
//!
//! The C library makes another call instead of some of these: `faccessat2`; on x86-64 `poll`, and with
//! musl `open`, `stat` and `lstat`; on aarch64 `unlinkat` and `renameat`. Its allocator and Rust's
//! standard library make further calls.
//!
//! A filter should answer with an error, not kill the process (`SystemCallErrorNumber=EPERM` in a unit).
//! Then:
//!
//! * **Nothing fails** without `futex_waitv`, `membarrier`, `madvise`, `flock`, `getcpu` and
//!   `inotify_init1`. Messages arrive as before, and some waits check every few milliseconds instead.
//! * **An error names the call** that an operation needs, and says that a sandbox forbids it.
//!
//! ## Programs that restrict themselves
//!
//! A program may give up rights after its start: by `chroot`, `setuid`, Landlock, or a mount namespace
//! without /dev/shm. It keeps the objects that it has mapped by then, and can open no more by name:
//!
//! | side | afterwards |
//! |---|---|
//! | subscriber | receives from the segments that it has mapped. A message in a later one is an error of `recv`, [`Attach`](crate::channel::RecvError::Attach), and the next message arrives |
//! | subscriber | finds no next publisher: it waits, or gets [`RecvError::Open`](crate::channel::RecvError::Open) if access is denied |
//! | publisher | serves the subscribers that it has, and connects no new ones |
//! | publisher | does not remove its objects: the last receiver does, or the next `build` in the namespace |
//!
//! So put all memory into one segment, connect, map the segment, and then restrict the process:
//!
//! ```
//! use shm_pool::channel::{ChannelEvent, Publisher, Subscriber};
//! use shm_pool::{Provider, Tuning};
//! # use std::error::Error;
//! # use std::time::Duration;
//!
//! # fn restrict() {}
//! # fn main() -> Result<(), Box<dyn Error>> {
//! # let name = format!("docs-restricted-{}", std::process::id());
//! # let name = name.as_str();
//! // The publisher: one segment, which exists before the first subscriber is warm.
//! const CAP: usize = 16 << 20;
//! let tuning = Tuning::new().arena_size(CAP);
//! let provider = Provider::builder().max_bytes(CAP).tuning(tuning).build()?;
//! provider.reserve(100_000, 1)?.keep();
//! # /*
//! let mut publisher = Publisher::create(&provider, "frames")?;
//! # */
//! # let mut publisher = Publisher::create(&provider, name)?;
//!
//! // A subscriber, in another process.
//! # /*
//! let mut subscriber = Subscriber::open("frames")?;
//! # */
//! # let mut subscriber = Subscriber::open(name)?;
//! # let wait = std::thread::spawn(move || {
//! #     publisher.wait_for_receivers(1, Duration::from_secs(60)).unwrap();
//! #     publisher
//! # });
//! let event = subscriber.recv_event()?;
//! assert!(matches!(event, ChannelEvent::Connected(_)));
//! subscriber.warm()?;
//! restrict(); // chroot, setuid, Landlock
//! # let mut publisher = wait.join().unwrap();
//!
//! publisher.send(provider.alloc(2_000_000)?)?; // any length that fits
//! assert_eq!(subscriber.recv()?.len(), 2_000_000);
//! # Ok(())
//! # }
//! ```
//!
//! [`room_for`](crate::ProviderBuilder::room_for) makes one segment too. One segment has at most 64 GiB.
//! For clients there is [`Client::warm`](crate::Client::warm).
//!
//! After `chroot` or in another mount namespace, a program goes on as before, without what the table says, if it
//! reaches the directory by a descriptor that it has opened before, as long as /proc is mounted there:
//!
//! ```
//! use shm_pool::channel::Subscriber;
//! use shm_pool::Namespace;
//! use std::fs::File;
//! use std::os::fd::AsRawFd;
//!
//! # fn restrict() {}
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let directory = File::open("/dev/shm")?; // stays open
//! let path = format!("/proc/self/fd/{}", directory.as_raw_fd());
//! let namespace = Namespace::default().in_directory(path)?;
//! restrict(); // chroot, or a mount namespace
//!
//! let subscriber = Subscriber::builder().namespace(&namespace).open("frames")?;
//! # drop(subscriber);
//! # Ok(())
//! # }
//! ```
//!
//! The other processes use /dev/shm as always. This does not help after `setuid` or under Landlock,
//! where the kernel denies the files themselves.
//!
//! # When it goes wrong
//!
//! * **A death is noticed when the kernel has torn the process down.** That takes about a second for
//!   4 GB of private memory. If there is a core dump, it is written before that, which takes seconds for
//!   gigabytes.
//! * **A channel makes the process multi-threaded for good.** The thread
//!   [`shm-pool-keeper`](crate::threads) stays after the last channel. `unshare(CLONE_NEWUSER)` fails
//!   with `EINVAL` from then on, so enter a user namespace before. Python 3.12 and later warn when such
//!   a process forks.
//! * **`exit` drops no `static`.** A provider in one leaves its segments and control object, as a killed
//!   process does. No message is lost. The last reader removes them, or the next `build` in the
//!   namespace, or `shm-pool sweep --yes`. A program that must leave nothing drops its provider before, and calls
//!   [`finish_reading`](crate::finish_reading).
//! * **A crash loop does not fill /dev/shm:** each build first removes what its predecessors left, unless
//!   it is still read.
//!
//! [`debugging`](super::debugging) shows who holds the memory, and [`guarantees`](super::guarantees) what
//! survives which crash.
#![forbid(unsafe_code)]
