//! The library in programs that do not expect its threads: hosts of plug-ins, and daemons that read
//! signals from a descriptor.

mod common;

use common::{library, run, Compiler};
use std::process::Command;

fn passes(mut program: Command) {
    let output = program.output().expect("it starts");
    assert!(
        output.status.success(),
        "{program:?}: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Loads the library and unloads it five times: one after the other, or in five threads.
fn unloads(threads: &str) {
    // It must not be linked to the library.
    let compiler = Compiler::c().with_flag("-Wl,--as-needed");
    let name = format!("plugin-host-{threads}");
    let host = compiler.compile(&name, &["tests/plugin_host.c"]);
    // Not under valgrind: it reports the code that stays loaded.
    let mut program = Command::new(host);
    let prefix = format!("{name}-{}", std::process::id());
    program.arg(library()).arg(prefix).arg(threads);
    passes(program);
}

#[test]
fn plugin_host() {
    unloads("one");
}

#[test]
fn plugin_host_with_threads() {
    unloads("several");
}

#[test]
fn threads_with_a_hook() {
    let program = Compiler::c().compile("threads", &["tests/threads.c"]);
    let mut program = run(program);
    program.arg(format!("threads-{}", std::process::id()));
    passes(program);
}

#[test]
fn daemon_with_signalfd() {
    let daemon = Compiler::c().compile("daemon", &["tests/daemon.c"]);
    let mut program = run(daemon);
    program.arg(format!("daemon-{}", std::process::id()));
    passes(program);
}
