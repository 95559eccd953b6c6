//! The interface as C and C++ programs see it.

mod common;

use common::{run, Compiler};
use std::fs;
use std::process::Stdio;

fn passes(compiler: Compiler, name: &str, sources: &[&str]) {
    let mut program = run(compiler.compile(name, sources));
    program.stdout(Stdio::piped()).stderr(Stdio::piped());
    let program = program.spawn().expect("it starts");
    let prefix = format!("{name}-{}.", program.id());
    let output = program.wait_with_output().expect("it ends");
    remove_left(&prefix);
    assert!(
        output.status.success(),
        "{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Removes the objects of a program that has failed a check, and so has not closed its ends.
fn remove_left(prefix: &str) {
    for object in fs::read_dir("/dev/shm")
        .expect("it can be listed")
        .flatten()
    {
        if object.file_name().to_string_lossy().starts_with(prefix) {
            fs::remove_file(object.path()).expect("it is this user's");
        }
    }
}

#[test]
fn c() {
    passes(Compiler::c(), "interface-c", &["tests/interface.c"]);
}

#[test]
fn cpp() {
    passes(Compiler::cpp(), "interface-cpp", &["tests/interface.cpp"]);
}

#[test]
fn cpp_without_exceptions() {
    let compiler = Compiler::cpp().with_flag("-fno-exceptions");
    passes(compiler, "no-exceptions", &["tests/no_exceptions.cpp"]);
}
