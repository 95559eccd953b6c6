//! A lease under construction: released on drop, until a view takes it over.

#![forbid(unsafe_code)]

use crate::peer::control::PeerControl;
use crate::peer::error::AttachError;
use crate::protocol::descriptor::Descriptor;
use crate::protocol::record::{Place, Refused, MAX_LEASES};

/// A right to read a chunk, released on drop.
pub(crate) struct Lease<'a> {
    control: &'a PeerControl,
    record: u32,
    /// The message's length according to the descriptor, which counts against the quota.
    len: u64,
    origin: Origin,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Lease,
    /// Taken from a grant: an attach that fails puts the grant back.
    TakenUp,
}

impl<'a> Lease<'a> {
    /// Takes the lease that a descriptor names: a new one, or the granted one.
    #[inline]
    pub(crate) fn take(control: &'a PeerControl, descriptor: &Descriptor) -> Result<(Self, Place), AttachError> {
        let Some(record) = control.record(descriptor.record) else {
            let (provider, records) = (descriptor.provider, control.records());
            return Err(AttachError::NoSuchRecord { provider, record: descriptor.record, records });
        };
        control.check_slot()?;
        let (slot, generation) = (control.slot(), descriptor.generation);
        let len = descriptor.len;
        control.hold(len)?;
        let (origin, taken) = match descriptor.granted {
            None => (Origin::Lease, record.attach(slot, generation)),
            Some(granted) if usize::from(granted) != slot => {
                control.let_go(len);
                return Err(AttachError::OtherPeer { slot: granted, own: slot as u8 });
            }
            Some(_) => (Origin::TakenUp, record.accept(slot, generation)),
        };
        let refused = match taken {
            Ok(place) => return Ok((Lease { control, record: descriptor.record, len, origin }, place)),
            Err(refused) => refused,
        };
        control.let_go(len);
        match refused {
            Refused::Stale => {
                // A grant may have been taken up and put back.
                control.take_back_if_refused(record);
                // The lease may briefly have kept an owner from recycling the chunk.
                control.ring();
                Err(AttachError::Stale)
            }
            Refused::Full => Err(AttachError::TooManyLeases { max: MAX_LEASES as usize }),
            Refused::NotGranted => Err(AttachError::NotGranted),
        }
    }

    /// Moves the lease to another reference to the same control object.
    pub(crate) fn moved_to(self, control: &PeerControl) -> Lease<'_> {
        let moved = Lease { control, record: self.record, len: self.len, origin: self.origin };
        std::mem::forget(self);
        moved
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        match self.origin {
            Origin::Lease => self.control.release(self.record, self.len),
            Origin::TakenUp => self.control.put_back(self.record, self.len),
        }
    }
}
