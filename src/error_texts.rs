//! The table of all error texts, in the words of Rust.
//!
//! The table is part of the crate, because the errors are `#[non_exhaustive]`: only here does the compiler
//! refuse a new variant that has no row. Read a new row aloud. The text is true, names the object and
//! the sizes, says what is wrong and, where there is something to do, what to do. Names of Rust's
//! methods stand in the advice alone, which other languages replace (see `wording`).

use crate::channel::{
    ChannelError, MessageType, OnEnd, OnFull, OnStall, RecvError, SendError, SendErrorKind,
};
use crate::error::{BuildError, OsError, OutOfRange, WrongUid};
use crate::os::process::Process;
use crate::owner::limits::{AllocError, CapacityError, ShareError};
use crate::peer::error::AttachError;
use crate::protocol::descriptor::{DescriptorError, Problem};
use crate::protocol::ids::{ParseError, PeerId, ProviderId, ReceiverId};
use crate::wording::text_in;
use std::alloc::Layout;
use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Defines a test of an enum's texts: a row for each variant, or several.
macro_rules! texts {
    (
        $test:ident: $error:ident
        $($variant:ident $({ $($fields:tt)* })? $(($inner:expr))? => $text:expr;)+
    ) => {
        #[test]
        fn $test() {
            // A variant may have several rows.
            #[allow(unreachable_patterns)]
            fn has_a_row(error: &$error) {
                match error {
                    $($error::$variant { .. } => {})+
                }
            }

            $({
                let error = $error::$variant $({ $($fields)* })? $(($inner))?;
                has_a_row(&error);
                check(&error, $text);
            })+
        }
    };
}

