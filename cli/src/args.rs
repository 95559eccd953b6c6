//! The command line.

use clap::{Parser, Subcommand};
use clap_complete::Shell;
use shm_pool::inspect::Inspector;
use shm_pool::{BuildError, Namespace};
use std::io;
use std::path::{self, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

const EXIT_CODES: &str = "\
Exit codes:
  0  success
  1  an error: the request failed
  2  wrong usage
  3  show: no such provider or channel
  4  ls --check: dead owners have left objects that a sweep would remove";

/// Show which processes hold the shared memory of shm-pool's providers, and clean up after dead
/// ones.
///
/// Inspection has no side effects: it takes no lock and no peer slot, writes nothing, and works while
/// processes are stopped or dead. Only `sweep --yes` removes anything.
#[derive(Parser)]
#[command(name = "shm-pool", version, after_help = EXIT_CODES)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) scope: Scope,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Which objects a command is about, and the form of its output.
#[derive(clap::Args)]
pub(crate) struct Scope {
    /// Only consider objects with this name prefix [default: all]
    #[arg(long, global = true, value_name = "PREFIX", value_parser = prefix)]
    prefix: Option<String>,
    /// The directory of the objects
    #[arg(
        long,
        global = true,
        value_name = "PATH",
        default_value = "/dev/shm",
        value_parser = absolute
    )]
    pub(crate) directory: PathBuf,
    /// Print JSON; ids are hexadecimal strings, and sizes are in bytes
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// List providers and channels, one per line
    Ls(Ls),
    /// Show everything about one provider or channel
    Show(Show),
    /// Show how much memory each process holds, and its channels
    Who(Who),
    /// Show all of this on a screen that refreshes, with rates; q quits
    Top(Top),
    /// List what dead owners have left, or remove it with --yes
    Sweep(Sweep),
    /// Print a completion script for a shell
    Completions(Completions),
    /// Write the manual pages into a directory
    Man(Man),
}

#[derive(clap::Args)]
pub(crate) struct Ls {
    /// Exit with code 4 if dead owners have left objects
    #[arg(long)]
    pub(crate) check: bool,
}

#[derive(clap::Args)]
pub(crate) struct Show {
    /// A provider's id or a channel's name, with or without its prefix and a dot
    #[arg(value_name = "ID or NAME")]
    pub(crate) what: String,
}

#[derive(clap::Args)]
pub(crate) struct Who {
    /// Take two samples this far apart, to tell held messages from passing ones; 0s takes only one
    #[arg(
        long = "for",
        value_name = "TIME",
        default_value = "1s",
        value_parser = humantime::parse_duration
    )]
    pub(crate) time: Duration,
}

#[derive(clap::Args)]
pub(crate) struct Top {
    /// The time between two samples
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    pub(crate) interval: Duration,
    /// Print one screen as text, which is the default without a terminal
    #[arg(long)]
    pub(crate) once: bool,
}

#[derive(clap::Args)]
pub(crate) struct Sweep {
    /// Actually remove the objects
    #[arg(long)]
    pub(crate) yes: bool,
}

#[derive(clap::Args)]
pub(crate) struct Completions {
    /// The shell that reads the script
    #[arg(value_name = "SHELL")]
    pub(crate) shell: Shell,
}

#[derive(clap::Args)]
pub(crate) struct Man {
    /// The directory, which is created if it does not exist, such as ~/.local/share/man/man1
    #[arg(value_name = "DIRECTORY")]
    pub(crate) into: PathBuf,
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
        if let Some(prefix) = &self.prefix {
            // Always `Ok`: `prefix` and `absolute` have checked both parts of the namespace.
            if let Ok(namespace) = self.namespace(prefix) {
                return Inspector::new().namespace(&namespace);
            }
        }
        Inspector::in_directory(&self.directory)
    }

    pub(crate) fn namespace(&self, prefix: &str) -> Result<Namespace, BuildError> {
        Namespace::new(prefix)?.in_directory(&self.directory)
    }
}

/// Accepts the prefixes that the library accepts: no object has any other.
fn prefix(text: &str) -> Result<String, BuildError> {
    Namespace::new(text)?;
    Ok(text.to_owned())
}

/// Makes a path absolute, as providers require; a relative one starts at the working directory.
fn absolute(path: &str) -> io::Result<PathBuf> {
    path::absolute(path)
}

/// Sampling more often than this would keep the machine busy with nothing else.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

fn interval(text: &str) -> Result<Duration, String> {
    let interval = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if !(SHORTEST..=LONGEST).contains(&interval) {
        let shortest = humantime::format_duration(SHORTEST);
        let longest = humantime::format_duration(LONGEST);
        return Err(format!("from {shortest} to {longest}"));
    }
    Ok(interval)
}
