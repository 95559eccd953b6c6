//! The fuzz targets run the same hostile programs as the library's tests.

#[path = "../../tests/process/hostile/mod.rs"]
mod hostile;

#[path = "../../tests/common/served.rs"]
mod served;

/// A prefix that no other process uses.
fn prefix(target: &str) -> String {
    format!("shm_pool-fuzz-{target}-{}", std::process::id())
}

macro_rules! targets {
    ($($target:ident)*) => {$(
        pub fn $target(bytes: &[u8]) {
            hostile::$target(&prefix(stringify!($target)), bytes);
        }
    )*};
}

targets!(channel control descriptor foreign inspect publisher);
