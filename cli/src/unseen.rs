//! What cannot be seen from here: other users' objects, hidden processes, other PID namespaces.

use serde::Serialize;
use shm_pool::inspect::{ProviderReport, Report, State};

/// How much of it there is.
#[derive(Serialize)]
pub(crate) struct Unseen {
    /// Objects of other users, which were not looked at.
    objects_of_other_users: usize,
    /// Processes that this one may not look at.
    hidden_processes: usize,
    /// Owners, peers, senders and receivers whose lock is held, by no process that was seen.
    ends_without_process: usize,
}

impl Unseen {
    pub(crate) fn of(report: &Report) -> Self {
        let channels = report.channels.iter().map(|channel| {
            let receivers = channel.receivers.iter();
            let unseen = receivers.filter(|receiver| receiver.is_alive && receiver.process.is_none()).count();
            unseen + usize::from(is_there(&channel.state) && channel.sender.is_none())
        });
        Self {
            objects_of_other_users: report.others,
            hidden_processes: report.hidden_processes,
            ends_without_process: report.providers.iter().map(ends).chain(channels).sum(),
        }
    }

    /// As people are told, with what can be done about it. Nothing if all was seen.
    pub(crate) fn text(&self) -> String {
        let parts = [
            (self.objects_of_other_users, "", "of other users' objects; run this as their user"),
            (self.ends_without_process, "who holds ", "of the locks: hidden, or in another PID namespace"),
            (self.hidden_processes, "", "of the processes, for lack of rights; what they hold is shown"),
        ];
        let unseen = parts.into_iter().filter(|(count, ..)| *count > 0);
        unseen.map(|(count, what, why)| format!("not seen: {what}{count} {why}\n")).collect()
    }
}

fn ends(provider: &ProviderReport) -> usize {
    let unseen = provider.peers.iter().filter(|peer| peer.is_alive && peer.process.is_none()).count();
    unseen + usize::from(is_there(&provider.state) && provider.owner.is_none())
}

/// Has the maker of an object its lock?
pub(crate) fn is_there(state: &State) -> bool {
    matches!(state, State::Alive | State::Unfinished)
}
