//! `ls`: providers and channels, one line each.

use crate::args::{Code, Ls, Scope};
use crate::unseen::is_there;
use crate::{json, text, Answer, Fallible};
use shm_pool::inspect::{ChannelReport, ProviderReport, Report};

pub(crate) fn run(scope: &Scope, options: &Ls) -> Fallible<Answer> {
    let report = scope.inspector().report()?;
    let code = if options.check && report.orphans().objects > 0 {
        Code::Orphans
    } else {
        Code::Fine
    };
    let text = if scope.json {
        json::of(&json::Document::of(&report))?
    } else {
        list(&report)
    };
    Ok(Answer {
        text,
        notice: String::new(),
        code,
    })
}

fn list(report: &Report) -> String {
    let heads = [
        "PROVIDER", "STATE", "OWNER", "HELD", "LEASED", "BORROWED", "PEERS",
    ];
    let providers = text::table(heads, report.providers.iter().map(provider));
    let heads = ["CHANNEL", "STATE", "SENDER", "RECEIVERS", "WAITING"];
    let channels = text::table(heads, report.channels.iter().map(channel));

    let mut parts = vec![format!("{}\n", text::directory(report))];
    if providers.is_empty() && channels.is_empty() {
        parts.push("no providers or channels\n".to_owned());
    }
    for part in [providers, channels, text::footer(report)] {
        if !part.is_empty() {
            parts.push(part);
        }
    }
    parts.join("\n")
}

fn provider(provider: &ProviderReport) -> [String; 7] {
    let is_alive = is_there(&provider.state);
    [
        text::name_of_provider(provider),
        text::state_of_provider(provider).to_owned(),
        text::short_process(provider.owner.as_ref(), is_alive),
        text::bytes(provider.bytes_held),
        text::bytes_or_none(provider.bytes_leased),
        text::bytes_or_none(provider.bytes_borrowed),
        provider.peers.len().to_string(),
    ]
}

fn channel(channel: &ChannelReport) -> [String; 5] {
    let mut receivers = 0;
    for receiver in &channel.receivers {
        if receiver.is_alive {
            receivers += 1;
        }
    }
    let waiting = match text::fullest(channel) {
        Some(receiver) => text::fill(receiver),
        None => text::NONE.to_owned(),
    };
    [
        text::name_of_channel(channel),
        text::state_of_channel(channel).to_owned(),
        text::short_process(channel.sender.as_ref(), is_there(&channel.state)),
        receivers.to_string(),
        waiting,
    ]
}
