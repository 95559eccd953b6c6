//! What this process cannot see: other users' objects, hidden processes, other PID namespaces.

use serde::Serialize;
use shm_pool::inspect::{ProviderReport, Report, State};

/// How much this process could not see.
#[derive(Serialize)]
pub(crate) struct Unseen {
    /// Objects of other users, which were skipped.
    objects_of_other_users: usize,
    /// Processes that this user may not inspect.
    hidden_processes: usize,
    /// Owners, peers, senders and receivers whose lock is held by a process that is not visible.
    ends_without_process: usize,
}

impl Unseen {
    pub(crate) fn of(report: &Report) -> Self {
        let channels = report.channels.iter().map(|channel| {
            let receivers = channel.receivers.iter();
            let unseen = receivers
                .filter(|receiver| receiver.is_alive && receiver.process.is_none())
                .count();
            unseen + usize::from(is_there(&channel.state) && channel.sender.is_none())
        });
        Self {
            objects_of_other_users: report.others,
            hidden_processes: report.hidden_processes,
            ends_without_process: report.providers.iter().map(ends).chain(channels).sum(),
        }
    }

    /// Formats the counts for people, with advice. Empty if everything was seen.
    pub(crate) fn text(&self) -> String {
        // If each end has a visible process, the hidden ones hold nothing.
        let hidden = if self.ends_without_process > 0 {
            self.hidden_processes
        } else {
            0
        };
        let parts = [
            (
                self.objects_of_other_users,
                "",
                "of other users' objects; run this as their user",
            ),
            (
                self.ends_without_process,
                "who holds ",
                "of the locks: hidden, or in another PID namespace",
            ),
            (
                hidden,
                "",
                "of the processes, for lack of rights; what they hold is shown",
            ),
        ];
        let unseen = parts.into_iter().filter(|(count, ..)| *count > 0);
        unseen
            .map(|(count, what, why)| format!("not seen: {what}{count} {why}\n"))
            .collect()
    }
}

fn ends(provider: &ProviderReport) -> usize {
    let unseen = provider
        .peers
        .iter()
        .filter(|peer| peer.is_alive && peer.process.is_none())
        .count();
    unseen + usize::from(is_there(&provider.state) && provider.owner.is_none())
}

/// Returns `true` if the maker of an object holds its lock.
pub(crate) fn is_there(state: &State) -> bool {
    matches!(state, State::Alive | State::Starting)
}

#[cfg(test)]
mod tests {
    use super::Unseen;

    /// A hidden process that holds nothing is not reported.
    #[test]
    fn hidden_processes() {
        let text = |ends_without_process| {
            Unseen {
                objects_of_other_users: 0,
                hidden_processes: 1,
                ends_without_process,
            }
            .text()
        };
        assert_eq!(text(0), "");
        assert!(
            text(1).contains("not seen: 1 of the processes"),
            "{}",
            text(1)
        );
    }
}
