//! `top`: one frame as text, and the screen in a real terminal.

use crate::child::{Child, Task};
use crate::command::{shm_pool, Names};
use nix::fcntl::OFlag;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::pty::{grantpt, posix_openpt, ptsname_r, unlockpt, PtyMaster};
use nix::sys::signal::{kill, Signal};
use nix::sys::termios::{tcgetattr, Termios};
use nix::unistd::Pid;
use shm_pool::channel::Publisher;
use shm_pool_support::process;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The longest that a step may take on a loaded machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The output fits scripts and terminals of the usual size.
#[test]
fn one_frame_fits_80_by_24() {
    let names = Names::new("top-once");
    let (owner, id) = Child::owner(&names.prefix, 64 << 20);
    let lengths = [40 << 20, 3 << 20, 100_000];
    let messages = lengths.map(|len| owner.publish(len).unwrap());
    let subscriber = Child::subscriber(&names.prefix, &messages);
    subscriber.stop();
    let frame = names.run(&["top", "--once", "--interval", "100ms"]).fine();
    assert_eq!(frame.lines().count(), 24);
    assert!(
        frame.lines().all(|line| line.chars().count() <= 80),
        "{frame}"
    );
    assert!(
        frame.contains(&format!("{}.{}", names.prefix, &id.to_string()[..1])),
        "{frame}"
    );
    // One full bar, one short one, and one that is only just there.
    let bars: Vec<_> = frame
        .lines()
        .map(|line| line.matches('█').count())
        .filter(|&length| length > 0)
        .collect();
    assert_eq!(bars, [40, 3, 1], "{frame}");
    let line = frame.lines().find(|line| line.contains("STOPPED")).unwrap();
    assert!(
        line.starts_with(&subscriber.id().to_string()) && line.contains("43.1 MiB in 3"),
        "{frame}"
    );
    assert_eq!(
        names
            .run(&["top", "--interval", "100ms"])
            .fine()
            .lines()
            .count(),
        24,
        "no terminal"
    );
    subscriber.kill();
    owner.shut_down();
}

/// A rate counts messages, and a quiet channel's rate is zero.
#[test]
fn message_rates() {
    let names = Names::new("top-rates");
    let provider = names.provider().build().unwrap();
    let mut busy = Publisher::create(&provider, "busy").unwrap();
    let mut quiet = Publisher::create(&provider, "quiet").unwrap();
    let receivers = ["busy", "quiet"].map(|channel| {
        let receiver = Child::start(&Task::ChannelSubscriber {
            prefix: names.prefix.clone(),
            channel: channel.to_owned(),
        });
        receiver.answer::<()>();
        receiver
    });
    for _ in 0..3 {
        assert_eq!(quiet.try_send_copy(b"before").unwrap().receivers, 1);
    }
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let at_the_end = End(&is_over);
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                busy.try_send_copy(b"again").unwrap();
            }
        });
        // On a busy machine, the sender may not run between two samples.
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let top = names.run(&["top", "--json", "--interval", "100ms"]).json();
            let rate = |index: usize| {
                top["channels"][index]["messages_per_second"]
                    .as_f64()
                    .unwrap()
            };
            assert_eq!(rate(1), 0.0);
            if rate(0) > 0.0 {
                break;
            }
            assert!(Instant::now() < deadline, "{top}");
        }
        drop(at_the_end);
    });
    for receiver in receivers {
        receiver.shut_down();
    }
}

/// Stops the other thread on drop, even if the test fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Guards against a screen that never refreshes, and a terminal left without echo.
#[test]
fn quit_restores_terminal() {
    let names = Names::new("top-q");
    let mut top = Screen::start(&names);
    let provider = names.provider().build().unwrap();
    // As much of the name as the column shows.
    let name = format!("{}.{}", names.prefix, provider.id());
    top.read_until(&name[..25]);
    top.master.write_all(b"q").unwrap();
    let status = top.ended();
    assert!(status.success(), "{status}");
}

/// A narrow window shows names before states and sizes.
#[test]
fn narrow_screens_show_names() {
    let names = Names::new("top-slim");
    let provider = names.provider().build().unwrap();
    let mut top = Screen::of_width(&names, 30);
    let name = format!("{}.{}", names.prefix, provider.id());
    top.read_until(&name[..25]);
    top.master.write_all(b"q").unwrap();
    assert!(top.ended().success());
}

