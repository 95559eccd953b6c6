//! Compiles C and C++ programs against the library that cargo has built.

#![allow(dead_code)] // No test binary uses all of it.

use std::ffi::OsStr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::{env, fs, io};

pub(crate) struct Compiler {
    command: String,
    flags: Vec<String>,
}

impl Compiler {
    pub(crate) fn c() -> Self {
        Self::new("CC", "cc", &["-std=c11", "-D_GNU_SOURCE"])
    }

    pub(crate) fn cpp() -> Self {
        Self::new("CXX", "c++", &["-std=c++17"])
    }

    /// `SHM_POOL_CFLAGS` adds options, such as `-fsanitize=address`.
    fn new(variable: &str, default: &str, flags: &[&str]) -> Self {
        let command = env::var(variable).unwrap_or_else(|_| default.to_owned());
        let more = env::var("SHM_POOL_CFLAGS").unwrap_or_default();
        let strict = [
            "-Wall",
            "-Wextra",
            "-Wpedantic",
            "-Wconversion",
            "-Werror",
            "-O2",
            "-g",
            "-pthread",
        ];
        let flags = flags
            .iter()
            .chain(&strict)
            .copied()
            .chain(more.split_whitespace());
        Self {
            command,
            flags: flags.map(str::to_owned).collect(),
        }
    }

    pub(crate) fn with_flag(mut self, flag: &str) -> Self {
        self.flags.push(flag.to_owned());
        self
    }

    /// Compiles sources of this package into a program, and returns its path.
    pub(crate) fn compile(&self, name: &str, sources: &[&str]) -> PathBuf {
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        // Tests of several binaries may compile at a time.
        let folder =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("a folder");
        let program = folder.join(name);
        let mut command = Command::new(&self.command);
        command
            .args(&self.flags)
            .arg("-o")
            .arg(&program)
            .args(sources.iter().map(|source| package.join(source)));
        command
            .arg("-I")
            .arg(package.join("include"))
            .arg("-L")
            .arg(&folder)
            .arg("-lshm_pool");
        command.arg(format!("-Wl,-rpath,{}", folder.display()));
        link(&folder).expect("links to the library");
        let output = command.output().expect("a compiler");
        assert!(
            output.status.success(),
            "{command:?}:\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        program
    }
}

/// Puts the library, which `cargo test` does not build, into a folder under the name that the linker
/// and, as `cargo build` sets no soname, the loader look for.
fn link(folder: &Path) -> io::Result<()> {
    symlink(library(), folder.join("libshm_pool.so"))
}

/// Returns the path of the shared library, which the first call builds.
pub(crate) fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(build)
}

fn build() -> PathBuf {
    // target/PROFILE/deps/TEST
    let test = env::current_exe().expect("a path");
    let output = test.ancestors().nth(2).expect("the profile's folder");
    let target = output.parent().expect("the target folder");
    let profile = if output.ends_with("debug") {
        "dev"
    } else {
        "release"
    };
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args([
            "build",
            "--quiet",
            "--package",
            "shm-pool-c",
            "--profile",
            profile,
            "--target-dir",
        ])
        .arg(target);
    assert!(cargo.status().expect("cargo starts").success(), "{cargo:?}");
    output.join("libshm_pool_c.so")
}

/// Returns a command that runs a program, under `SHM_POOL_RUNNER` if that is set: for example `valgrind`
/// and its options.
pub(crate) fn run(program: impl AsRef<OsStr>) -> Command {
    let runner = env::var("SHM_POOL_RUNNER").unwrap_or_default();
    let mut words = runner.split_whitespace();
    match words.next() {
        Some(runner) => {
            let mut command = Command::new(runner);
            command.args(words).arg(program);
            command
        }
        None => Command::new(program),
    }
}
