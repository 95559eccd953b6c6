//! The built command, and the name prefixes of tests.

use serde_json::Value;
use shm_pool::{Namespace, Provider, ProviderBuilder};
use shm_pool_support::procfs;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

/// The command's output and exit code.
#[derive(Debug, PartialEq)]
pub(crate) struct Printed {
    pub(crate) text: String,
    pub(crate) errors: String,
    pub(crate) code: i32,
}

impl Printed {
    /// Returns the output, if it succeeded.
    pub(crate) fn fine(self) -> String {
        assert_eq!((self.code, &self.errors[..]), (0, ""), "{}", self.text);
        self.text
    }

    /// Parses the output as JSON, if it succeeded.
    pub(crate) fn json(self) -> Value {
        serde_json::from_str(&self.fine()).unwrap()
    }

    /// Returns the line with this word, if it succeeded.
    pub(crate) fn line(self, word: &str) -> String {
        let text = self.fine();
        for line in text.lines() {
            if line.contains(word) {
                return line.to_owned();
            }
        }
        panic!("no {word}:\n{text}");
    }
}

impl From<Output> for Printed {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let Some(code) = output.status.code() else {
            panic!("{}", output.status);
        };
        Self {
            text: text(output.stdout),
            errors: text(output.stderr),
            code,
        }
    }
}

/// Returns the command with these arguments, not started.
pub(crate) fn shm_pool(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shm-pool"));
    command.args(arguments);
    command
}

pub(crate) fn run(arguments: &[&str]) -> Printed {
    shm_pool(arguments).output().unwrap().into()
}

/// A prefix that no other test uses. Panics on drop if an object with the prefix remains.
pub(crate) struct Names {
    pub(crate) prefix: String,
}

impl Names {
    /// `test` is short, and unique to the test.
    pub(crate) fn new(test: &str) -> Self {
        Self {
            prefix: format!("cli-{}-{test}", std::process::id()),
        }
    }

    /// Runs the command for this prefix only.
    pub(crate) fn run(&self, arguments: &[&str]) -> Printed {
        run(&[&["--prefix", &self.prefix], arguments].concat())
    }

    pub(crate) fn provider(&self) -> ProviderBuilder {
        Provider::builder().namespace(&self.namespace())
    }

    pub(crate) fn namespace(&self) -> Namespace {
        Namespace::new(&self.prefix).unwrap()
    }

    /// Returns the names of the prefix's objects.
    pub(crate) fn objects(&self) -> Vec<String> {
        procfs::objects(&format!("{}.", self.prefix))
    }

    /// Returns the path of an object of this kind.
    pub(crate) fn path(&self, kind: &str) -> PathBuf {
        PathBuf::from(format!("{}/{}.{kind}", procfs::OBJECTS, self.prefix))
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        let left = self.objects();
        for name in &left {
            // A failed test may leave objects behind.
            let _ = fs::remove_file(PathBuf::from(procfs::OBJECTS).join(name));
        }
        assert!(
            std::thread::panicking() || left.is_empty(),
            "left behind: {left:?}"
        );
    }
}
