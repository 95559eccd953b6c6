//! The command `shm-pool`: shows which processes hold shared memory, and cleans up after dead ones.
//!
//! It displays the results of [`shm_pool::inspect`], which has no side effects. The only command
//! that changes anything is `sweep --yes`, which removes only what dead owners have left.
//!
//! | module | for |
//! |---|---|
//! | [`args`] | the command line, and exit codes |
//! | [`ls`], [`show`], [`who`], [`top`], [`sweep`] | the commands |
//! | [`generate`] | completion scripts and manual pages |
//! | [`text`], [`json`] | output for people and for programs |
//! | [`unseen`] | counts what this process cannot see |

#![forbid(unsafe_code)]

mod args;
mod generate;
mod json;
mod ls;
mod show;
mod sweep;
mod text;
mod top;
mod unseen;
mod who;

use args::{Args, Code, Command};
use clap::Parser;
use std::error::Error;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

/// An error ends the program with a message and [`Code::Error`].
type Fallible<T> = Result<T, Box<dyn Error>>;

/// A command's complete output and its exit code.
struct Answer {
    text: String,
    /// Goes to standard error.
    notice: String,
    code: Code,
}

impl Answer {
    fn fine(text: String) -> Self {
        Self {
            text,
            notice: String::new(),
            code: Code::Fine,
        }
    }
}

fn main() -> ExitCode {
    let Args { scope, command } = Args::parse();
    let answer = match command {
        Command::Ls(options) => ls::run(&scope, &options),
        Command::Show(options) => show::run(&scope, &options),
        Command::Who(options) => who::run(&scope, &options),
        Command::Top(options) => top::run(&scope, &options),
        Command::Sweep(options) => sweep::run(&scope, &options),
        Command::Completions(options) => generate::completions(&options),
        Command::Man(options) => generate::man(&options),
    };
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => return report(&*error).into(),
    };
    // If the notice cannot be written, the exit code still reports its reason.
    let _ = io::stderr().write_all(answer.notice.as_bytes());
    match print(&answer.text) {
        Ok(()) => answer.code.into(),
        Err(error) => report(&error).into(),
    }
}

/// Prints an error, and returns the exit code for it.
fn report(error: &dyn Error) -> Code {
    let message = text::visible(&text::with_causes(error));
    // If this cannot be written either, the exit code still reports the error.
    let _ = writeln!(io::stderr(), "shm-pool: {message}");
    Code::Error
}

/// Prints a text. A reader that closes its end early, such as `head`, is no error.
fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let mut written = out.write_all(text.as_bytes());
    if written.is_ok() {
        written = out.flush();
    }
    match written {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}
