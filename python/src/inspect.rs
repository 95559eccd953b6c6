//! `Inspector`, whose reports are dataclasses written in Python (`package/shm_pool/inspect.py`).

use crate::errors::IntoPyErr;
use crate::exit::detach;
use crate::lock::lock;
use crate::names::{self, In};
use crate::options::{Choice, MessageType};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use shm_pool::inspect::{
    ChannelReport, ClassReport, DamagedReceiver, ObjectState, PeerReport, Process, ProviderReport,
    ReceiverReport, RemovedName, Report, SegmentReport,
};
use shm_pool::Swept;
use std::sync::Mutex;
use std::time::Duration;

/// Shows the providers, clients and channels of this user's processes, and what dead ones have left, as
/// ``shm-pool ls`` and ``shm-pool who`` do: those of one ``namespace``, or by default of all in /dev/shm.
///
/// >>> import shm_pool
/// >>> from shm_pool.inspect import Inspector
/// >>> provider = shm_pool.Provider(namespace="docs-inspect")
/// >>> camera = shm_pool.Publisher(provider, "camera")
/// >>> report = Inspector("docs-inspect").report()
/// >>> [channel.name for channel in report.channels]
/// ['camera']
/// >>> report.channels[0].provider == report.providers[0].id == provider.id
/// True
///
/// Looking changes nothing, and works while a process is stopped or dead. Processes in another PID namespace are not
/// shown.
#[pyclass(frozen, module = "shm_pool.inspect")]
pub(crate) struct Inspector(Mutex<shm_pool::inspect::Inspector>);

#[pymethods]
impl Inspector {
    #[new]
    #[pyo3(signature = (namespace=None))]
    fn new(namespace: Option<In<'_>>) -> PyResult<Self> {
        let mut inspector = shm_pool::inspect::Inspector::new();
        if namespace.is_some() {
            inspector = inspector.namespace(&names::namespace(namespace)?);
        }
        Ok(Self(Mutex::new(inspector)))
    }

    /// Looks once. The inspector remembers which messages it has seen, for :attr:`PeerReport.oldest_lease` and
    /// :attr:`ReceiverReport.oldest_borrowed`.
    ///
    /// Raises :class:`SystemCallFailed` if the directory or /proc cannot be read. An object that cannot be read is
    /// listed with the ``problem``.
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let report = detach(py, || {
            let mut inspector = lock(&self.0);
            inspector.report()
        });
        let module = py.import("shm_pool.inspect")?;
        whole(&module, &report.map_err(IntoPyErr::into_py)?)
    }
}

/// Makes a dataclass of the module.
macro_rules! make {
    ($module:expr, $class:ident { $($field:ident: $value:expr),* $(,)? }) => {{
        let fields = PyDict::new($module.py());
        $(fields.set_item(stringify!($field), $value)?;)*
        $module.getattr(stringify!($class))?.call((), Some(&fields))
    }};
}

type Module<'py> = Bound<'py, PyModule>;
type Made<'py> = PyResult<Bound<'py, PyAny>>;

/// Makes a dataclass of each item.
fn each<'py, T>(
    module: &Module<'py>,
    items: &[T],
    make: fn(&Module<'py>, &T) -> Made<'py>,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let mut made = Vec::new();
    for item in items {
        made.push(make(module, item)?);
    }
    Ok(made)
}

fn whole<'py>(module: &Module<'py>, report: &Report) -> Made<'py> {
    make!(
        module,
        Report {
            directory: report.directory.to_string_lossy(),
            free_bytes: report.free_bytes,
            providers: each(module, &report.providers, provider)?,
            channels: each(module, &report.channels, channel)?,
            others: report.others,
            hidden_processes: report.hidden_processes,
            orphans: orphans(module, &report.orphans())?,
            removed: each(module, &report.removed, removed)?,
        }
    )
}

fn removed<'py>(module: &Module<'py>, removed: &RemovedName) -> Made<'py> {
    make!(
        module,
        RemovedName {
            path: removed.path.to_string_lossy(),
            process: process(module, Some(&removed.process))?,
        }
    )
}

fn provider<'py>(module: &Module<'py>, provider: &ProviderReport) -> Made<'py> {
    make!(
        module,
        ProviderReport {
            prefix: &provider.prefix,
            id: u64::from(provider.id),
            state: state(module, &provider.state)?,
            problem: problem(&provider.state),
            owner: process(module, provider.owner.as_ref())?,
            bytes_held: provider.bytes_held,
            bytes_mapped: provider.bytes_mapped,
            segments: each(module, &provider.segments, segment)?,
            max_shared: provider.max_shared,
            bytes_leased: provider.bytes_leased,
            leased: each(module, &provider.leased, class)?,
            bytes_borrowed: provider.bytes_borrowed,
            borrowed: each(module, &provider.borrowed, class)?,
            peers: each(module, &provider.peers, peer)?,
            is_orphan: provider.orphans.objects > 0,
            orphans: orphans(module, &provider.orphans)?,
        }
    )
}

