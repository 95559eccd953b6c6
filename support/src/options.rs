//! Options of benches.

use crate::machine::Cores;
use crate::Fallible;

/// Options of all benches.
#[derive(Clone, Debug, clap::Args)]
pub struct Quick {
    /// Send a few messages of each kind, to check that they arrive: prints no figures
    #[arg(long)]
    pub quick: bool,
    /// Passed by `cargo bench`
    #[arg(long, hide = true)]
    pub bench: bool,
}

/// Options of benches that measure rows in rounds.
#[derive(Clone, Debug, clap::Args)]
pub struct Common {
    /// Options of all benches.
    #[command(flatten)]
    pub quick: Quick,
    /// How often each row is measured, all in turn; medians and ranges are over these
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
}

impl Common {
    /// Returns two cores, if there are; figures need them.
    pub fn cores(&self) -> Fallible<Cores> {
        let cores = Cores::choose()?;
        if !self.quick.quick {
            cores.require_two()?;
        }
        Ok(cores)
    }
}
