//! The committed header is what cbindgen generates. `SHM_POOL_WRITE_HEADER=1` writes it anew.

use std::fs;
use std::path::Path;

#[test]
fn header_is_current() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config =
        cbindgen::Config::from_file(package.join("cbindgen.toml")).expect("a configuration");
    let bindings = cbindgen::generate_with_config(package, config).expect("a header");
    let mut generated = Vec::new();
    bindings.write(&mut generated);
    let generated = String::from_utf8(generated).expect("UTF-8");
    // What rustdoc wants as a section is one line in C.
    let generated = generated.replace("// # Safety\n//\n// ", "// Requires: ");
    let header = package.join("include/shm_pool.h");
    if std::env::var_os("SHM_POOL_WRITE_HEADER").is_some() {
        fs::write(&header, &generated).expect("the header is written");
    }
    let committed = fs::read_to_string(&header).expect("the header");
    assert!(
        generated == committed,
        "include/shm_pool.h is out of date; run `make -C c header`"
    );
}
