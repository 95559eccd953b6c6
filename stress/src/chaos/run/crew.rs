//! The running processes: starting and ending them, and receiving their reports.

#![forbid(unsafe_code)]

use super::peer::address;
use super::tally::Tally;
use super::worker::{Command, Exit, Footprint, Kind, Post, Remains, Report, Role, DEADLINE};
use super::{Plan, OWNERS, PEERS};
use nix::fcntl::{fcntl, FcntlArg, FdFlag};
use nix::sys::signal::Signal;
use shm_pool_support::process::{this_program, Child};
use shm_pool_support::{wire, Fallible};
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

/// One process.
pub(crate) struct Worker {
    child: Child,
    socket: UnixStream,
    /// A number that identifies the process within the run.
    life: u64,
    is_ready: bool,
    is_leaving: bool,
    has_ended: bool,
    answers: VecDeque<Remains>,
    /// Its footprint when it was first measured, and how many other processes had ended by then.
    pub(crate) start: Option<(Footprint, [u64; 2])>,
}

/// A report from a worker's socket: `None` at its end.
struct Event {
    post: Post,
    /// Of the worker that sent it.
    life: u64,
    report: Option<Report>,
}

pub(crate) struct Crew {
    pub(crate) plan: Plan,
    pub(crate) prefix: String,
    pub(crate) tally: Tally,
    pub(crate) random: fastrand::Rng,
    workers: HashMap<Post, Worker>,
    listeners: Vec<UnixListener>,
    lives: u64,
    /// How many owners and peers have ended, in whatever way.
    pub(crate) ends: [u64; 2],
    events: Receiver<Event>,
    to_events: Sender<Event>,
}

impl Crew {
    pub(crate) fn new(plan: &Plan, prefix: &str) -> Fallible<Self> {
        let mut listeners = Vec::new();
        for owner in 0..OWNERS {
            let listener = UnixListener::bind_addr(&address(prefix, owner)?)?;
            // Inherited by the processes that this one starts. It stays open when an owner ends, so
            // that peers can always connect; the next owner accepts them.
            fcntl(&listener, FcntlArg::F_SETFD(FdFlag::empty()))?;
            listeners.push(listener);
        }
        let (to_events, events) = mpsc::channel();
        Ok(Self {
            plan: plan.clone(),
            prefix: prefix.to_owned(),
            tally: Tally {
                seed: plan.seed,
                cap: plan.max_bytes(),
                ..Tally::default()
            },
            random: fastrand::Rng::with_seed(plan.seed),
            workers: HashMap::new(),
            listeners,
            lives: 0,
            ends: [0; 2],
            events,
            to_events,
        })
    }

    /// All posts of a kind, except the first `spared`.
    pub(crate) fn posts(&self, kind: Kind, spared: usize) -> Vec<Post> {
        let count = if kind == Kind::Owner { OWNERS } else { PEERS };
        let mut posts = Vec::new();
        for index in spared..count {
            posts.push(Post { kind, index });
        }
        posts
    }

    pub(crate) fn worker(&mut self, post: Post) -> &mut Worker {
        self.workers.get_mut(&post).expect("a post that is taken")
    }

