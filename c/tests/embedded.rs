//! The example of an embedded publisher: all of its memory is there before the first sample, whether it
//! may lock memory and raise its priority or not.

mod common;

use common::{run, Compiler};

#[test]
fn no_chunk_is_made_after_start_up() {
    let program = Compiler::c().compile("embedded", &["examples/embedded.c"]);
    let output = run(program)
        .arg(format!("embedded-{}", std::process::id()))
        .output()
        .expect("it starts");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{printed}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        printed.contains("0 chunks made after start-up"),
        "{printed}"
    );
}
