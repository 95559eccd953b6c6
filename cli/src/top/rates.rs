//! Changes between two looks.

use shm_pool::channel::ReceiverId;
use shm_pool::inspect::{ChannelReport, Inspector, Report};
use shm_pool::OsError;
use std::collections::BTreeMap;
use std::time::Instant;

/// How many messages were sent to each receiver, by prefix, channel and connection.
type Sent = BTreeMap<(String, String, Option<ReceiverId>), u64>;

/// The last look, and the counts of the one before.
pub(super) struct Watch {
    inspector: Inspector,
    report: Report,
    at: Instant,
    seconds: f64,
    before: Sent,
}

impl Watch {
    pub(super) fn new(mut inspector: Inspector) -> Result<Self, OsError> {
        let report = inspector.report()?;
        let before = sent(&report);
        Ok(Self {
            inspector,
            report,
            at: Instant::now(),
            seconds: 0.0,
            before,
        })
    }

    pub(super) fn look(&mut self) -> Result<(), OsError> {
        let report = self.inspector.report()?;
        let now = Instant::now();
        self.before = sent(&self.report);
        self.seconds = (now - self.at).as_secs_f64();
        (self.report, self.at) = (report, now);
        Ok(())
    }

    pub(super) fn report(&self) -> &Report {
        &self.report
    }

    /// Returns the messages per second between the last two looks, by the receiver that got the
    /// most: a message to several receivers counts once. A receiver that joined in between counts
    /// from the next look on.
    pub(super) fn rate(&self, channel: &ChannelReport) -> f64 {
        let since = |connection, sent: u64| {
            let before = *self.before.get(&key(channel, connection))?;
            Some(sent.saturating_sub(before))
        };
        let most = channel
            .receivers
            .iter()
            .filter_map(|receiver| since(receiver.id, receiver.sent))
            .max();
        match most {
            Some(messages) if self.seconds > 0.0 => messages as f64 / self.seconds,
            _ => 0.0,
        }
    }
}

fn key(
    channel: &ChannelReport,
    connection: Option<ReceiverId>,
) -> (String, String, Option<ReceiverId>) {
    (channel.prefix.clone(), channel.name.clone(), connection)
}

fn sent(report: &Report) -> Sent {
    let of = |channel: &ChannelReport| {
        let receivers = channel.receivers.iter();
        receivers
            .map(|receiver| (key(channel, receiver.id), receiver.sent))
            .collect::<Vec<_>>()
    };
    report.channels.iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use shm_pool::channel::{OnEnd, Publisher, Subscriber};
    use shm_pool::{Client, Namespace, Provider};

    /// The rate covers the last two looks only: it drops when a channel goes idle, and excludes
    /// messages sent before the first look.
    #[test]
    fn rate_of_last_two_looks() {
        let prefix = format!("cli-{}-rates", std::process::id());
        let provider = Provider::builder()
            .namespace(&Namespace::new(&prefix).unwrap())
            .build()
            .unwrap();
        let client = Client::in_namespace(&Namespace::new(&prefix).unwrap());
        let mut publisher = Publisher::builder()
            .max_subscribers(2)
            .capacity(16)
            .create(&provider, "c")
            .unwrap();
        let mut send =
            |count| (0..count).for_each(|_| assert!(publisher.try_send_copy(b"message").is_ok()));
        let _one = Subscriber::builder()
            .on_end(OnEnd::Return)
            .namespace(client.namespace())
            .open("c")
            .unwrap();
        send(3);
        let mut watch =
            Watch::new(Inspector::new().namespace(&Namespace::new(&prefix).unwrap())).unwrap();
        let sent =
            |watch: &Watch| (watch.rate(&watch.report().channels[0]) * watch.seconds).round();
        assert_eq!(sent(&watch), 0.0);
        send(5);
        watch.look().unwrap();
        assert_eq!(sent(&watch), 5.0);
        watch.look().unwrap();
        assert_eq!(sent(&watch), 0.0);
        // A receiver that joins counts from the next look on, and a message to two receivers counts
        // once.
        let _other = Subscriber::builder()
            .on_end(OnEnd::Return)
            .namespace(client.namespace())
            .open("c")
            .unwrap();
        send(2);
        watch.look().unwrap();
        assert_eq!(sent(&watch), 2.0);
        send(4);
        watch.look().unwrap();
        assert_eq!(sent(&watch), 4.0);
    }
}