    /// Starts a process for a post that is free.
    pub(crate) fn start(&mut self, post: Post) -> Fallible {
        let (socket, theirs) = UnixStream::pair()?;
        let listener = match post.kind {
            Kind::Owner => Some(self.listeners[post.index].as_raw_fd()),
            Kind::Peer => None,
        };
        let role = Role {
            post,
            plan: self.plan.clone(),
            prefix: self.prefix.clone(),
            seed: self.random.u64(..),
            listener,
        };
        let mut command = this_program(&role)?;
        command
            .args(self.plan.worker_args)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null());
        let child = Child::start(format!("{post:?}"), &mut command)?;
        self.lives += 1;
        let life = self.lives;
        let to_events = self.to_events.clone();
        wire::listen(socket.try_clone()?, move |report| {
            let event = Event { post, life, report };
            to_events.send(event).is_ok()
        });
        let worker = Worker {
            child,
            socket,
            life,
            is_ready: false,
            is_leaving: false,
            has_ended: false,
            answers: VecDeque::new(),
            start: None,
        };
        assert!(
            self.workers.insert(post, worker).is_none(),
            "a post that is free"
        );
        Ok(())
    }

    // ---- receiving ---------------------------------------------------------------------------

    /// Receives for a random time, mostly much less than `most`.
    pub(crate) fn pause(&mut self, most: Duration) -> Fallible {
        let end = Instant::now() + most.mul_f64(self.random.f64().powi(3));
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.events.recv_timeout(left) {
                Ok(event) => self.handle(event)?,
                Err(RecvTimeoutError::Timeout) => return Ok(()),
                Err(RecvTimeoutError::Disconnected) => unreachable!("the crew has a sender itself"),
            }
        }
    }

    fn handle(&mut self, event: Event) -> Fallible {
        let post = event.post;
        match event.report {
            Some(Report::Counted(counts)) => {
                self.tally.counts += counts;
                if counts.torn > 0 {
                    let text =
                        format!("{post:?} has seen torn messages; its standard error says which");
                    return Err(text.into());
                }
            }
            Some(Report::Failed) => {
                return Err(format!("{post:?} failed; its standard error says why").into());
            }
            _ => {}
        }

        // A report may arrive after its process was ended, and the post taken by the next one.
        let worker = match self.workers.get_mut(&post) {
            Some(worker) if worker.life == event.life => worker,
            _ => return Ok(()),
        };
        match event.report {
            Some(Report::Ready) => worker.is_ready = true,
            Some(Report::AtRest(remains)) => worker.answers.push_back(remains),
            Some(_) => {}
            None if worker.is_leaving => worker.has_ended = true,
            None => {
                let status = worker.child.wait()?;
                return Err(format!("{post:?} has ended by itself, with {status}").into());
            }
        }
        Ok(())
    }

    /// Receives until the condition holds for the worker of a post.
    fn receive_until(
        &mut self,
        post: Post,
        what: &str,
        condition: impl Fn(&Worker) -> bool,
    ) -> Fallible {
        let deadline = Instant::now() + DEADLINE * 2;
        while !condition(self.worker(post)) {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(event) = self.events.recv_timeout(left) else {
                return Err(format!("{post:?}: {what} did not arrive in time").into());
            };
            self.handle(event)?;
        }
        Ok(())
    }

    pub(crate) fn send(&mut self, post: Post, command: Command) {
        // If the process cannot be reached, it has ended, which its socket will report.
        let _ = wire::send(&self.worker(post).socket, &command);
    }

    pub(crate) fn answer(&mut self, post: Post) -> Fallible<Remains> {
        self.receive_until(post, "an answer", |worker| !worker.answers.is_empty())?;
        Ok(self.worker(post).answers.pop_front().expect("there is one"))
    }

    // ---- ending ------------------------------------------------------------------------------

    /// Sends SIGKILL.
    pub(crate) fn kill(&mut self, post: Post) -> Fallible {
        self.worker(post).child.kill()?;
        let worker = &self.workers[&post];
        let is_ready = worker.is_ready;
        let is_leaving = worker.is_leaving;
        self.tally.killed[post.kind as usize] += 1;
        self.tally.newborns_killed += u64::from(!is_ready);
        self.tally.leaving_killed += u64::from(is_leaving);
        self.reap(post, "was killed", |status| {
            status.signal() == Some(Signal::SIGKILL as i32) || (is_leaving && status.success())
        })
    }

    /// Kills a process that is about to end by itself.
    pub(crate) fn kill_leaving(&mut self, post: Post) -> Fallible {
        self.worker(post).is_leaving = true;
        self.send(post, Command::Exit(Exit::Orderly));
        self.pause(Duration::from_millis(2))?;
        self.kill(post)
    }

    /// Has a process exit by itself.
    pub(crate) fn exit(&mut self, post: Post, exit: Exit) -> Fallible {
        self.worker(post).is_leaving = true;
        self.send(post, Command::Exit(exit));
        self.receive_until(post, "its end", |worker| worker.has_ended)?;
        self.tally.exits[exit as usize] += 1;
        self.reap(
            post,
            &format!("was to end ({exit:?})"),
            |status| match exit {
                Exit::Orderly | Exit::Sudden => status.success(),
                Exit::Abort => status.signal() == Some(Signal::SIGABRT as i32),
            },
        )
    }

    /// Waits for a process to end in the expected way.
    fn reap(
        &mut self,
        post: Post,
        what: &str,
        is_expected: impl Fn(ExitStatus) -> bool,
    ) -> Fallible {
        let mut worker = self.workers.remove(&post).expect("a post that is taken");
        let status = worker.child.wait()?;
        self.ends[post.kind as usize] += 1;
        if !is_expected(status) {
            return Err(format!("{post:?} {what}, but ended with {status}").into());
        }
        Ok(())
    }

    /// Ends all remaining processes, and receives the rest. Returns the tally.
    pub(crate) fn disband(mut self) -> Tally {
        self.workers.clear();
        drop(self.to_events);
        // Each process's socket is at its end, so each thread that reads one is about to exit.
        for event in self.events {
            if let Some(Report::Counted(counts)) = event.report {
                self.tally.counts += counts;
            }
        }
        self.tally
    }
}
