//! The README's session: /dev/shm is full, an owner was killed yesterday, and a stopped subscriber
//! holds 40 MiB. From `df` to a healthy system by the command alone.
//!
//! `cargo test session -- --nocapture` prints the commands and their output.

use crate::child::{Child, Request, Task};
use crate::command::{run as run_command, Printed};
use crate::own_shm::{give_shm, skip};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use shm_pool_support::{procfs, wire};
use std::os::unix::net::UnixStream;
use std::process::Command;

const MIB: usize = 1 << 20;

/// The operator neither restarts everything nor guesses which files are safe to delete.
#[test]
fn readme_session() {
    match Child::start_with(&Task::Session, |command| {
        give_shm(command, b"size=61m,mode=1777\0")
    }) {
        Ok(session) => {
            println!("{}", session.answer::<String>());
            session.finish();
        }
        Err(error) => skip(&format!("no mount namespace of our own: {error}")),
    }
}

/// The child's role, in a process whose /dev/shm has 61 MiB.
pub(crate) fn run(link: &UnixStream) {
    let (yesterday, dead) = Child::owner("lidar", 32 * MIB);
    yesterday.publish(20 * MIB).unwrap();
    yesterday.kill();
    let (camera, _) = Child::owner("camera", 48 * MIB);
    let frames = [
        camera.publish(20 * MIB).unwrap(),
        camera.publish(20 * MIB).unwrap(),
    ];
    let viewer = Child::subscriber("camera", &frames);
    camera.request::<()>(&Request::Forget);
    viewer.stop();
    let mut transcript = df(&["-h"]);
    let publish = |len: usize| camera.publish(len).map(drop);
    assert!(
        publish(8 * MIB).unwrap_err().contains("/dev/shm has"),
        "it is full"
    );

    // Find out what fills /dev/shm.
    assert!(free() <= MIB, "{}", free());
    let ls = record(&mut transcript, &["ls", "--check"]);
    assert_eq!(ls.code, 4);
    let line = |name: &str| {
        ls.text
            .lines()
            .find(|line| line.starts_with(name))
            .unwrap()
            .to_owned()
    };
    assert!(
        line("lidar.").contains("orphan") && line("camera.").contains("alive"),
        "{}",
        ls.text
    );

    // See what can be removed.
    let before = procfs::objects("");
    let plan = record(&mut transcript, &["sweep"]).fine();
    assert!(
        plan.contains("would remove 2 objects, 20.") && plan.contains(&dead.to_string()),
        "{plan}"
    );
    assert_eq!(procfs::objects(""), before);
    let full = free();
    assert!(record(&mut transcript, &["sweep", "--yes"])
        .fine()
        .starts_with("removed 2 objects, 20."));
    assert!(free() >= full + 20 * MIB && record(&mut transcript, &["ls", "--check"]).code == 0);
    publish(8 * MIB).expect("room for one more");

    // Find out which process holds the rest. The pool is at its cap.
    camera.request::<()>(&Request::Forget);
    assert!(publish(20 * MIB).unwrap_err().contains("leased"));
    let who = record(&mut transcript, &["who"]).line("STOPPED");
    assert!(
        who.contains("40.0 MiB in 2") && who.contains("≥ 1s"),
        "{who}"
    );
    let top = record(&mut transcript, &["top", "--once"]).fine();
    assert_eq!(
        top.lines()
            .filter(|line| line.contains("STOPPED") || line.contains('█'))
            .count(),
        2,
        "{top}"
    );
    let holder: i32 = who.split(' ').next().unwrap().parse().unwrap();
    assert_eq!(holder, viewer.id() as i32);
    kill(Pid::from_raw(holder), Signal::SIGKILL).unwrap();
    // Killed and reaped.
    viewer.kill();
    for _ in 0..2 {
        publish(20 * MIB).expect("what the dead one leased comes back");
    }
    camera.request::<()>(&Request::Forget);
    transcript += &format!("$ kill -9 {holder}\n\n");
    let healthy = record(&mut transcript, &["ls", "--check"]).fine();
    assert!(
        !healthy.contains("lidar") && !healthy.contains("orphan"),
        "{healthy}"
    );
    camera.shut_down();
    assert_eq!(procfs::objects(""), [""; 0]);
    wire::send(link, &transcript).unwrap();
}

/// Runs the command, and records the operator's view.
fn record(transcript: &mut String, arguments: &[&str]) -> Printed {
    let printed = run_command(arguments);
    *transcript += &format!("$ shm-pool {}\n{}\n", arguments.join(" "), printed.text);
    printed
}

/// Returns the output of `df` for /dev/shm, as the operator sees it.
fn df(options: &[&str]) -> String {
    let df = Command::new("df")
        .args(options)
        .arg(procfs::OBJECTS)
        .output()
        .unwrap();
    format!(
        "$ df {} {}\n{}\n",
        options.join(" "),
        procfs::OBJECTS,
        Printed::from(df).fine()
    )
}

/// Returns the free bytes of /dev/shm, according to `df`.
fn free() -> usize {
    df(&["-B1", "--output=avail"])
        .lines()
        .nth(2)
        .unwrap()
        .trim()
        .parse()
        .unwrap()
}
