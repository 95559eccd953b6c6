//! The Python module `shm_pool._native`: shm-pool's public items as Python classes.
//!
//! | file | contents |
//! |---|---|
//! | `memory.rs` | `Buffer` and `Message`: shared memory by the buffer protocol |
//! | `provider.rs` | `Provider`, `Reservation`, `Stats`; `Client` |
//! | `channel.rs` | `Sender`, `Publisher`, `Receiver`, `Subscriber` |
//! | `wait.rs` | waiting without the GIL, and signals |
//! | `exit.rs` | threads that wait when Python exits |
//! | `fork.rs` | inherited handles |
//! | `errors.rs` | the crate's errors as exceptions |
//!
//! The classes, their docs and their types as users see them are in `package/shm_pool`.

mod channel;
mod errors;
mod exit;
mod fork;
mod memory;
mod provider;
mod wait;

use pyo3::prelude::*;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    fork::watch()?;
    exit::watch(module)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("MAX_INLINE", shm_pool::channel::MAX_INLINE)?;
    module.add_class::<memory::Buffer>()?;
    module.add_class::<memory::Message>()?;
    module.add_class::<provider::Provider>()?;
    module.add_class::<provider::Reservation>()?;
    module.add_class::<provider::Stats>()?;
    module.add_class::<provider::Client>()?;
    module.add_class::<channel::OnFull>()?;
    module.add_class::<channel::Sender>()?;
    module.add_class::<channel::Publisher>()?;
    module.add_class::<channel::Sent>()?;
    module.add_class::<channel::ReceiverState>()?;
    module.add_class::<channel::OnEnd>()?;
    module.add_class::<channel::ReceivingEnd>()?;
    module.add_class::<channel::Receiver>()?;
    module.add_class::<channel::Subscriber>()
}
