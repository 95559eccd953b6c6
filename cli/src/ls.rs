//! `ls`: providers and channels, one line each.

use crate::args::{Code, Ls, Scope};
use crate::unseen::is_there;
use crate::{json, text, Answer, Fallible};
use shm_pool::inspect::{ChannelReport, ProviderReport, Report};

pub(crate) fn run(scope: &Scope, options: &Ls) -> Fallible<Answer> {
    let report = scope.inspector().report()?;
    let is_left = options.check && report.orphans().objects > 0;
    let code = if is_left { Code::Orphans } else { Code::Fine };
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
    let is_empty = providers.is_empty() && channels.is_empty();
    let nothing = if is_empty {
        "no providers or channels\n"
    } else {
        ""
    }
    .to_owned();
    let parts = [
        format!("{}\n", text::directory(report)),
        nothing,
        providers,
        channels,
        text::footer(report),
    ];
    parts
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join("\n")
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
    let receivers = channel
        .receivers
        .iter()
        .filter(|receiver| receiver.is_alive)
        .count();
    [
        text::name_of_channel(channel),
        text::state_of_channel(channel).to_owned(),
        text::short_process(channel.sender.as_ref(), is_there(&channel.state)),
        receivers.to_string(),
        text::fullest(channel).map_or(text::NONE.to_owned(), text::fill),
    ]
}
