//! What both sides read and write: descriptors, records with their leases, peer slots, the control
//! object with its memory bell, and what the names of objects say.

pub(crate) mod control;
pub(crate) mod dead;
pub(crate) mod descriptor;
pub(crate) mod ids;
pub(crate) mod memory_bell;
pub(crate) mod names;
pub(crate) mod record;
pub(crate) mod slot;
