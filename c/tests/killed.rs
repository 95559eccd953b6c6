//! A process in C and one in Rust, either of which is killed: the other one keeps what it holds, is
//! notified, and nothing is left in /dev/shm.
//!
//! A Rust process is this test binary again, with the one test `rust`. Each process has a socket to
//! the test as its standard input.

mod common;

use common::{run, Compiler};
use nix::sys::signal::Signal;
use nix::sys::wait::{waitpid, WaitPidFlag, WaitStatus};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use shm_pool::channel::{Message, OnEnd, Receiver, RecvError, Sender, Subscriber};
use shm_pool::{
    AttachError, Client, Descriptor, Namespace, PeerId, Provider, ProviderId, ShmBytes,
};
use shm_pool_support::process::{inherited_input, task, this_test, Child};
use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;
use Language::{Rust, C};
use Role::{Accept, Attach, Own, Receive, Send, Subscribe};

const LEN: usize = 65536;
const MESSAGES: u8 = 8;
const HELD: u8 = 4;
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Role {
    /// Sends messages, and expects the receiver to be killed.
    Send,
    /// Receives some of the messages and holds them, and expects the sender to be killed.
    Receive,
    /// The same with a publisher's messages.
    Subscribe,
    /// Describes a message, and expects the client to be killed.
    Own,
    /// Attaches to the message, and expects its owner to be killed.
    Attach,
    /// Attaches to some of the messages that are granted to it, and to the others later.
    Accept,
}

#[derive(Clone, Copy)]
enum Language {
    C,
    Rust,
}

#[derive(Serialize, Deserialize)]
struct Task {
    role: Role,
    prefix: String,
}

struct Peer {
    process: Child,
    socket: UnixStream,
}

impl Peer {
    fn start(language: Language, role: Role, prefix: &str) -> Self {
        let command = match language {
            Rust => this_test(
                "rust",
                &Task {
                    role,
                    prefix: prefix.to_owned(),
                },
            )
            .expect("this test"),
            C => {
                static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
                let mut command =
                    run(PROGRAM.get_or_init(|| Compiler::c().compile("peer", &["tests/peer.c"])));
                command.args([&format!("{role:?}"), prefix, "channel"]);
                command
            }
        };
        Self::run(&format!("{role:?}"), command)
    }

    fn run(name: &str, mut command: Command) -> Self {
        let (socket, theirs) = UnixStream::pair().expect("sockets");
        socket
            .set_read_timeout(Some(2 * TIMEOUT))
            .expect("a time limit");
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
        let process = Child::start(name, &mut command).expect("a process");
        // The command keeps the child's end open.
        drop::<Command>(command);
        Self { process, socket }
    }

    fn expect<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.socket.read_exact(&mut bytes).expect("an answer");
        bytes
    }

    fn tell(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).expect("it listens");
    }

    fn kill(mut self) {
        self.process.kill().expect("a process to kill");
        self.process.wait().expect("it is dead");
    }

    fn signal(&self, signal: Signal) {
        let process = i32::try_from(self.process.id()).expect("the id of a process");
        nix::sys::signal::kill(Pid::from_raw(process), signal).expect("a process that lives");
    }

    /// Stops the process, and waits until it has stopped.
    fn stop(&self) {
        self.signal(Signal::SIGSTOP);
        let process = Pid::from_raw(self.process.id() as i32);
        let status = waitpid(process, Some(WaitPidFlag::WUNTRACED)).expect("a child");
        assert!(matches!(status, WaitStatus::Stopped(..)), "{status:?}");
    }
}

