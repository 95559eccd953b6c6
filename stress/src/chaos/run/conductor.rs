//! Which process is to end next, when and how; and what must hold between the storms.

#![forbid(unsafe_code)]

use super::crew::{Crew, Post};
use super::tally::Tally;
use super::wire::{Command, Exit, Footprint, Quiet, Word};
use super::worker::Kind;
use super::Plan;
use shm_pool::Provider;
use shm_pool_support::procfs;
use std::time::{Duration, Instant};

/// The longest pause between two ends. Most are much shorter.
const PAUSE: Duration = Duration::from_millis(25);

/// The longest life of a process that is killed as soon as it is started.
const NEWBORN: Duration = Duration::from_millis(4);

/// In an era there are so many times of quiet.
const CHECKS: u64 = 5;

/// How many mappings of heap and stacks a veteran may gain: allocators and thread libraries keep
/// some for later.
const OTHER_MAPPINGS: usize = 32;

type Result<T> = std::result::Result<T, String>;

/// Runs it all, and tells what was seen. It was as it must be if there are no problems.
pub(crate) fn run(plan: &Plan) -> Tally {
    let prefix = format!("chaos-{}-{:x}", std::process::id(), plan.seed & 0xffff_ffff);
    let start = Instant::now();
    let mut tally = match Crew::new(plan, &prefix) {
        Ok(crew) => {
            let mut conductor = Conductor { crew, plan, prefix: prefix.clone(), start };
            let outcome = conductor.conduct();
            let mut tally = conductor.crew.disband();
            tally.problems.extend(outcome.err());
            tally
        }
        Err(problem) => Tally { problems: vec![problem], ..Tally::default() },
    };
    tally.elapsed = start.elapsed();
    match Provider::sweep(&prefix) {
        Ok(swept) => tally.swept = swept.objects as u64,
        Err(error) => tally.problems.push(format!("the final sweep failed: {error}")),
    }
    let left = procfs::objects(&format!("{prefix}."));
    tally.left = left.len() as u64;
    if !left.is_empty() {
        tally.problems.push(format!("left in /dev/shm: {}", left.join(", ")));
        procfs::remove_objects(&format!("{prefix}."));
    }
    if tally.seen.torn > 0 {
        tally.problems.push(format!("{} torn messages", tally.seen.torn));
    }
    tally
}

struct Conductor<'a> {
    crew: Crew,
    plan: &'a Plan,
    prefix: String,
    start: Instant,
}

