//! The interface as C and C++ programs see it.

mod common;

use common::{run, Compiler};

fn passes(compiler: Compiler, name: &str, sources: &[&str]) {
    let output = run(compiler.compile(name, sources))
        .output()
        .expect("it starts");
    assert!(
        output.status.success(),
        "{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
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
    passes(compiler, "no-exceptions-cpp", &["tests/no_exceptions.cpp"]);
}
