//! The protocol between owner and peers: descriptors, records with their leases, peer slots, the
//! control object with its memory bell, object names, and the sweep.

pub(crate) mod control;
pub(crate) mod descriptor;
pub(crate) mod ids;
pub(crate) mod memory_bell;
pub(crate) mod record;
pub(crate) mod slot;
pub(crate) mod sweep;
