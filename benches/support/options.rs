//! Options that all programs have.

use std::path::PathBuf;

/// See the help texts.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Common {
    /// A few messages of each kind, to see that they come: prints no figures
    #[arg(long)]
    pub(crate) quick: bool,
    /// How often each row is measured, all in turn; medians and ranges are over these
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// Write the percentile curves to this SVG file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// `cargo bench` says so
    #[arg(long, hide = true)]
    pub(crate) bench: bool,
}
