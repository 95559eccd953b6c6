//! The examples of several channels at a time. Each starts its other processes itself.

mod common;

use common::{run, Compiler};

fn prints(name: &str, expected: &str) {
    let source = format!("examples/{name}.c");
    let program = Compiler::c().compile(name, &[&source]);
    let output = run(program).output().expect("it starts");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{printed}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(printed, expected);
}

#[test]
fn many_producers() {
    prints("many_producers", "300 messages of 3 producers\n");
}

#[test]
fn request_response() {
    prints(
        "request_response",
        "100 requests of 1048576 bytes were answered\n",
    );
}
