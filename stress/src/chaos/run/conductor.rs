//! Decides which process ends next, when and how, and checks the state between the storms.

#![forbid(unsafe_code)]

use super::crew::Crew;
use super::tally::Tally;
use super::worker::{Command, Exit, Footprint, Kind, Post};
use super::Plan;
use shm_pool::Namespace;
use shm_pool_support::{procfs, Fallible};
use std::time::{Duration, Instant};

/// The longest pause between two ends. Most are much shorter.
const PAUSE: Duration = Duration::from_millis(25);

/// The longest life of a process that is killed as soon as it is started.
const NEWBORN: Duration = Duration::from_millis(4);

/// Kills in an era, at whose end the spared ones are checked and replaced, too.
const ERA: u64 = 500;

/// The quiet periods in an era.
const CHECKS: u64 = 5;

/// The objects of an owner at rest: its control object, its publisher's, and the channel.
const OBJECTS: usize = 3;

/// How many mappings of heap and stacks a veteran may gain: allocators and thread libraries keep
/// some for later. glibc's has up to eight arenas for each CPU, of two mappings each, the more of them
/// the more threads allocate at once: a veteran on two CPUs has gained 40 beside other load. musl's
/// maps each group of blocks by itself: a veteran gains up to 36 of them in 100 kills, and no more in
/// 3,700. AddressSanitizer's has some fifty size classes, and up to four mappings for each one in use.
const OTHER_MAPPINGS: usize = if cfg!(shm_pool_asan) { 32 + 4 * 50 } else { 64 };

/// Runs the plan, and returns the tally. The run passed if it lists no problems.
pub(crate) fn run(plan: &Plan) -> Tally {
    let prefix = format!("chaos-{}-{:x}", std::process::id(), plan.seed & 0xffff_ffff);
    let start = Instant::now();
    let mut tally = match Crew::new(plan, &prefix) {
        Ok(crew) => {
            let mut conductor = Conductor { crew, start };
            let outcome = conductor.conduct();
            let mut tally = conductor.crew.disband();
            if let Err(problem) = outcome {
                tally.problems.push(problem.to_string());
            }
            tally
        }
        Err(problem) => Tally {
            problems: vec![problem.to_string()],
            ..Tally::default()
        },
    };
    tally.elapsed = start.elapsed();
    match Namespace::new(&prefix).unwrap().sweep() {
        Ok(swept) => tally.swept = swept.objects,
        Err(error) => tally
            .problems
            .push(format!("the final sweep failed: {error}")),
    }
    let left = procfs::objects(&format!("{prefix}."));
    tally.left = left.len();
    if !left.is_empty() {
        tally
            .problems
            .push(format!("left in /dev/shm: {}", left.join(", ")));
        procfs::remove_objects(&format!("{prefix}."));
    }
    if tally.counts.torn > 0 {
        tally
            .problems
            .push(format!("{} torn messages", tally.counts.torn));
    }
    tally
}

struct Conductor {
    crew: Crew,
    start: Instant,
}

impl Conductor {
    fn conduct(&mut self) -> Fallible {
        self.start_all(&self.all(0))?;
        while !self.is_over() {
            self.era()?;
        }
        self.exit_all(Kind::Peer)?;
        self.check_alone()?;
        self.exit_all(Kind::Owner)
    }

    fn is_over(&self) -> bool {
        let plan = &self.crew.plan;
        if let Some(kills) = plan.kills {
            if self.crew.tally.kills() >= kills {
                return true;
            }
        }
        if let Some(seconds) = plan.seconds {
            if self.start.elapsed().as_secs() >= seconds {
                return true;
            }
        }
        false
    }

    /// Spares the veterans, the first owner and the first peer, until its end.
    fn era(&mut self) -> Fallible {
        self.crew.tally.eras += 1;
        self.check()?;
        for _ in 0..CHECKS {
            let end = self.crew.tally.kills() + ERA / CHECKS;
            while self.crew.tally.kills() < end && !self.is_over() {
                self.act()?;
            }
            self.check()?;
        }
        let peers = self.crew.posts(Kind::Peer, 0);
        self.kill_all(&peers)?;
        self.check_alone()?;
        self.start_all(&peers)?;
        self.storm(&self.all(0))
    }

