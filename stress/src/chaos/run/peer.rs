//! The peer process: one client, a thread for each owner, and the conductor's commands.

#![forbid(unsafe_code)]

use super::follower::Follower;
use super::wire::{Command, Exit, Footprint, Word};
use super::worker::{Control, Role};
use shm_pool::Client;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::thread;

/// What the threads of a peer share.
pub(crate) struct Shared {
    pub(crate) control: Arc<Control>,
    pub(crate) is_ready: AtomicBool,
    prefix: String,
    client: RwLock<Arc<Client>>,
    is_ending: AtomicBool,
    /// The connections, to be ended from outside; by owner.
    sockets: Vec<Mutex<Option<Arc<UnixStream>>>>,
}

pub(crate) fn run(role: &Role, control: &Arc<Control>) {
    let shared = Arc::new(Shared {
        control: control.clone(),
        is_ready: AtomicBool::new(false),
        prefix: role.prefix.clone(),
        client: RwLock::new(new_client(&role.prefix)),
        is_ending: AtomicBool::new(false),
        sockets: (0..role.owners).map(|_| Mutex::default()).collect(),
    });
    let followers = (0..role.owners).map(|owner| Follower::new(role, owner, shared.clone()));
    let following: Vec<_> = followers.map(|follower| thread::spawn(move || follower.run())).collect();
    loop {
        match control.next() {
            Command::Measure => {
                shared.client().trim();
                control.say(Word::Measured(Footprint::take(&role.prefix)));
            }
            Command::Recreate => {
                shared.recreate();
                control.say(Word::Recreated);
            }
            Command::Exit(Exit::Orderly) => break,
            other => control.fail(&format!("a peer is not to be told {other:?}")),
        }
    }
    shared.end();
    following.into_iter().for_each(|thread| thread.join().expect("a panic would have ended the process"));
}

fn new_client(prefix: &str) -> Arc<Client> {
    Arc::new(Client::builder().name_prefix(prefix).build().expect("a prefix that names allow"))
}

impl Shared {
    /// Enters a connection that is about to be used. Gives the client to use with it, or `None` if
    /// it is time to end.
    pub(crate) fn enter(&self, owner: usize, socket: &Arc<UnixStream>) -> Option<Arc<Client>> {
        // Entered first: either the connection is found and ended, or the new client, or the end,
        // is seen here.
        *self.sockets[owner].lock().expect("no panics") = Some(socket.clone());
        (!self.is_ending.load(Ordering::SeqCst)).then(|| self.client())
    }

    /// Takes a connection out again, and closes it.
    pub(crate) fn leave(&self, owner: usize) {
        *self.sockets[owner].lock().expect("no panics") = None;
    }

    fn client(&self) -> Arc<Client> {
        self.client.read().expect("no panics").clone()
    }

    /// Replaces the client. The old one goes when the last thread that uses it has noticed; its
    /// views stay good after that.
    fn recreate(&self) {
        *self.client.write().expect("no panics") = new_client(&self.prefix);
        self.hang_up();
    }

    fn end(&self) {
        self.is_ending.store(true, Ordering::SeqCst);
        self.hang_up();
    }

    fn hang_up(&self) {
        for socket in &self.sockets {
            if let Some(socket) = &*socket.lock().expect("no panics") {
                // Fails only if the owner is gone.
                let _ = socket.shutdown(Shutdown::Both);
            }
        }
    }
}
