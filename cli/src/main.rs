//! The command `shm-pool`: who holds what in shared memory, and a way to put it right.
//!
//! It shows what [`shm_pool::inspect`] finds, which looks without disturbing anybody. The one command
//! that changes something is `sweep --yes`, and that only removes what dead owners have left.
//!
//! | module | for |
//! |---|---|
//! | [`args`] | the command line, and exit codes |
//! | [`ls`], [`show`], [`who`], [`top`], [`sweep`] | the commands |
//! | [`text`], [`json`] | how people and programs are told |
//! | [`unseen`] | what cannot be seen from here |

#![forbid(unsafe_code)]

mod args;
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

/// What goes wrong ends the program with a message and [`Code::Error`].
type Fallible<T> = Result<T, Box<dyn Error>>;

/// What a command has to say, all of it, and how it ends.
struct Answer {
    text: String,
    code: Code,
}

impl Answer {
    fn fine(text: String) -> Self {
        Self { text, code: Code::Fine }
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
    };
    match answer.and_then(|answer| print(&answer)) {
        Ok(code) => code.into(),
        Err(error) => {
            // If this cannot be written either, the exit code still tells.
            let _ = writeln!(io::stderr(), "shm-pool: {error}");
            Code::Error.into()
        }
    }
}

/// Whoever reads may have heard enough, as `head` does: that is no error.
fn print(answer: &Answer) -> Fallible<Code> {
    let mut out = io::stdout().lock();
    match out.write_all(answer.text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(answer.code),
    }
}