    /// Performs a random action.
    fn act(&mut self) -> Fallible {
        let owner = self.any(Kind::Owner, 1);
        let anyone = if self.crew.random.u8(..10) < 3 {
            owner
        } else {
            self.any(Kind::Peer, 1)
        };
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
            88..=91 => {
                let peer = self.any(Kind::Peer, 0);
                self.crew.tally.recreated += 1;
                self.measure(&[peer], Command::Recreate)?;
                Ok(())
            }
            92..=93 => self.sweep(),
            94..=95 => {
                self.crew.kill(owner)?;
                self.restart_often(owner, PAUSE)
            }
            96..=97 => self.storm(&self.crew.posts(Kind::Peer, 1)),
            _ => self.storm(&self.all(1)),
        }
    }

    // ---- selection ---------------------------------------------------------------------------

    fn all(&self, spared: usize) -> Vec<Post> {
        let mut all = self.crew.posts(Kind::Owner, spared);
        all.extend(self.crew.posts(Kind::Peer, spared));
        all
    }

    fn any(&mut self, kind: Kind, spared: usize) -> Post {
        let posts = self.crew.posts(kind, spared);
        posts[self.crew.random.usize(..posts.len())]
    }

    fn shuffled(&mut self, posts: &[Post]) -> Vec<Post> {
        let mut shuffled = posts.to_vec();
        self.crew.random.shuffle(&mut shuffled);
        shuffled
    }

    // ---- actions -----------------------------------------------------------------------------

    fn start_all(&mut self, posts: &[Post]) -> Fallible {
        for post in self.shuffled(posts) {
            self.crew.start(post)?;
        }
        Ok(())
    }

    fn exit_all(&mut self, kind: Kind) -> Fallible {
        for post in self.crew.posts(kind, 0) {
            self.crew.exit(post, Exit::Orderly)?;
        }
        Ok(())
    }

    fn kill_all(&mut self, posts: &[Post]) -> Fallible {
        for post in self.shuffled(posts) {
            self.crew.pause(NEWBORN)?;
            self.crew.kill(post)?;
        }
        Ok(())
    }

    /// Kills and restarts all, in any order, up to three times.
    fn storm(&mut self, posts: &[Post]) -> Fallible {
        self.crew.tally.storms += 1;
        for _ in 0..self.crew.random.u8(1..=3) {
            self.kill_all(posts)?;
            self.start_all(posts)?;
            self.crew.pause(PAUSE)?;
        }
        Ok(())
    }

    /// Starts a process that was ended, kills it soon, and so on; the last one survives.
    fn restart_often(&mut self, post: Post, life: Duration) -> Fallible {
        for _ in 0..self.crew.random.u8(1..=4) {
            self.crew.start(post)?;
            self.crew.pause(life)?;
            self.crew.kill(post)?;
        }
        self.crew.start(post)
    }

    fn sweep(&mut self) -> Fallible {
        self.crew.tally.sweeps += 1;
        Namespace::new(&self.crew.prefix).unwrap().sweep()?;
        Ok(())
    }

    // ---- checks ------------------------------------------------------------------------------

    /// A quiet period: every process is alive, and has released everything. Then nothing is leased,
    /// used or held; no process has anything open or mapped that it did not have at first; no
    /// receiver is connected; and /dev/shm contains the owners' control objects and channels.
    fn check(&mut self) -> Fallible {
        let owners = self.crew.posts(Kind::Owner, 0);
        let peers = self.crew.posts(Kind::Peer, 0);
        for (owner, footprint) in owners.iter().zip(self.quiesce(peers.len())?) {
            self.check_footprint(*owner, footprint, OBJECTS)?;
        }
        for (peer, footprint) in peers.iter().zip(self.measure(&peers, Command::Measure)?) {
            self.check_footprint(*peer, footprint, owners.len())?;
        }
        self.sweep()?;
        let objects = procfs::objects(&format!("{}.", self.crew.prefix));
        if objects.len() != OBJECTS * owners.len() {
            return Err(format!(
                "in a time of quiet there are these objects: {}",
                objects.join(", ")
            )
            .into());
        }
        self.resume();
        Ok(())
    }

    /// As [`check`](Self::check), with no peer alive: the leases of the dead are reclaimed.
    fn check_alone(&mut self) -> Fallible {
        self.quiesce(0)?;
        self.crew.tally.checks_alone += 1;
        self.resume();
        Ok(())
    }

    fn quiesce(&mut self, peers: usize) -> Fallible<Vec<Footprint>> {
        self.crew.tally.checks += 1;
        self.measure(&self.crew.posts(Kind::Owner, 0), Command::Quiesce(peers))
    }

    fn resume(&mut self) {
        for owner in self.crew.posts(Kind::Owner, 0) {
            self.crew.send(owner, Command::Resume);
        }
    }

    /// Sends a command that ends in a report of the remains: no memory, and the returned
    /// footprint.
    fn measure(&mut self, posts: &[Post], command: Command) -> Fallible<Vec<Footprint>> {
        // All of them first, so that the processes work at the same time.
        for post in posts {
            self.crew.send(*post, command);
        }
        let mut footprints = Vec::new();
        for post in posts {
            let remains = self.crew.answer(*post)?;
            let bytes = remains.leased + remains.in_use + remains.held;
            if bytes > 0 || remains.peak > self.crew.plan.max_bytes() {
                return Err(format!("{post:?} answers {command:?} with {remains:?}").into());
            }
            self.crew.tally.peak = self.crew.tally.peak.max(remains.peak);
            footprints.push(remains.footprint);
        }
        Ok(footprints)
    }

    /// Checks that `shared` objects are mapped, and that the process has gained nothing since its
    /// first quiet period.
    fn check_footprint(&mut self, post: Post, now: Footprint, shared: usize) -> Fallible {
        let ends = self.crew.ends;
        let (start, ends_at_start) = *self.crew.worker(post).start.get_or_insert((now, ends));
        let tally = &mut self.crew.tally;
        let others = 1 - post.kind as usize;
        tally.survived = tally.survived.max(ends[others] - ends_at_start[others]);
        let gained = [
            now.descriptors.saturating_sub(start.descriptors),
            now.shared.saturating_sub(start.shared),
            now.others.saturating_sub(start.others),
        ];
        for (most, gained) in tally.gained.iter_mut().zip(gained) {
            *most = (*most).max(gained);
        }
        let is_back = now.descriptors == start.descriptors
            && now.shared == shared
            && gained[2] <= OTHER_MAPPINGS;
        if !is_back {
            return Err(format!("{post:?} at rest had {start:?}, and now has {now:?}").into());
        }
        Ok(())
    }
}