impl Conductor<'_> {
    fn conduct(&mut self) -> Result<()> {
        let everybody = self.everybody();
        self.start_all(&everybody)?;
        while !self.is_over() {
            self.era()?;
        }
        for post in self.crew.posts(Kind::Peer) {
            self.crew.exit(post, Exit::Orderly)?;
        }
        self.check_alone()?;
        for post in self.crew.posts(Kind::Owner) {
            self.crew.exit(post, Exit::Orderly)?;
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        let is_enough = self.plan.kills.is_some_and(|kills| self.crew.tally.kills() >= kills);
        is_enough || self.plan.seconds.is_some_and(|seconds| self.start.elapsed().as_secs() >= seconds)
    }

    /// The veterans, the first owner and the first peer, are spared until its end.
    fn era(&mut self) -> Result<()> {
        self.crew.tally.eras += 1;
        self.check()?;
        for _ in 0..CHECKS {
            let end = self.crew.tally.kills() + self.plan.era.div_ceil(CHECKS);
            while self.crew.tally.kills() < end && !self.is_over() {
                self.act()?;
            }
            self.check()?;
        }
        let peers = self.crew.posts(Kind::Peer);
        self.kill_all(&peers)?;
        self.check_alone()?;
        self.start_all(&peers)?;
        let everybody = self.everybody();
        self.storm(&everybody)
    }

    /// One of the things that happen.
    fn act(&mut self) -> Result<()> {
        let owner = self.mortal(Kind::Owner);
        let anyone = if self.crew.random.u8(..10) < 3 { owner } else { self.mortal(Kind::Peer) };
        match self.crew.random.u8(..100) {
            0..=59 => {
                self.crew.pause(PAUSE)?;
                self.crew.kill(anyone)?;
                self.crew.start(anyone)
            }
            60..=69 => {
                self.crew.kill(anyone)?;
                self.restart_often(anyone, NEWBORN)
            }
            70..=79 => {
                self.crew.pause(PAUSE)?;
                let exit = [Exit::Orderly, Exit::Sudden, Exit::Abort][self.crew.random.usize(..3)];
                self.crew.exit(anyone, exit)?;
                self.crew.start(anyone)
            }
            80..=87 => {
                self.crew.pause(PAUSE)?;
                self.crew.kill_leaving(anyone)?;
                self.crew.start(anyone)
            }
            88..=91 => self.recreate(),
            92..=93 => self.sweep(),
            94..=95 => {
                self.crew.kill(owner)?;
                self.restart_often(owner, PAUSE)
            }
            96..=97 => {
                let peers = self.mortals(Kind::Peer);
                self.storm(&peers)
            }
            _ => {
                let mortals = [self.mortals(Kind::Owner), self.mortals(Kind::Peer)].concat();
                self.storm(&mortals)
            }
        }
    }

    // ---- who -------------------------------------------------------------------------------------------------

    fn mortals(&self, kind: Kind) -> Vec<Post> {
        self.crew.posts(kind).split_off(1)
    }

    fn mortal(&mut self, kind: Kind) -> Post {
        let mortals = self.mortals(kind);
        mortals[self.crew.random.usize(..mortals.len())]
    }

    fn everybody(&self) -> Vec<Post> {
        [self.crew.posts(Kind::Owner), self.crew.posts(Kind::Peer)].concat()
    }

    fn shuffled(&mut self, posts: &[Post]) -> Vec<Post> {
        let mut shuffled = posts.to_vec();
        self.crew.random.shuffle(&mut shuffled);
        shuffled
    }

    // ---- what ------------------------------------------------------------------------------------------------

    fn start_all(&mut self, posts: &[Post]) -> Result<()> {
        let posts = self.shuffled(posts);
        posts.into_iter().try_for_each(|post| self.crew.start(post))
    }

    fn kill_all(&mut self, posts: &[Post]) -> Result<()> {
        for post in self.shuffled(posts) {
            self.crew.pause(NEWBORN)?;
            self.crew.kill(post)?;
        }
        Ok(())
    }

    /// All are killed and started again, in any order, up to three times.
    fn storm(&mut self, posts: &[Post]) -> Result<()> {
        self.crew.tally.storms += 1;
        for _ in 0..self.crew.random.u8(1..=3) {
            self.kill_all(posts)?;
            self.start_all(posts)?;
            self.crew.pause(PAUSE)?;
        }
        Ok(())
    }

    /// Starts a process that was ended, kills it soon, and so on; the last one lives.
    fn restart_often(&mut self, post: Post, life: Duration) -> Result<()> {
        for _ in 0..self.crew.random.u8(1..=4) {
            self.crew.start(post)?;
            self.crew.pause(life)?;
            self.crew.kill(post)?;
        }
        self.crew.start(post)
    }

    fn recreate(&mut self) -> Result<()> {
        let peers = self.crew.posts(Kind::Peer);
        let peer = peers[self.crew.random.usize(..peers.len())];
        self.crew.tell(peer, Command::Recreate);
        self.crew.tally.recreated += 1;
        match self.crew.answer(peer)? {
            Word::Recreated => Ok(()),
            other => Err(format!("{peer:?} was to replace its client, and says {other:?}")),
        }
    }

    fn sweep(&mut self) -> Result<()> {
        self.crew.tally.sweeps += 1;
        let swept = Provider::sweep(&self.prefix);
        swept.map(drop).map_err(|error| format!("cannot sweep: {error}"))
    }

    // ---- what must hold --------------------------------------------------------------------------------------

    /// A time of quiet: everybody is alive, and has let go of everything. Then nothing is leased,
    /// used, held; nobody has anything open or mapped that it did not have at first; and in
    /// /dev/shm there are the owners' control objects.
    fn check(&mut self) -> Result<()> {
        let (owners, peers) = (self.crew.posts(Kind::Owner), self.crew.posts(Kind::Peer));
        for (owner, quiet) in self.quiesce(peers.len())? {
            self.check_footprint(owner, quiet.footprint, 1)?;
        }
        peers.iter().for_each(|&peer| self.crew.tell(peer, Command::Measure));
        for &peer in &peers {
            match self.crew.answer(peer)? {
                Word::Measured(footprint) => self.check_footprint(peer, footprint, owners.len())?,
                other => return Err(format!("{peer:?} was to measure itself, and says {other:?}")),
            }
        }
        self.sweep()?;
        let objects = procfs::objects(&format!("{}.", self.prefix));
        if objects.len() != owners.len() {
            return Err(format!("in a time of quiet there are these objects: {}", objects.join(", ")));
        }
        self.resume();
        Ok(())
    }

    /// As [`check`](Self::check), with no peer alive: what the dead leased is back.
    fn check_alone(&mut self) -> Result<()> {
        self.quiesce(0)?;
        self.crew.tally.checks_alone += 1;
        self.resume();
        Ok(())
    }

    fn quiesce(&mut self, peers: usize) -> Result<Vec<(Post, Quiet)>> {
        self.crew.tally.checks += 1;
        let owners = self.crew.posts(Kind::Owner);
        owners.iter().for_each(|&owner| self.crew.tell(owner, Command::Quiesce(peers as u64)));
        let mut answers = Vec::new();
        for owner in owners {
            let Word::Quiet(quiet) = self.crew.answer(owner)? else { return Err(format!("{owner:?} is not quiet")) };
            self.crew.tally.peak = self.crew.tally.peak.max(quiet.peak);
            if quiet.leased + quiet.in_use + quiet.held > 0 || quiet.peak > self.plan.max_bytes() as u64 {
                return Err(format!("{owner:?} with {peers} peers at rest has {quiet:?}"));
            }
            answers.push((owner, quiet));
        }
        Ok(answers)
    }

    fn resume(&mut self) {
        for owner in self.crew.posts(Kind::Owner) {
            self.crew.tell(owner, Command::Resume);
        }
    }

    /// `shared` control objects are mapped, and since its first time of quiet the process has
    /// gained nothing.
    fn check_footprint(&mut self, post: Post, now: Footprint, shared: usize) -> Result<()> {
        let ends = self.crew.ends;
        let (start, ends_then) = *self.crew.worker(post).start.get_or_insert((now, ends));
        let tally = &mut self.crew.tally;
        let others = 1 - post.kind as usize;
        tally.survived = tally.survived.max(ends[others] - ends_then[others]);
        let gained = [
            now.descriptors.saturating_sub(start.descriptors),
            now.shared.saturating_sub(start.shared),
            (now.mappings - now.shared).saturating_sub(start.mappings - start.shared),
        ];
        for (most, gained) in tally.gained.iter_mut().zip(gained) {
            *most = (*most).max(gained);
        }
        let is_back = now.descriptors == start.descriptors && now.shared == shared && gained[2] <= OTHER_MAPPINGS;
        is_back.then_some(()).ok_or_else(|| format!("{post:?} at rest had {start:?}, and now has {now:?}"))
    }
}
