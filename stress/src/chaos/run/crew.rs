//! The running processes: start one, end one, hear what they tell.

#![forbid(unsafe_code)]

use super::follower::address;
use super::sys;
use super::tally::Tally;
use super::wire::{Command, Exit, Footprint, Word, DEADLINE};
use super::worker::{Kind, Role};
use super::Plan;
use shm_pool_support::process::{this_program, Child};
use shm_pool_support::wire;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// A place in the crew, taken by one process after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Post {
    pub(crate) kind: Kind,
    pub(crate) index: usize,
}

/// One process.
pub(crate) struct Worker {
    child: Child,
    socket: Arc<UnixStream>,
    /// Which of all processes of the run it is.
    life: u64,
    is_ready: bool,
    is_leaving: bool,
    has_ended: bool,
    answers: VecDeque<Word>,
    /// What it had when it was first measured, and how many ends of others there had been.
    pub(crate) start: Option<(Footprint, [u64; 2])>,
}

/// What a worker's socket had: `None` at its end.
type Event = (Post, u64, Option<Word>);

pub(crate) struct Crew {
    plan: Plan,
    prefix: String,
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

fn failed(what: &'static str) -> impl Fn(io::Error) -> String {
    move |error| format!("cannot {what}: {error}")
}

impl Crew {
    pub(crate) fn new(plan: &Plan, prefix: &str) -> Result<Self, String> {
        let listen = |owner| {
            let listener = UnixListener::bind_addr(&address(prefix, owner)?)?;
            // It is not closed when an owner ends, so that peers can always connect; the next owner
            // lets them in.
            sys::make_inheritable(&listener)?;
            Ok(listener)
        };
        let listeners: io::Result<Vec<_>> = (0..plan.owners.into()).map(listen).collect();
        let (to_events, events) = mpsc::channel();
        Ok(Self {
            plan: plan.clone(),
            prefix: prefix.to_owned(),
            tally: Tally { seed: plan.seed, cap: plan.max_bytes() as u64, ..Tally::default() },
            random: fastrand::Rng::with_seed(plan.seed),
            workers: HashMap::new(),
            listeners: listeners.map_err(failed("listen"))?,
            lives: 0,
            ends: [0; 2],
            events,
            to_events,
        })
    }

    /// All posts of a kind.
    pub(crate) fn posts(&self, kind: Kind) -> Vec<Post> {
        let count = if kind == Kind::Owner { self.plan.owners } else { self.plan.peers };
        (0..count.into()).map(|index| Post { kind, index }).collect()
    }

    pub(crate) fn worker(&mut self, post: Post) -> &mut Worker {
        self.workers.get_mut(&post).expect("a post that is taken")
    }

    /// Starts a process for a post that is free.
    pub(crate) fn start(&mut self, post: Post) -> Result<(), String> {
        let (ours, theirs) = UnixStream::pair().map_err(failed("make a socket"))?;
        let role = Role {
            kind: post.kind,
            index: post.index,
            prefix: self.prefix.clone(),
            seed: self.random.u64(..),
            owners: self.plan.owners.into(),
            largest: self.plan.largest(),
            max_bytes: self.plan.max_bytes(),
            listener: if post.kind == Kind::Owner { self.listeners[post.index].as_raw_fd() } else { -1 },
        };
        let mut command = this_program(&role).map_err(failed("find this program"))?;
        command.args(self.plan.worker_args).stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
        let child = Child::start(format!("{post:?}"), &mut command).map_err(failed("start a process"))?;
        self.lives += 1;
        let (socket, life, to_events) = (Arc::new(ours), self.lives, self.to_events.clone());
        let to_read = socket.clone();
        thread::spawn(move || {
            // Fails only when the run is over.
            while let Some(word) = wire::receive(&*to_read).unwrap_or_default() {
                let _ = to_events.send((post, life, Some(word)));
            }
            let _ = to_events.send((post, life, None));
        });
        let (answers, start) = (VecDeque::new(), None);
        let worker =
            Worker { child, socket, life, is_ready: false, is_leaving: false, has_ended: false, answers, start };
        assert!(self.workers.insert(post, worker).is_none(), "a post that is free");
        Ok(())
    }

    // ---- hearing ---------------------------------------------------------------------------------------------

    /// Hears what comes in the given time.
    pub(crate) fn pass(&mut self, time: Duration) -> Result<(), String> {
        let end = Instant::now() + time;
        loop {
            match self.events.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(event) => self.note(event)?,
                Err(RecvTimeoutError::Timeout) => return Ok(()),
                Err(RecvTimeoutError::Disconnected) => unreachable!("the crew has a sender itself"),
            }
        }
    }

    /// As [`pass`](Self::pass) with a random time, mostly much less than `most`.
    pub(crate) fn pause(&mut self, most: Duration) -> Result<(), String> {
        let part = self.random.f64().powi(3);
        self.pass(most.mul_f64(part))
    }

