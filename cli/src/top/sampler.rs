//! The last sample, and the rates since the one before.

use shm_pool::channel::ReceiverId;
use shm_pool::inspect::{ChannelReport, Inspector, Report};
use shm_pool::OsError;
use std::collections::BTreeMap;
use std::time::Instant;

/// How many messages were sent to each receiver, by prefix, channel and connection.
type Sent = BTreeMap<(String, String, Option<ReceiverId>), u64>;

/// Takes samples: it has the last one, and the counts of the one before.
pub(super) struct Sampler {
    inspector: Inspector,
    report: Report,
    taken_at: Instant,
    /// The time between the last two samples.
    seconds: f64,
    before: Sent,
}

impl Sampler {
    pub(super) fn new(mut inspector: Inspector) -> Result<Self, OsError> {
        let report = inspector.report()?;
        let before = sent(&report);
        Ok(Self {
            inspector,
            report,
            taken_at: Instant::now(),
            seconds: 0.0,
            before,
        })
    }

    pub(super) fn sample(&mut self) -> Result<(), OsError> {
        let report = self.inspector.report()?;
        let now = Instant::now();
        self.before = sent(&self.report);
        self.seconds = (now - self.taken_at).as_secs_f64();
        self.report = report;
        self.taken_at = now;
        Ok(())
    }

    pub(super) fn report(&self) -> &Report {
        &self.report
    }

    /// Returns the messages per second between the last two samples, by the receiver that got the
    /// most: a message to several receivers counts once. A receiver that joined in between counts
    /// from the next sample on.
    pub(super) fn rate(&self, channel: &ChannelReport) -> f64 {
        if self.seconds == 0.0 {
            return 0.0;
        }
        let mut most = 0;
        for receiver in &channel.receivers {
            if let Some(before) = self.before.get(&key(channel, receiver.id)) {
                most = most.max(receiver.sent.saturating_sub(*before));
            }
        }
        most as f64 / self.seconds
    }
}

fn key(
    channel: &ChannelReport,
    connection: Option<ReceiverId>,
) -> (String, String, Option<ReceiverId>) {
    (channel.prefix.clone(), channel.name.clone(), connection)
}

fn sent(report: &Report) -> Sent {
    let mut sent = Sent::new();
    for channel in &report.channels {
        for receiver in &channel.receivers {
            sent.insert(key(channel, receiver.id), receiver.sent);
        }
    }
    sent
}

#[cfg(test)]
mod tests {
    use super::*;
    use shm_pool::channel::{OnEnd, Publisher, Subscriber};
    use shm_pool::{Namespace, Provider};

    /// The rate covers the last two samples only: it drops when a channel goes idle, and excludes
    /// messages sent before the first sample.
    #[test]
    fn rate_of_last_two_samples() {
        let prefix = format!("cli-{}-rates", std::process::id());
        let namespace = Namespace::new(&prefix).unwrap();
        let provider = Provider::builder().namespace(&namespace).build().unwrap();
        let mut publisher = Publisher::builder()
            .max_subscribers(2)
            .capacity(16)
            .create(&provider, "c")
            .unwrap();
        let mut send = |count| {
            for _ in 0..count {
                assert!(publisher.try_send_copy(b"message").is_ok());
            }
        };
        let _one = subscribe(&namespace);
        send(3);
        let mut sampler = Sampler::new(Inspector::new().namespace(&namespace)).unwrap();
        assert_eq!(sent_between(&sampler), 0.0);

        send(5);
        sampler.sample().unwrap();
        assert_eq!(sent_between(&sampler), 5.0);
        sampler.sample().unwrap();
        assert_eq!(sent_between(&sampler), 0.0);

        // A receiver that joins counts from the next sample on, and a message to two receivers
        // counts once.
        let _other = subscribe(&namespace);
        send(2);
        sampler.sample().unwrap();
        assert_eq!(sent_between(&sampler), 2.0);
        send(4);
        sampler.sample().unwrap();
        assert_eq!(sent_between(&sampler), 4.0);
    }

    fn subscribe(namespace: &Namespace) -> Subscriber {
        Subscriber::builder()
            .on_end(OnEnd::Return)
            .namespace(namespace)
            .open("c")
            .unwrap()
    }

    /// Returns how many messages the channel's rate stands for.
    fn sent_between(sampler: &Sampler) -> f64 {
        let rate = sampler.rate(&sampler.report().channels[0]);
        (rate * sampler.seconds).round()
    }
}
