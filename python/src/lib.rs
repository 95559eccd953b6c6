//! The Python module `shm_pool._native`: shm-pool's public items as Python classes.
//!
//! | file | contents |
//! |---|---|
//! | `memory.rs`, `dlpack.rs` | `Buffer` and `Message`: shared memory by the buffer protocol and DLPack |
//! | `provider.rs` | `Provider`, `Reservation`, `Stats`; `Client` |
//! | `names.rs` | `Namespace`, `ChannelInfo`, `Watcher` |
//! | `sending.rs` | `Sender`, `Publisher` |
//! | `receiving.rs` | `Receiver`, `Subscriber`, `wait_any` |
//! | `end.rs` | what the ends have in common: threads, tasks, closing |
//! | `inspect.rs` | `Inspector` |
//! | `options.rs` | keyword arguments, enums, `MessageType` |
//! | `pending.rs` | waiting under asyncio |
//! | `wait.rs` | waiting without the GIL, and signals |
//! | `lock.rs` | locks |
//! | `exit.rs` | threads that wait when Python exits |
//! | `fork.rs` | inherited handles |
//! | `errors.rs` | the crate's errors as exceptions |
//!
//! The classes, their docs and their types as users see them are in `package/shm_pool`.

mod dlpack;
mod end;
mod errors;
mod exit;
mod fork;
mod inspect;
mod lock;
mod memory;
mod names;
mod options;
mod pending;
mod provider;
mod receiving;
mod sending;
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
    module.add_class::<names::Namespace>()?;
    module.add_class::<names::Swept>()?;
    module.add_class::<names::ChannelInfo>()?;
    module.add_class::<names::ChannelChange>()?;
    module.add_class::<names::Watcher>()?;
    module.add_class::<inspect::Inspector>()?;
    module.add_class::<options::MessageType>()?;
    module.add_class::<pending::Pending>()?;
    module.add_class::<sending::SendingEnd>()?;
    module.add_class::<sending::Sender>()?;
    module.add_class::<sending::Publisher>()?;
    module.add_class::<sending::Sent>()?;
    module.add_class::<sending::ReceiverState>()?;
    module.add_class::<receiving::ReceivingEnd>()?;
    module.add_class::<receiving::Receiver>()?;
    module.add_class::<receiving::Subscriber>()?;
    module.add_class::<receiving::ConnectionChange>()?;
    module.add_class::<receiving::Missed>()?;
    module.add_function(wrap_pyfunction!(receiving::wait_any, module)?)
}