    fn note(&mut self, (post, life, word): Event) -> Result<(), String> {
        match word {
            Some(Word::Published(published)) => self.tally.published += published,
            Some(Word::Seen(seen)) if seen.torn == 0 => self.tally.seen += seen,
            Some(Word::Seen(seen)) => {
                self.tally.seen += seen;
                return Err(format!("{post:?} has seen torn messages; it said which on the standard error"));
            }
            Some(Word::Failed) => return Err(format!("{post:?} failed; it said why on the standard error")),
            _ => {}
        }
        // What a process said before it was ended may be heard after that.
        let Some(worker) = self.workers.get_mut(&post).filter(|worker| worker.life == life) else { return Ok(()) };
        match word {
            Some(Word::Ready) => worker.is_ready = true,
            Some(answer @ (Word::Quiet(_) | Word::Measured(_) | Word::Recreated)) => worker.answers.push_back(answer),
            None if worker.is_leaving => worker.has_ended = true,
            None => {
                let status = worker.child.wait().map_err(failed("wait for a process"))?;
                return Err(format!("{post:?} has ended by itself, with {status}"));
            }
            _ => {}
        }
        Ok(())
    }

    /// Hears until the worker of a post is as `is_so` says.
    fn hear_until(&mut self, post: Post, what: &str, is_so: impl Fn(&Worker) -> bool) -> Result<(), String> {
        let deadline = Instant::now() + DEADLINE * 2;
        while !is_so(self.worker(post)) {
            let left = deadline.saturating_duration_since(Instant::now());
            let event = self.events.recv_timeout(left).map_err(|_| format!("{post:?}: {what} did not come in time"))?;
            self.note(event)?;
        }
        Ok(())
    }

    pub(crate) fn tell(&mut self, post: Post, command: Command) {
        // A process that cannot be told has ended, which will be heard.
        let _ = wire::send(&*self.worker(post).socket, &command);
    }

    pub(crate) fn answer(&mut self, post: Post) -> Result<Word, String> {
        self.hear_until(post, "an answer", |worker| !worker.answers.is_empty())?;
        Ok(self.worker(post).answers.pop_front().expect("there is one"))
    }

    // ---- ending ----------------------------------------------------------------------------------------------

    /// SIGKILL, now.
    pub(crate) fn kill(&mut self, post: Post) -> Result<(), String> {
        let mut worker = self.workers.remove(&post).expect("a post that is taken");
        worker.child.kill().map_err(failed("kill a process"))?;
        let status = worker.child.wait().map_err(failed("wait for a process"))?;
        self.tally.count_kill(post.kind);
        self.tally.newborns_killed += u64::from(!worker.is_ready);
        self.tally.leaving_killed += u64::from(worker.is_leaving);
        self.ends[post.kind as usize] += 1;
        let is_expected = status.signal() == Some(libc::SIGKILL) || (worker.is_leaving && status.success());
        is_expected.then_some(()).ok_or_else(|| format!("{post:?} was killed, but ended with {status}"))
    }

    /// Kills a process that is about to end by itself.
    pub(crate) fn kill_leaving(&mut self, post: Post) -> Result<(), String> {
        self.worker(post).is_leaving = true;
        self.tell(post, Command::Exit(Exit::Orderly));
        self.pause(Duration::from_millis(2))?;
        self.kill(post)
    }

    /// Has a process end by itself.
    pub(crate) fn exit(&mut self, post: Post, exit: Exit) -> Result<(), String> {
        self.worker(post).is_leaving = true;
        self.tell(post, Command::Exit(exit));
        self.hear_until(post, "its end", |worker| worker.has_ended)?;
        let mut worker = self.workers.remove(&post).expect("a post that is taken");
        let status = worker.child.wait().map_err(failed("wait for a process"))?;
        self.ends[post.kind as usize] += 1;
        let is_expected = match exit {
            Exit::Orderly => status.success(),
            Exit::Sudden => status.success(),
            Exit::Abort => status.signal() == Some(libc::SIGABRT),
        };
        match exit {
            Exit::Orderly => self.tally.orderly_exits += 1,
            Exit::Sudden => self.tally.sudden_exits += 1,
            Exit::Abort => self.tally.aborts += 1,
        }
        is_expected.then_some(()).ok_or_else(|| format!("{post:?} was to end ({exit:?}), but ended with {status}"))
    }

    /// Ends whoever is left, and hears the rest. Gives what was counted.
    pub(crate) fn disband(mut self) -> Tally {
        self.workers.clear();
        drop(self.to_events);
        // Each process's socket is at its end, so each thread that reads one is about to end.
        for (_, _, word) in self.events.iter() {
            match word {
                Some(Word::Published(published)) => self.tally.published += published,
                Some(Word::Seen(seen)) => self.tally.seen += seen,
                _ => {}
            }
        }
        self.tally
    }
}