/// Fails unless the error has this text, on one line, and a text in other languages that has no
/// names of Rust.
fn check(error: &(dyn Error + 'static), text: &str) {
    assert_eq!(error.to_string(), text);
    assert!(text.len() < 400 && !text.contains('\n'), "{text}");
    assert!(!text.contains("  ") && !text.ends_with('.'), "{text}");
    let elsewhere = text_in(error, |_| "do something");
    assert!(!elsewhere.contains("::"), "{elsewhere}");
    assert!(!elsewhere.contains("Builder"), "{elsewhere}");
}

const PROVIDER: ProviderId = ProviderId(0x0123_4567_89ab_cdef);

const OTHER_PROVIDER: ProviderId = ProviderId(0xfedc_ba98_7654_3210);

const PEER: PeerId = PeerId {
    provider: PROVIDER,
    slot: 3,
    epoch: 17,
};

const SECOND: Duration = Duration::from_secs(1);

fn channel() -> PathBuf {
    PathBuf::from("/dev/shm/shm_pool.camera.channel")
}

fn control() -> PathBuf {
    PathBuf::from("/dev/shm/shm_pool.0123456789abcdef.ctl")
}

fn failed_open() -> OsError {
    let source = io::Error::from_raw_os_error(libc::ENOENT);
    OsError::new("open", control(), source)
}

fn process(is_stopped: bool) -> Process {
    Process {
        id: 4711,
        command: "driver".to_owned(),
        is_stopped,
    }
}

fn out_of_range(option: &'static str, value: usize, min: usize, max: usize) -> OutOfRange {
    OutOfRange::check(option, value, min, max).unwrap_err()
}

fn scan() -> Box<MessageType> {
    Box::new(MessageType::new("Scan", 1, Layout::new::<[u64; 2]>()))
}

fn scan_with_elements() -> Box<MessageType> {
    Box::new(scan().with_elements(4))
}

texts! { build_errors: BuildError
    OutOfRange(out_of_range("arena_size", 2_097_152, 1, 1_048_576)) =>
        "option arena_size is 2097152, but must be from 1 to 1048576 bytes (max_bytes, or the \
         longest segment)";
    OutOfRange(out_of_range("max_shared", 0, 1, 1_048_576)) =>
        "option max_shared is 0, but must be from 1 to 1048576 chunks";
    Prefix("a/b".to_owned()) =>
        "the name prefix \"a/b\" must have 1 to 60 characters, which may be A-Z a-z 0-9 _ - and, \
         between others, single dots";
    Directory { directory: PathBuf::from("/etc/passwd"), reason: "is not a directory" } =>
        "the directory \"/etc/passwd\" is not a directory";
    OtherUser(1001) =>
        "the namespace is that of uid 1001, but this process creates objects of its own user";
    Mode(0o777) =>
        "mode 0o777 must grant the owner read and write (0o600), and may grant others only read \
         and write";
    Swept(control()) =>
        "/dev/shm/shm_pool.0123456789abcdef.ctl was removed again and again while it was being \
         created; do not sweep in a loop";
    LockMemory { needed: 1_060_864, limit: 65_536 } =>
        "lock_memory needs 1060864 bytes, for max_bytes and the control object, but this process \
         may lock only 65536, including what it has locked already; raise the limit (ulimit -l; \
         LimitMEMLOCK of systemd; docker run --ulimit memlock), or lower ProviderBuilder::max_bytes";
    NumaNode { node: 9, source: failed_open() } =>
        "numa_node 9 cannot be preferred: it does not exist, has no memory, or is not among this \
         process's nodes; choose a node of Mems_allowed_list in /proc/self/status";
    OutOfMemory { bytes: 98_304 } =>
        "no private memory for the provider's lists (98304 bytes); raise the limit (ulimit -v, \
         cgroup memory), or lower ProviderBuilder::max_alloc";
    Os(failed_open()) =>
        "open on /dev/shm/shm_pool.0123456789abcdef.ctl failed: No such file or directory (os error \
         2)";
}

texts! { alloc_errors: AllocError
    TooLarge { len: 70_000, max: 65_536 } =>
        "70000 bytes are more than this provider's largest allocation of 65536 bytes; raise \
         ProviderBuilder::max_alloc, and max_bytes, which limits it";
    UnsupportedAlignment(8192) =>
        "an alignment of 8192 bytes is not supported: the largest is 4096 bytes";
    Exhausted { len: 400, max_bytes: 1000, in_use: 500, idle: 300, leased: 200 } =>
        "no room for 400 bytes under max_bytes 1000: 500 bytes are in use by this process, 200 are \
         leased by peers or lent to receivers, and 300 are idle, but in pieces that are too small; \
         drop buffers, let the peers drop their views, or raise ProviderBuilder::max_bytes";
    TimedOut { timeout: SECOND, source: Box::new(AllocError::TooLarge { len: 2, max: 1 }) } =>
        "not enough memory was released within 1s";
    Interrupted => "this provider's waits for memory were closed";
    ReserveTooMany { count: 4, max: 3 } =>
        "cannot reserve 4 buffers: at most 3 of a size are kept idle; raise \
         ProviderBuilder::max_idle_per_class";
    ReserveShare(ShareError::Forked) => "a reserved buffer cannot be prepared for sharing";
    Forked =>
        "the provider belongs to the parent of this forked process; create a new one in this \
         process";
    Os(failed_open()) =>
        "open on /dev/shm/shm_pool.0123456789abcdef.ctl failed: No such file or directory (os error \
         2)";
}

texts! { share_errors: ShareError
    TooManyShared { max: 64 } =>
        "64 buffers are shared or reserved, the maximum; drop shared buffers, or raise \
         ProviderBuilder::max_shared";
    PeerDisconnected(PEER) =>
        "peer 0123456789abcdef-3-17 has disconnected or died; send to the remaining peers";
    OtherProvider(PEER) =>
        "peer 0123456789abcdef-3-17 is not connected to the buffer's provider";
    TooManyGrants(PEER) =>
        "peer 0123456789abcdef-3-17 has 7 pending grants of this buffer, the maximum; wait until \
         the peer attaches";
    OverQuota { peer: PEER, len: 400, held: 700, max: 1000 } =>
        "a grant of 400 bytes is over the quota: peer 0123456789abcdef-3-17 holds 700 bytes of \
         1000; wait until the peer drops views, or revoke grants";
    OutOfMemory { bytes: 1024 } =>
        "no private memory for the list of shared buffers (1024 bytes); lower \
         ProviderBuilder::max_shared";
    Forked =>
        "the buffer's provider belongs to the parent of this forked process; create a new one in \
         this process";
}

texts! { attach_errors: AttachError
    Stale =>
        "the descriptor is stale: the message was released before this client attached to it; \
         grant each message to its receiver, or keep it until it is confirmed";
    Forged("is of buffer 70, but the provider shares at most 64".to_owned()) =>
        "the descriptor is of buffer 70, but the provider shares at most 64";
    Damaged { provider: PROVIDER, reason: "a message lies outside its segment" } =>
        "the control object of provider 0123456789abcdef is damaged: a message lies outside its \
         segment";
    OtherPeer => "the descriptor was granted to another peer than this client";
    NotGranted =>
        "no grant of this message is left to take up: each can be attached once";
    TooManyLeases =>
        "this client has 31 views of the message, the maximum; clone one of them instead";
    OverQuota { len: 400, held: 700, max: 1000 } =>
        "a message of 400 bytes is over the quota: this client holds 700 of the 1000 bytes of this \
         provider that it may hold; drop views, or take up grants";
    NoProvider(control()) =>
        "there is no provider: /dev/shm/shm_pool.0123456789abcdef.ctl does not exist; \
         the provider has closed, or uses another namespace";
    Disconnected(PROVIDER) =>
        "provider 0123456789abcdef has disconnected this client, whose views stay valid; create \
         a new client";
    Closed(PROVIDER) =>
        "provider 0123456789abcdef has closed; connect to its successor";
    ProviderDied(PROVIDER) =>
        "provider 0123456789abcdef has died; connect to its successor";
    NotAProvider { object: control(), reason: "it is empty" } =>
        "/dev/shm/shm_pool.0123456789abcdef.ctl cannot be used as a provider: it is empty";
    WrongUid(WrongUid { object: control(), found: 1001, expected: 1000 }) =>
        "/dev/shm/shm_pool.0123456789abcdef.ctl belongs to uid 1001, and not to uid 1000; \
         see Namespace::of_user";
    TooManyPeers(PROVIDER) =>
        "provider 0123456789abcdef has 64 peers, the maximum; wait until one of them ends";
    SlotLost(PROVIDER) =>
        "another peer has this client's place at provider 0123456789abcdef, because this process's \
         descriptors were closed; create a new client";
    Forked =>
        "the client belongs to the parent of this forked process; create a new one in this process";
    Os(failed_open()) =>
        "open on /dev/shm/shm_pool.0123456789abcdef.ctl failed: No such file or directory (os error \
         2)";
}

texts! { channel_errors: ChannelError
    Name { name: String::new(), max: 218 } =>
        "channel name \"\" takes 0 bytes of a file name, but must take 1 to 218 with this prefix, \
         and contain no NUL: A-Z a-z 0-9 _ - take one byte, and all others three for each byte of \
         UTF-8";
    OutOfRange(out_of_range("capacity", 0, 1, 65_536)) =>
        "option capacity is 0, but must be from 1 to 65536";
    NameTaken { object: channel(), process: None } =>
        "/dev/shm/shm_pool.camera.channel is the channel of a live sender or publisher; choose \
         another name, or wait with create_timeout";
    NameTaken { object: channel(), process: Some(process(false)) } =>
        "/dev/shm/shm_pool.camera.channel is the channel of a live sender or publisher in process \
         4711 (driver); choose another name, or wait with create_timeout";
    NameTaken { object: channel(), process: Some(process(true)) } =>
        "/dev/shm/shm_pool.camera.channel is the channel of a live sender or publisher in process \
         4711 (driver), which is stopped; choose another name, or wait with create_timeout";
    NotFound(channel()) =>
        "/dev/shm/shm_pool.camera.channel does not exist; it was not created yet, was closed, or is in \
         another namespace";
    Closed(channel()) =>
        "the sender of /dev/shm/shm_pool.camera.channel has closed or died; open the channel of its \
         successor";
    NotReady(channel()) =>
        "/dev/shm/shm_pool.camera.channel is being created or removed; try again, as open_timeout \
         does";
    HasReceiver(channel()) =>
        "/dev/shm/shm_pool.camera.channel has, or had, a receiver: the channel of a sender accepts \
         only one";
    TooManyReceivers { object: channel(), max: 16 } =>
        "/dev/shm/shm_pool.camera.channel has 16 receivers, the maximum; close one, or raise \
         PublisherBuilder::max_subscribers";
    BlockingNotAllowed(channel()) =>
        "the publisher of /dev/shm/shm_pool.camera.channel waits for no receiver; choose \
         OnFull::DropNewest or OnFull::DropOldest";
    NotASender(channel()) =>
        "/dev/shm/shm_pool.camera.channel is the channel of a publisher; open it with a Subscriber";
    NotAPublisher(channel()) =>
        "/dev/shm/shm_pool.camera.channel is the channel of a sender; open it with a Receiver";
    TypeMismatch { object: channel(), expected: scan(), found: Some(scan_with_elements()) } =>
        "/dev/shm/shm_pool.camera.channel carries \"Scan\", version 0x1: 16 bytes and elements of 4 \
         bytes, aligned to 8, but the receiver expects \"Scan\", version 0x1: 16 bytes, aligned to \
         8; build both sides with one definition";
    TypeMismatch { object: channel(), expected: scan(), found: None } =>
        "/dev/shm/shm_pool.camera.channel carries untyped messages, but the receiver expects \
         \"Scan\", version 0x1: 16 bytes, aligned to 8; build both sides with one definition";
    OtherVersion { object: channel(), found: 2 } =>
        "/dev/shm/shm_pool.camera.channel has version 2 of the layout of channels, but this process \
         uses version 10; build both sides with one version of shm-pool";
    NotAChannel { object: channel(), reason: "it has another magic number" } =>
        "/dev/shm/shm_pool.camera.channel cannot be used as a channel: it has another magic number";
    WrongUid(WrongUid { object: channel(), found: 1001, expected: 1000 }) =>
        "/dev/shm/shm_pool.camera.channel belongs to uid 1001, and not to uid 1000; see \
         Namespace::of_user and PublisherBuilder::mode, or choose another name";
    Mode(0o777) =>
        "mode 0o777 must grant the owner read and write (0o600), and may grant others only read \
         and write";
    Forked =>
        "the provider belongs to the parent of this forked process; create a new one in this \
         process";
    TooManyEnds =>
        "this process has 2048 ends of channels, the maximum; drop some of them";
    Os(failed_open()) =>
        "open on /dev/shm/shm_pool.0123456789abcdef.ctl failed: No such file or directory (os error \
         2)";
}

texts! { send_errors: SendErrorKind
    Full { capacity: 256 } =>
        "the channel is full: the receiver has not received 256 messages; wait, drop the message, \
         or raise the channel's capacity";
    TimedOut =>
        "the wait timed out: the receiver has not received, or dropped, enough";
    NoReceiver { receivers: 1, timeout: SECOND } => "no receiver joined within 1s";
    NoReceiver { receivers: 2, timeout: SECOND } => "fewer than 2 receivers joined within 1s";
    OtherVersion { found: 2 } =>
        "too few receivers joined in time: one has version 2 of the layout of channels, and this \
         channel has version 10; build both sides with one version of shm-pool";
    TooManyBorrowed { max: 2048, max_bytes: None } =>
        "the receiver holds as much as it may: at most 2048 buffers; wait until it drops some, or \
         raise max_borrowed or PublisherBuilder::max_bytes_per_receiver";
    TooManyBorrowed { max: 2048, max_bytes: Some(65_536) } =>
        "the receiver holds as much as it may: at most 2048 buffers and 65536 bytes; wait until it \
         drops some, or raise max_borrowed or PublisherBuilder::max_bytes_per_receiver";
    TooManyReceivers(out_of_range("max_subscribers", 17, 0, 16)) =>
        "cannot wait for 17 receivers: at most 16 can join; wait for fewer, or raise \
         PublisherBuilder::max_subscribers";
    Disconnected => "the receiver has closed or died; create a new channel";
    Alloc(Box::new(AllocError::TooLarge { len: 2, max: 1 })) =>
        "no buffer could be allocated for the copy";
    OtherProvider { found: OTHER_PROVIDER, expected: PROVIDER } =>
        "the buffer belongs to provider fedcba9876543210, and the channel to 0123456789abcdef; \
         create a channel for each provider";
    Forked =>
        "the channel belongs to the parent of this forked process; create a new one in this process";
    Interrupted => "the wait for the receiver was interrupted";
    NoHelper(failed_open()) =>
        "cannot start the thread that wakes tasks; raise the limit of threads, or use a call that \
         blocks";
}

texts! { recv_errors: RecvError
    Empty => "no message has arrived";
    TimedOut => "the wait timed out: nothing arrived";
    Disconnected => "the sender has closed or died; nothing more will arrive";
    Evicted =>
        "the publisher has disconnected this receiver; drop it and what it has received, and open \
         the channel again";
    TooManyBorrowed { max: 16 } =>
        "no message arrives because this receiver holds as many buffers (at most 16) or bytes \
         (max_bytes_per_receiver) as it may; drop some messages";
    Os(failed_open()) =>
        "open on /dev/shm/shm_pool.0123456789abcdef.ctl failed: No such file or directory (os error \
         2)";
    NotConnected { errno: libc::EMFILE } =>
        // The C libraries have words of their own for it.
        &format!(
            "the publisher cannot connect this receiver: {}; raise the limit of descriptors and \
             receive again, or open the channel again",
            io::Error::from_raw_os_error(libc::EMFILE)
        );
    MessageLost(PROVIDER) =>
        "the message is lost: its segment, of provider 0123456789abcdef, was removed";
    Attach(AttachError::Stale) => "the message is lost";
    Damaged { reason: "its check is wrong" } => "a damaged message is lost: its check is wrong";
    WrongType { name: "Scan", len: 7 } =>
        "the message is lost: its 7 bytes are not a valid value of type Scan";
    Forked =>
        "the channel belongs to the parent of this forked process; create a new one in this process";
    Open(Box::new(ChannelError::Forked)) => "the channel cannot be opened";
    Interrupted => "the wait was interrupted";
    NoReceivers => "no receiver was given to wait for";
    NoHelper(failed_open()) =>
        "cannot start the thread that waits; raise the limit of threads, or use a call that blocks";
}

#[test]
fn descriptor_errors() {
    fn check_problem(problem: Problem, text: &str) {
        // The compiler refuses a new one without a row.
        match problem {
            Problem::Length { .. }
            | Problem::Magic { .. }
            | Problem::Version { .. }
            | Problem::Checksum { .. } => {}
        }
        check(&DescriptorError(problem), text);
    }

    check_problem(
        Problem::Length { found: 5 },
        "a descriptor has 32 bytes, but 5 were given",
    );
    check_problem(
        Problem::Magic { found: 0xabab },
        "not a shm-pool descriptor: its first two bytes are 0xabab",
    );
    check_problem(
        Problem::Version { found: 2 },
        "the descriptor has version 2 of the format, and not version 1; build both sides with one \
         version of shm-pool",
    );
    let found = 1;
    let expected = 2;
    check_problem(
        Problem::Checksum { found, expected },
        "the descriptor's checksum is 0x0001 instead of 0x0002: the transport damaged it",
    );
}

/// Errors that are not enums.
#[test]
fn other_errors() {
    check(
        &SendError::from(SendErrorKind::Disconnected),
        "the receiver has closed or died; create a new channel",
    );
    check(
        &CapacityError {
            len: 2000,
            capacity: 128,
        },
        "a length of 2000 bytes exceeds the buffer's capacity of 128 bytes; allocate a larger one",
    );
    let source = io::Error::from_raw_os_error(libc::ENOSPC);
    let full = OsError::new("posix_fallocate", "/dev/shm/mine", source).with_bytes(4096);
    check(
        &full.with_advice("make room in /dev/shm"),
        "posix_fallocate on /dev/shm/mine (4096 bytes) failed: No space left on device (os error \
         28); make room in /dev/shm",
    );
}

#[test]
fn parse_errors() {
    fn error<T: std::str::FromStr<Err = ParseError>>() -> ParseError {
        match "?".parse::<T>() {
            Err(error) => error,
            Ok(_) => panic!("it is no value"),
        }
    }
    check(
        &error::<ProviderId>(),
        "expected a provider's id: up to 16 hexadecimal digits",
    );
    check(
        &error::<ReceiverId>(),
        "expected a receiver's id: up to 16 hexadecimal digits",
    );
    check(
        &error::<PeerId>(),
        "expected a peer's id, such as 0123456789abcdef-3-17",
    );
    check(
        &error::<OnFull>(),
        "expected block, drop_newest or drop_oldest",
    );
    check(&error::<OnStall>(), "expected skip or disconnect");
    check(&error::<OnEnd>(), "expected wait or return");
}
