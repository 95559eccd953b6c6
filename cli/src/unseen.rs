//! What this process cannot see: other users' objects, hidden processes, other PID namespaces.

use serde::Serialize;
use shm_pool::inspect::{ObjectState, Process, Report};

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
        Self {
            objects_of_other_users: report.others,
            hidden_processes: report.hidden_processes,
            ends_without_process: ends_without_process(report),
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
        let mut text = String::new();
        let count = self.objects_of_other_users;
        if count > 0 {
            text += &format!("not seen: {count} of other users' objects; run this as their user\n");
        }
        let count = self.ends_without_process;
        if count > 0 {
            text += &format!(
                "not seen: who holds {count} of the locks: hidden, or in another PID namespace\n"
            );
        }
        if hidden > 0 {
            text += &format!(
                "not seen: {hidden} of the processes, for lack of rights; what they hold is shown\n"
            );
        }
        text
    }
}

fn ends_without_process(report: &Report) -> usize {
    let mut count = 0;
    let mut add = |is_alive: bool, process: &Option<Process>| {
        if is_alive && process.is_none() {
            count += 1;
        }
    };
    for provider in &report.providers {
        add(is_there(&provider.state), &provider.owner);
        for peer in &provider.peers {
            add(peer.is_alive, &peer.process);
        }
    }
    for channel in &report.channels {
        add(is_there(&channel.state), &channel.sender);
        for receiver in &channel.receivers {
            add(receiver.is_alive, &receiver.process);
        }
    }
    count
}

/// Returns `true` if the maker of an object holds its lock.
pub(crate) fn is_there(state: &ObjectState) -> bool {
    matches!(state, ObjectState::Alive | ObjectState::Starting)
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