/// Starts two processes, kills the first of them, and checks that the second comes to a good end.
fn kill(killed: (Language, Role), survivor: (Language, Role)) {
    let prefix = format!(
        "killed-{}-{:?}-{}",
        std::process::id(),
        killed.1,
        killed.0 as u8
    );
    let [mut killed, mut survivor] =
        [killed, survivor].map(|(language, role)| (Peer::start(language, role, &prefix), role));
    let carried = match (killed.1, survivor.1) {
        (Own, Attach) => Some((&mut killed.0, &mut survivor.0)),
        (Attach, Own) => Some((&mut survivor.0, &mut killed.0)),
        _ => None,
    };
    if let Some((owner, client)) = carried {
        client.tell(&owner.expect::<{ Descriptor::SIZE }>());
    }
    let ((mut killed, _), (mut survivor, _)) = (killed, survivor);
    assert_eq!([killed.expect::<1>(), survivor.expect::<1>()], [*b"."; 2]);
    killed.kill();
    survivor.tell(b".");
    survivor.process.finish().expect("the survivor is content");
    Namespace::new(&prefix).unwrap().sweep().expect("a sweep");
    let left = fs::read_dir("/dev/shm")
        .expect("a directory")
        .flatten()
        .map(|entry| entry.file_name());
    let left: Vec<_> = left
        .filter(|name| name.to_string_lossy().starts_with(&prefix))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn c_sender() {
    kill((C, Send), (Rust, Receive));
}

#[test]
fn c_receiver() {
    kill((C, Receive), (Rust, Send));
}

#[test]
fn rust_sender() {
    kill((Rust, Send), (C, Receive));
}

#[test]
fn rust_receiver() {
    kill((Rust, Receive), (C, Send));
}

#[test]
fn c_owner() {
    kill((C, Own), (Rust, Attach));
}

#[test]
fn c_client() {
    kill((C, Attach), (Rust, Own));
}

#[test]
fn rust_owner() {
    kill((Rust, Own), (C, Attach));
}

#[test]
fn rust_client() {
    kill((Rust, Attach), (C, Own));
}

/// The program of a Rust process.
#[test]
fn rust() {
    let Some(Task { role, prefix }) = task() else {
        return;
    };
    let mut socket = UnixStream::from(inherited_input().expect("a socket"));
    let provider = || {
        Provider::builder()
            .max_bytes(8 << 20)
            .namespace(&Namespace::new(&prefix).unwrap())
            .build()
            .expect("a provider")
    };
    let client = || Client::in_namespace(&Namespace::new(&prefix).unwrap());
    match role {
        Send => {
            let provider = provider();
            let mut sender = Sender::create(&provider, "channel").expect("a channel");
            sender.wait_for_receiver(TIMEOUT).expect("a receiver");
            (0..MESSAGES).for_each(|number| sender.send(filled(&provider, number)).expect("room"));
            ready(&mut socket);
            assert!(sender
                .send(filled(&provider, 0))
                .expect_err("it is dead")
                .is_disconnected());
            expect_unused(&provider);
        }
        Subscribe | Accept => panic!("only in C"),
        Receive => {
            let mut receiver = Receiver::builder()
                .namespace(client().namespace())
                .open_timeout("channel", TIMEOUT)
                .expect("the channel");
            let mut receive = |_| receiver.recv_timeout(TIMEOUT).expect("a message");
            let mut messages: Vec<_> = (0..HELD).map(&mut receive).collect();
            ready(&mut socket);
            messages.extend((HELD..MESSAGES).map(&mut receive));
            assert!(matches!(
                receiver.recv_timeout(TIMEOUT),
                Err(RecvError::Disconnected)
            ));
            drop(receiver);
            messages
                .iter()
                .zip(0..)
                .for_each(|(message, number)| assert!(is_filled(message, number)));
        }
        Own => {
            let provider = provider();
            let message = filled(&provider, 7);
            socket
                .write_all(&message.descriptor().expect("a record").to_bytes())
                .expect("the test listens");
            ready(&mut socket);
            drop(message);
            expect_unused(&provider);
        }
        Attach => {
            let client = client();
            let mut bytes = [0; Descriptor::SIZE];
            socket.read_exact(&mut bytes).expect("a descriptor");
            let descriptor = Descriptor::from_bytes(bytes).expect("a descriptor");
            let view = client.attach(&descriptor).expect("a message");
            ready(&mut socket);
            assert!(is_filled(&view, 7));
        }
    }
}

fn ready(socket: &mut UnixStream) {
    socket.write_all(b".").expect("the test listens");
    socket.read_exact(&mut [0]).expect("the other side is dead");
}

fn filled(provider: &Provider, number: u8) -> ShmBytes {
    let mut buffer = provider.alloc(LEN).expect("memory");
    buffer.fill(number);
    buffer.freeze()
}

fn is_filled(bytes: &[u8], number: u8) -> bool {
    bytes.len() == LEN && bytes.iter().all(|&byte| byte == number)
}

fn expect_unused(provider: &Provider) {
    provider.reclaim();
    let stats = provider.stats();
    assert_eq!((stats.bytes_in_use, stats.bytes_leased), (0, 0));
}

/// The ways to send.
const KINDS: [&str; 3] = ["sender", "publisher", "grants"];

/// The ways in which an owner in C or C++ ends. `drop` destroys everything, and the process runs on.
const ENDS: [&str; 5] = ["drop", "return", "exit", "abort", "kill"];

/// The compiled `ends.c` and `ends.cpp`.
fn owners() -> [(&'static str, PathBuf); 2] {
    let folder = format!("ends-{:?}", std::thread::current().id());
    let folder = folder.replace(['(', ')'], "");
    [
        ("c", Compiler::c().compile(&folder, &["tests/ends.c"])),
        (
            "cpp",
            Compiler::cpp().compile(&format!("{folder}pp"), &["tests/ends.cpp"]),
        ),
    ]
}

fn start_owner(program: &Path, prefix: &str, kind: &str, how: &str) -> Peer {
    let mut command = run(program);
    command.args([prefix, kind, how]);
    Peer::run(prefix, command)
}

/// Returns once the owner, which has sent everything, has ended. One that runs on has dropped
/// everything, and is returned.
fn end(mut owner: Peer, how: &str) -> Option<Peer> {
    match how {
        "drop" => {
            owner.expect::<1>();
            return Some(owner);
        }
        "kill" => {
            owner.expect::<1>();
            owner.kill();
        }
        _ => {
            owner.process.wait().expect("it ends by itself");
        }
    }
    None
}

/// The other side of an owner.
enum Reader {
    Receiver(Receiver),
    Subscriber(Subscriber),
    Grants(Client, Vec<Descriptor>),
}

impl Reader {
    /// Connects to an owner, and receives none of its messages.
    fn of(owner: &mut Peer, kind: &str, namespace: &Namespace) -> Self {
        match kind {
            "sender" => {
                let builder = Receiver::builder().namespace(namespace);
                let opened = builder.open_timeout("channel", TIMEOUT);
                Self::Receiver(opened.expect("the channel"))
            }
            "publisher" => {
                let builder = Subscriber::builder()
                    .on_end(OnEnd::Return)
                    .namespace(namespace);
                let opened = builder.open_timeout("channel", TIMEOUT);
                Self::Subscriber(opened.expect("the channel"))
            }
            _ => {
                let client = Client::in_namespace(namespace);
                let provider = ProviderId::from(u64::from_ne_bytes(owner.expect()));
                let peer = client.connect(provider).expect("a provider");
                owner.tell(&peer.to_bytes());
                let mut descriptors = Vec::new();
                for _ in 0..MESSAGES {
                    let bytes = owner.expect::<{ Descriptor::SIZE }>();
                    descriptors.push(Descriptor::from_bytes(bytes).expect("a descriptor"));
                }
                Self::Grants(client, descriptors)
            }
        }
    }

    /// Receives everything.
    fn check(&mut self) {
        if let Self::Grants(client, descriptors) = self {
            for (descriptor, number) in descriptors.iter().zip(0..) {
                let view = client.attach(descriptor).expect("a granted message");
                assert!(is_filled(&view, number));
            }
            let again = client.attach(&descriptors[0]);
            assert!(matches!(again, Err(AttachError::NotGranted)), "{again:?}");
            return;
        }
        for number in 0..MESSAGES {
            let message = self.receive().expect("a message");
            assert!(is_filled(&message, number));
        }
        let end = self.receive();
        assert!(matches!(end, Err(RecvError::Disconnected)), "{end:?}");
    }

    fn receive(&mut self) -> Result<Message, RecvError> {
        match self {
            Self::Receiver(receiver) => receiver.recv_timeout(TIMEOUT),
            Self::Subscriber(subscriber) => subscriber.recv_timeout(TIMEOUT),
            Self::Grants(..) => panic!("no channel"),
        }
    }
}

/// What a program in C or C++ has sent or granted arrives, however it ends, also after a sweep. The
/// last reader removes its objects.
#[test]
fn ends() {
    for (language, program) in owners() {
        for kind in KINDS {
            for how in ENDS {
                let prefix = format!("ends-{}-{language}-{kind}-{how}", std::process::id());
                eprintln!("{prefix}");
                let namespace = Namespace::new(&prefix).expect("a prefix that names allow");
                let mut owner = start_owner(&program, &prefix, kind, how);
                let mut reader = Reader::of(&mut owner, kind, &namespace);
                let runs_on = end(owner, how);
                namespace.sweep().expect("a sweep");
                reader.check();
                drop(reader);
                assert_eq!(objects(&prefix), [""; 0]);
                if let Some(Peer { process, socket }) = runs_on {
                    drop(socket);
                    process.finish().expect("the owner is content");
                }
            }
        }
    }
}

/// A receiver in C that is stopped while the owner ends gets everything once it continues. A sweep
/// removes what a killed one has left.
#[test]
fn ends_beside_stopped_and_killed_receivers() {
    for (language, program) in owners() {
        let readers = [
            ("sender", Receive),
            ("publisher", Subscribe),
            ("grants", Accept),
        ];
        for (kind, role) in readers {
            for how in ENDS {
                for is_killed in [false, true] {
                    let process = std::process::id();
                    let prefix = format!("elsewhere-{process}-{language}-{kind}-{how}");
                    eprintln!("{prefix}, receiver killed: {is_killed}");
                    let namespace = Namespace::new(&prefix).expect("a prefix that names allow");
                    let mut owner = start_owner(&program, &prefix, kind, how);
                    let mut reader = Peer::start(C, role, &prefix);
                    if kind == "grants" {
                        reader.tell(&owner.expect::<8>());
                        owner.tell(&reader.expect::<{ PeerId::SIZE }>());
                        for _ in 0..MESSAGES {
                            reader.tell(&owner.expect::<{ Descriptor::SIZE }>());
                        }
                    }
                    // It holds some of the messages, and has not received the others.
                    reader.expect::<1>();
                    reader.stop();
                    let runs_on = end(owner, how);
                    if is_killed {
                        reader.kill();
                        namespace.sweep().expect("a sweep");
                    } else {
                        namespace.sweep().expect("a sweep");
                        reader.signal(Signal::SIGCONT);
                        reader.tell(b".");
                        reader.process.finish().expect("the reader is content");
                    }
                    assert_eq!(objects(&prefix), [""; 0]);
                    drop(runs_on);
                }
            }
        }
    }
}

fn objects(prefix: &str) -> Vec<OsString> {
    let entries = fs::read_dir("/dev/shm").expect("a directory").flatten();
    entries
        .map(|entry| entry.file_name())
        .filter(|name| name.to_string_lossy().starts_with(prefix))
        .collect()
}

/// What a program in C keeps in static variables ends with `shm_pool_finalize`, which loses no
/// message.
#[test]
fn statics_of_an_owner() {
    let program = Compiler::c().compile("statics-owner", &["tests/statics.c"]);
    for how in ["call", "atexit"] {
        let prefix = format!("statics-{}-own-{how}", std::process::id());
        let mut command = run(&program);
        command.args([&*prefix, "own", how]).stdin(Stdio::null());
        let mut process = Child::start(&*prefix, &mut command).expect("a process");
        let client = Client::in_namespace(&Namespace::new(&prefix).unwrap());
        let mut receiver = Receiver::builder()
            .namespace(client.namespace())
            .open_timeout("channel", TIMEOUT)
            .expect("the channel");
        assert!(process.wait().expect("it ends by itself").success());
        let unheard: Vec<_> = objects(&prefix)
            .into_iter()
            .filter(|name| name.to_string_lossy().contains("unheard"))
            .collect();
        assert!(unheard.is_empty(), "{unheard:?}: it had no receiver");
        for number in 0..MESSAGES {
            let message = receiver.recv_timeout(TIMEOUT).expect("a message");
            assert!(is_filled(&message, number), "{prefix}");
        }
        let end = receiver.recv_timeout(TIMEOUT);
        assert!(matches!(end, Err(RecvError::Disconnected)), "{end:?}");
        drop(receiver);
        assert_eq!(objects(&prefix), [""; 0]);
    }
}

/// A last reader in C that keeps a receiver, a client and a message in static variables removes
/// what the owner has left, if it calls `shm_pool_finalize`. A forked child does so for nothing of
/// its parent.
#[test]
fn statics_of_a_reader() {
    let program = Compiler::c().compile("statics-reader", &["tests/statics.c"]);
    for how in ["call", "atexit", "nothing", "fork"] {
        let prefix = format!("statics-{}-read-{how}", std::process::id());
        let provider = Provider::builder()
            .max_bytes(8 << 20)
            .namespace(&Namespace::new(&prefix).unwrap());
        let provider = provider.build().expect("a provider");
        let mut sender = Sender::create(&provider, "channel").expect("a channel");
        let mut command = run(&program);
        command.args([&*prefix, "read", how]).stdin(Stdio::piped());
        let process = Child::start(&*prefix, &mut command).expect("a process");
        sender.wait_for_receiver(TIMEOUT).expect("a receiver");
        for number in 0..MESSAGES {
            sender.send(filled(&provider, number)).expect("room");
        }
        drop((sender, provider));
        assert_ne!(objects(&prefix), [""; 0], "{how}: it reads");
        // It goes on at the end of its standard input.
        process.finish().expect("the reader is content");
        let is_finalized = ["call", "atexit"].contains(&how);
        assert_eq!(objects(&prefix).is_empty(), is_finalized, "{how}");
        Namespace::new(&prefix).unwrap().sweep().expect("a sweep");
        assert_eq!(objects(&prefix), [""; 0]);
    }
}

/// The destructors of static C++ objects may run after `finalize`.
#[test]
fn statics_of_cpp() {
    let program = Compiler::cpp().compile("statics-cpp", &["tests/statics.cpp"]);
    let prefix = format!("statics-{}-cpp", std::process::id());
    let mut command = run(program);
    command.arg(&prefix).stdin(Stdio::null());
    let mut process = Child::start(&*prefix, &mut command).expect("a process");
    assert!(process.wait().expect("it ends by itself").success());
    assert_eq!(objects(&prefix), [""; 0]);
}
