//! What both sides read and write: the descriptor, the records with their leases, the peers' slots, the control object.

pub(crate) mod control;
pub(crate) mod dead;
pub(crate) mod descriptor;
pub(crate) mod ids;
pub(crate) mod record;
pub(crate) mod slot;
