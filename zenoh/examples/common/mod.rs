//! The arguments that zenoh's own examples have in common, and the memory of the messages.

use clap::{Args, ValueEnum};
use zenoh::config::Config;
use zenoh::Result;

/// Where a publisher's messages are allocated.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Memory {
    /// zenoh's own provider, as a stock program has it.
    Stock,
    /// zenoh's provider on the pool.
    Provider,
    /// A pool of whole zenoh buffers.
    Buffers,
}

#[derive(Args, Debug)]
pub(crate) struct CommonArgs {
    /// A configuration file.
    #[arg(short, long)]
    config: Option<String>,
    /// Sets KEY of the configuration to VALUE, which is JSON5. May be repeated.
    #[arg(long, value_name = "KEY:VALUE")]
    cfg: Vec<String>,
    /// The mode of the session: peer, client or router.
    #[arg(short, long)]
    mode: Option<String>,
    /// An endpoint to connect to. May be repeated.
    #[arg(short = 'e', long)]
    connect: Vec<String>,
    /// An endpoint to listen at. May be repeated.
    #[arg(short, long)]
    listen: Vec<String>,
    /// Does not look for other zenoh programs by multicast.
    #[arg(long)]
    no_multicast_scouting: bool,
}

impl CommonArgs {
    pub(crate) fn config(&self) -> Result<Config> {
        let mut config = match &self.config {
            Some(path) => Config::from_file(path)?,
            None => Config::default(),
        };
        if let Some(mode) = &self.mode {
            config.insert_json5("mode", &format!("{mode:?}"))?;
        }
        if !self.connect.is_empty() {
            config.insert_json5("connect/endpoints", &format!("{:?}", self.connect))?;
        }
        if !self.listen.is_empty() {
            config.insert_json5("listen/endpoints", &format!("{:?}", self.listen))?;
        }
        if self.no_multicast_scouting {
            config.insert_json5("scouting/multicast/enabled", "false")?;
        }
        for setting in &self.cfg {
            let (key, value) = setting.split_once(':').ok_or("--cfg needs KEY:VALUE")?;
            config.insert_json5(key, value)?;
        }
        Ok(config)
    }
}
