//! What owner and peers read and write.

pub(crate) mod control;
pub(crate) mod descriptor;
pub(crate) mod ids;
pub(crate) mod memory_doorbell;
pub(crate) mod readers;
pub(crate) mod record;
pub(crate) mod slot;
pub(crate) mod sweep;