/// The terminal is restored, and the exit status names the signal.
#[test]
fn sigterm_restores_terminal() {
    let names = Names::new("top-term");
    let top = Screen::start(&names);
    kill(Pid::from_raw(top.process.id() as i32), Signal::SIGTERM).unwrap();
    let status = top.ended();
    assert_eq!(status.signal(), Some(Signal::SIGTERM as i32), "{status}");
}

/// Closing the window does not leave a process behind.
#[test]
fn ends_with_terminal() {
    let names = Names::new("top-gone");
    let Screen {
        mut process,
        master,
        ..
    } = Screen::start(&names);
    drop(master);
    let errors = process.stderr.take().unwrap();
    wait_for(
        &errors,
        Instant::now() + TIMEOUT,
        "the process has not ended",
    );
    let status = process.wait().unwrap();
    assert!(!status.success(), "{status}");
}

/// Waits until `file` is readable or its other end is closed.
fn wait_for(file: &impl AsFd, deadline: Instant, what: &str) {
    let left = PollTimeout::try_from(deadline - Instant::now()).unwrap();
    let found = poll(&mut [PollFd::new(file.as_fd(), PollFlags::POLLIN)], left);
    assert_ne!(found, Ok(0), "in time: {what}");
}

/// `top` in a terminal of its own.
struct Screen {
    process: process::Child,
    master: PtyMaster,
    before: Termios,
    shown: String,
}

impl Screen {
    /// Starts `top`, and returns when the screen is drawn.
    fn start(names: &Names) -> Self {
        Self::of_width(names, 80)
    }

    fn of_width(names: &Names, columns: u16) -> Self {
        // Close-on-exec: a process that held the other end as well would outlive its terminal.
        let master = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let path = ptsname_r(&master).unwrap();
        let no_tty = OFlag::O_NOCTTY.bits();
        let slave = File::options()
            .read(true)
            .write(true)
            .custom_flags(no_tty)
            .open(path)
            .unwrap();
        let size = libc::winsize {
            ws_row: 24,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        // SAFETY: the descriptor is a terminal, and the size outlives the call.
        let result = unsafe { libc::ioctl(slave.as_raw_fd(), libc::TIOCSWINSZ, &size) };
        assert_eq!(result, 0);
        let before = tcgetattr(&slave).unwrap();
        let terminal = || Stdio::from(slave.try_clone().unwrap());
        let mut command = shm_pool(&["--prefix", &names.prefix, "top"]);
        command
            .stdin(terminal())
            .stdout(terminal())
            .stderr(Stdio::piped());
        let prepare = || {
            nix::unistd::setsid()?;
            // SAFETY: the call takes only numbers; standard input is the terminal.
            match unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) } {
                -1 => Err(std::io::Error::last_os_error()),
                _ => Ok(()),
            }
        };
        // SAFETY: between fork and exec this makes two system calls.
        unsafe { command.pre_exec(prepare) };
        let process = process::Child::start("top", &mut command).unwrap();
        // From here on, only the process has the terminal open, so reads end when it exits.
        drop((command, slave));
        let mut this = Self {
            process,
            master,
            before,
            shown: String::new(),
        };
        this.read_until("q quits");
        assert!(
            this.shown.contains("\x1b[?1049h"),
            "the alternate screen: {:?}",
            this.shown
        );
        assert_ne!(tcgetattr(&this.master).unwrap(), this.before, "raw mode");
        this
    }

    fn read_until(&mut self, text: &str) {
        let deadline = Instant::now() + TIMEOUT;
        while !self.shown.contains(text) {
            let mut bytes = [0; 4_096];
            // The text may be preceded by other output.
            wait_for(&self.master, deadline, text);
            let count = self
                .master
                .read(&mut bytes)
                .unwrap_or_else(|end| panic!("{end}: {:?}", self.shown));
            self.shown += &String::from_utf8_lossy(&bytes[..count]);
        }
    }

    /// Waits until it has exited, and checks that the terminal is restored.
    fn ended(mut self) -> std::process::ExitStatus {
        self.read_until("\x1b[?1049l");
        let status = self.process.wait().unwrap();
        assert_eq!(tcgetattr(&self.master).unwrap(), self.before);
        status
    }
}
