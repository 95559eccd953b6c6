//! iceoryx2: a publisher of byte slices, which loans a sample and drops it unsent, or sends it to
//! subscribers in this thread.

use crate::child;
use crate::fanout::{Fanout, CAPACITY};
use crate::source::{text, Made, Source};
use iceoryx2::config::Config;
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::port::LoanError;
use iceoryx2::prelude::*;
use iceoryx2::sample_mut::SampleMut;
use iceoryx2::sample_mut_uninit::SampleMutUninit;
use iceoryx2::service::port_factory::publish_subscribe::PortFactory;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path as StdPath;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::OnceLock;

/// A service of byte slices.
type ByteService = PortFactory<ipc::Service, [u8], ()>;

static CONFIG: OnceLock<Config> = OnceLock::new();
static SERVICES: AtomicUsize = AtomicUsize::new(0);

/// Silences iceoryx2, and separates it from the machine's other iceoryx2 processes: its files go to
/// `scratch`.
pub(crate) fn start(scratch: &StdPath) -> Made<()> {
    set_log_level(LogLevel::Fatal);
    let mut config = Config::default();
    config
        .global
        .set_root_path(&Path::new(scratch.as_os_str().as_bytes()).map_err(text)?);
    config.global.prefix = FileName::new(child::prefix(scratch).as_bytes()).map_err(text)?;
    if CONFIG.set(config).is_err() {
        return Err("started twice".to_owned());
    }
    Ok(())
}

pub(crate) struct Iceoryx {
    publisher: Publisher<ipc::Service, [u8], ()>,
    /// A node has to outlive its ports.
    _node: Node<ipc::Service>,
}

/// A publisher of messages of up to `max_len` bytes, of which at most `live` exist at a time. The
/// service is as small as possible, because iceoryx2 allocates samples for all its subscribers in
/// advance.
pub(crate) fn iceoryx(max_len: usize, live: usize) -> Made<Iceoryx> {
    let (node, service) = service(1, 1)?;
    let publisher = service
        .publisher_builder()
        .initial_max_slice_len(max_len)
        .max_loaned_samples(live);
    Ok(Iceoryx {
        publisher: publisher.create().map_err(text)?,
        _node: node,
    })
}

/// A service of byte slices, for one publisher and `subscribers` subscribers, which may lag
/// `buffered` messages behind.
fn service(subscribers: usize, buffered: usize) -> Made<(Node<ipc::Service>, ByteService)> {
    let config = CONFIG.get().ok_or("not started")?;
    let node = NodeBuilder::new()
        .config(config)
        .create::<ipc::Service>()
        .map_err(text)?;
    let name = format!("peers/{}", SERVICES.fetch_add(1, Ordering::Relaxed));
    let service = node
        .service_builder(&name.as_str().try_into().map_err(text)?)
        .publish_subscribe::<[u8]>()
        .max_publishers(1)
        .max_subscribers(subscribers)
        .subscriber_max_buffer_size(buffered)
        .subscriber_max_borrowed_samples(1)
        .history_size(0)
        .create()
        .map_err(text)?;
    Ok((node, service))
}

/// A publisher and its subscribers, in one thread.
pub(crate) struct IceoryxFanout {
    publisher: Publisher<ipc::Service, [u8], ()>,
    subscribers: Vec<Subscriber<ipc::Service, [u8], ()>>,
    /// A node has to outlive its ports.
    _node: Node<ipc::Service>,
}

pub(crate) fn fanout(max_len: usize, subscribers: usize) -> Made<IceoryxFanout> {
    let (node, service) = service(subscribers, CAPACITY)?;
    let publisher = service
        .publisher_builder()
        .initial_max_slice_len(max_len)
        .max_loaned_samples(1);
    let publisher = publisher.create().map_err(text)?;
    let mut ports = Vec::new();
    for _ in 0..subscribers {
        ports.push(service.subscriber_builder().create().map_err(text)?);
    }
    Ok(IceoryxFanout {
        publisher,
        subscribers: ports,
        _node: node,
    })
}

/// Opens the service of a publisher that restarts. Creating the node removes a killed predecessor.
fn restarted(name: &str) -> Made<(Node<ipc::Service>, ByteService)> {
    let config = CONFIG.get().ok_or("not started")?;
    let node = NodeBuilder::new()
        .config(config)
        .create::<ipc::Service>()
        .map_err(text)?;
    let service = node
        .service_builder(&name.try_into().map_err(text)?)
        .publish_subscribe::<[u8]>();
    let service = service.open_or_create().map_err(text)?;
    Ok((node, service))
}

pub(crate) fn send_first(name: &str, bytes: &[u8]) -> Made<impl Sized> {
    let (node, service) = restarted(name)?;
    let publisher = service
        .publisher_builder()
        .initial_max_slice_len(bytes.len())
        .create()
        .map_err(text)?;
    let sample = publisher.loan_slice_uninit(bytes.len()).map_err(text)?;
    sample.write_from_slice(bytes).send().map_err(text)?;
    Ok((publisher, service, node))
}

/// Receives the first message of each publisher.
pub(crate) fn first_of(name: &str) -> Made<impl Fn() -> Made<Option<u64>>> {
    let (node, service) = restarted(name)?;
    let subscriber = service.subscriber_builder().create().map_err(text)?;
    Ok(move || {
        let _node = &node;
        let Some(sample) = subscriber.receive().map_err(text)? else {
            return Ok(None);
        };
        let bytes = sample[..].try_into().map_err(text)?;
        Ok(Some(u64::from_le_bytes(bytes)))
    })
}

impl Fanout for IceoryxFanout {
    #[inline]
    fn send(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Made<()> {
        let sample = self.publisher.loan_slice_uninit(len).map_err(text)?;
        // SAFETY: a sample is shared memory, zero at first, and then what earlier messages have
        // left: each of its bytes has a value. (Writing all of them would hide what a send costs.)
        let mut sample = unsafe { sample.assume_init() };
        fill(sample.payload_mut());
        sample.send().map_err(text)?;
        Ok(())
    }

    #[inline]
    fn receive(&mut self, mut check: impl FnMut(&[u8]) -> bool) -> Made<usize> {
        let mut received = 0;
        for subscriber in &self.subscribers {
            if let Some(sample) = subscriber.receive().map_err(text)? {
                received += usize::from(check(&sample));
            }
        }
        Ok(received)
    }
}

impl Source for Iceoryx {
    type Message = SampleMutUninit<ipc::Service, [MaybeUninit<u8>], ()>;
    type Filled = SampleMut<ipc::Service, [u8], ()>;
    type Error = LoanError;

    #[inline]
    fn take(&self, len: usize) -> Result<Self::Message, LoanError> {
        self.publisher.loan_slice_uninit(len)
    }

    fn fill(mut message: Self::Message, byte: u8) -> Self::Filled {
        message.payload_mut().fill(MaybeUninit::new(byte));
        // SAFETY: every byte has just been written.
        unsafe { message.assume_init() }
    }

    fn account(&self) -> String {
        format!(
            "samples of {:.1} MB",
            self.publisher.initial_max_slice_len() as f64 / 1e6
        )
    }
}
