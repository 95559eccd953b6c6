//! Sets the name under which programs look for the shared library: `libshm_pool.so`, and the part of
//! the version that decides whether it fits.

fn main() {
    let part =
        |name: &str| std::env::var(format!("CARGO_PKG_VERSION_{name}")).expect("cargo sets it");
    println!(
        "cargo:rustc-cdylib-link-arg=-Wl,-soname,libshm_pool.so.{}.{}",
        part("MAJOR"),
        part("MINOR")
    );
    println!("cargo:rerun-if-changed=build.rs");
}