fn segment<'py>(module: &Module<'py>, segment: &SegmentReport) -> Made<'py> {
    let mut mapped_by = Vec::new();
    for mapping in &segment.mapped_by {
        mapped_by.push(process(module, Some(mapping))?);
    }
    make!(
        module,
        SegmentReport {
            serial: segment.serial,
            len: segment.len,
            bytes_held: segment.bytes_held,
            mapped_by: mapped_by,
        }
    )
}

fn class<'py>(module: &Module<'py>, class: &ClassReport) -> Made<'py> {
    make!(
        module,
        ClassReport {
            size: class.size,
            messages: class.messages,
            bytes: class.bytes,
        }
    )
}

fn peer<'py>(module: &Module<'py>, peer: &PeerReport) -> Made<'py> {
    make!(
        module,
        PeerReport {
            slot: peer.slot,
            id: peer.id.map(|id| id.to_bytes()),
            is_refused: peer.is_refused,
            is_alive: peer.is_alive,
            process: process(module, peer.process.as_ref())?,
            messages: peer.messages,
            bytes: peer.bytes,
            views: peer.views,
            grants: peer.grants,
            oldest_lease: seconds(peer.oldest_lease),
        }
    )
}

fn channel<'py>(module: &Module<'py>, channel: &ChannelReport) -> Made<'py> {
    make!(
        module,
        ChannelReport {
            prefix: &channel.prefix,
            name: &channel.name,
            provider: channel.provider.map(u64::from),
            state: state(module, &channel.state)?,
            problem: problem(&channel.state),
            sender: process(module, channel.sender.as_ref())?,
            is_publisher: channel.is_publisher,
            message_type: channel.message_type.as_ref().map(MessageType::of),
            receivers: each(module, &channel.receivers, receiver)?,
            damaged: each(module, &channel.damaged, damaged)?,
            is_orphan: channel.is_orphan,
            orphans: orphans(module, &channel.orphans)?,
        }
    )
}

fn receiver<'py>(module: &Module<'py>, receiver: &ReceiverReport) -> Made<'py> {
    make!(
        module,
        ReceiverReport {
            id: receiver.id.map(u64::from),
            is_alive: receiver.is_alive,
            process: process(module, receiver.process.as_ref())?,
            on_full: Choice(receiver.on_full),
            capacity: receiver.capacity,
            max_borrowed: receiver.max_borrowed,
            borrowed: receiver.borrowed,
            bytes_borrowed: receiver.bytes_borrowed,
            oldest_borrowed: seconds(receiver.oldest_borrowed),
            sent: receiver.sent,
            waiting: receiver.waiting,
            missed: receiver.missed.total(),
            is_connected: receiver.is_connected,
            is_evicted: receiver.is_evicted,
            bytes_held: receiver.bytes_held,
            is_orphan: receiver.is_orphan,
        }
    )
}

fn damaged<'py>(module: &Module<'py>, damaged: &DamagedReceiver) -> Made<'py> {
    make!(
        module,
        DamagedReceiver {
            id: u64::from(damaged.id),
            reason: &damaged.reason,
            is_orphan: damaged.is_orphan,
        }
    )
}

fn process<'py>(
    module: &Module<'py>,
    process: Option<&Process>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some(process) = process else {
        return Ok(None);
    };
    let made = make!(
        module,
        Process {
            id: process.id,
            command: &process.command,
            is_stopped: process.is_stopped,
        }
    )?;
    Ok(Some(made))
}

fn orphans<'py>(module: &Module<'py>, swept: &Swept) -> Made<'py> {
    make!(
        module,
        Orphans {
            objects: swept.objects,
            bytes: swept.bytes,
        }
    )
}

fn state<'py>(module: &Module<'py>, state: &ObjectState) -> Made<'py> {
    let name = match state {
        ObjectState::Alive => "alive",
        ObjectState::Starting => "starting",
        ObjectState::Dead => "dead",
        // The enum is not exhaustive.
        _ => "unusable",
    };
    module.getattr("ObjectState")?.call1((name,))
}

/// Returns why an object is unusable.
fn problem(state: &ObjectState) -> Option<&str> {
    match state {
        ObjectState::Unusable(problem) => Some(problem),
        _ => None,
    }
}

fn seconds(duration: Option<Duration>) -> Option<f64> {
    duration.map(|duration| duration.as_secs_f64())
}
