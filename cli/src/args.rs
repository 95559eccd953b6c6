//! The command line.

use clap::{Parser, Subcommand};
use shm_pool::inspect::Inspector;
use shm_pool::{BuildError, Namespace};
use std::io;
use std::path::{self, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

const EXIT_CODES: &str = "\
Exit codes:
  0  all is well
  1  an error: what was asked for could not be done or looked at
  2  the command line is wrong
  3  show: there is no such provider or channel
  4  ls --check: dead owners have left objects that a sweep would remove";

/// Who holds what in the shared memory of shm-pool's providers, and a way to put it right.
///
/// Looking disturbs no process: it takes no lock and no peer's place, writes nothing, and works while
/// processes are stopped or dead.
#[derive(Parser)]
#[command(name = "shm-pool", version, after_help = EXIT_CODES)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) scope: Scope,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What is looked at, and for whom.
#[derive(clap::Args)]
pub(crate) struct Scope {
    /// Only objects with this name prefix [default: all]
    #[arg(long, global = true, value_name = "PREFIX", value_parser = prefix)]
    prefix: Option<String>,
    /// Where the objects are
    #[arg(long, global = true, value_name = "PATH", default_value = "/dev/shm", value_parser = absolute)]
    pub(crate) directory: PathBuf,
    /// Print JSON, for programs: ids are hexadecimal strings, sizes are bytes
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Providers and channels, one line each
    Ls(Ls),
    /// All there is to see of one provider or channel
    Show(Show),
    /// Which process holds how much
    Who(Who),
    /// The same on a screen that refreshes, with rates; q quits
    Top(Top),
    /// Remove what dead owners have left; without --yes, only say what that would be
    Sweep(Sweep),
}

#[derive(clap::Args)]
pub(crate) struct Ls {
    /// Exit with 4 if dead owners have left anything
    #[arg(long)]
    pub(crate) check: bool,
}

#[derive(clap::Args)]
pub(crate) struct Show {
    /// A provider's id or a channel's name; either may follow its prefix and a dot
    #[arg(value_name = "ID or NAME")]
    pub(crate) what: String,
}

#[derive(clap::Args)]
pub(crate) struct Who {
    /// Look twice, so long apart, to tell messages that are kept from those that pass; 0s looks once
    #[arg(long = "for", value_name = "TIME", default_value = "1s", value_parser = humantime::parse_duration)]
    pub(crate) time: Duration,
}

#[derive(clap::Args)]
pub(crate) struct Top {
    /// Time from one look to the next
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    pub(crate) interval: Duration,
    /// Print one screen as text, as also happens where there is no terminal
    #[arg(long)]
    pub(crate) once: bool,
}

#[derive(clap::Args)]
pub(crate) struct Sweep {
    /// Do it
    #[arg(long)]
    pub(crate) yes: bool,
}

/// The exit code: see [`EXIT_CODES`]. clap reports wrong usage.
#[derive(Clone, Copy)]
pub(crate) enum Code {
    Fine = 0,
    Error = 1,
    NotThere = 3,
    Orphans = 4,
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        (code as u8).into()
    }
}

impl Scope {
    pub(crate) fn inspector(&self) -> Inspector {
        match &self.prefix {
            // `prefix` and `absolute` have checked them.
            Some(prefix) => match self.namespace(prefix) {
                Ok(namespace) => Inspector::new().namespace(&namespace),
                Err(_) => Inspector::in_directory(&self.directory),
            },
            None => Inspector::in_directory(&self.directory),
        }
    }

    pub(crate) fn namespace(&self, prefix: &str) -> Result<Namespace, BuildError> {
        Namespace::new(prefix)?.in_directory(&self.directory)
    }
}

/// Accepts the prefixes that the library accepts: no object has any other.
fn prefix(text: &str) -> Result<String, BuildError> {
    Namespace::new(text).map(|_| text.to_owned())
}

/// Makes a path absolute, as providers require; a relative one starts at the working directory.
fn absolute(path: &str) -> io::Result<PathBuf> {
    path::absolute(path)
}

/// Looking more often than this would keep the machine busy with nothing else.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

fn interval(text: &str) -> Result<Duration, String> {
    let interval = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if !(SHORTEST..=LONGEST).contains(&interval) {
        let [least, most] = [SHORTEST, LONGEST].map(humantime::format_duration);
        return Err(format!("from {least} to {most}"));
    }
    Ok(interval)
}
