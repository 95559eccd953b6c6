//! `show`: everything known about one provider or channel.

use crate::args::{Code, Scope, Show};
use crate::unseen::is_there;
use crate::{json, text, Answer, Fallible};
use shm_pool::inspect::{ChannelReport, ClassReport, PeerReport, ProviderReport, Report, State};
use shm_pool::ProviderId;

pub(crate) fn run(scope: &Scope, options: &Show) -> Fallible<Answer> {
    let mut report = scope.inspector().report()?;
    let all = text::footer(&report);
    keep_only(&mut report, &options.what);
    let is_there = !report.providers.is_empty() || !report.channels.is_empty();
    let mut answer = Answer::fine(String::new());
    if scope.json {
        answer.text = json::of(&json::Document::of(&report))?;
    } else if is_there {
        answer.text = describe(&report);
    }
    if !is_there {
        let directory = text::visible(&report.directory.to_string_lossy());
        let what = &options.what;
        answer.notice = format!("shm-pool: {directory} has no provider or channel {what:?}\n{all}");
        answer.code = Code::NotThere;
    }
    Ok(answer)
}

/// Keeps what has this id or name, in every prefix unless one is given. Prefixes and names may have
/// dots: whatever the text may mean is kept.
fn keep_only(report: &mut Report, what: &str) {
    // Returns what follows the prefix, or the whole text.
    let names = |prefix: &str| {
        let rest = what.strip_prefix(prefix);
        [Some(what), rest.and_then(|rest| rest.strip_prefix('.'))]
    };
    report.providers.retain(|provider| {
        let names = names(&provider.prefix).into_iter().flatten();
        let mut ids = names.filter_map(|name| name.parse::<ProviderId>().ok());
        ids.any(|id| id == provider.id)
    });
    report
        .channels
        .retain(|channel| names(&channel.prefix).contains(&Some(&channel.name)));
}

fn describe(report: &Report) -> String {
    let providers = report.providers.iter().map(provider);
    providers
        .chain(report.channels.iter().map(channel))
        .chain([text::footer(report)])
        .collect()
}

fn owner_says(peer: &PeerReport) -> &'static str {
    match peer.is_alive {
        true if peer.is_refused => "refused",
        true => "served",
        false => text::NONE,
    }
}

fn problem(state: &State) -> String {
    match state {
        State::Unusable(problem) => format!(": {}", text::visible(problem)),
        _ => String::new(),
    }
}

fn provider(provider: &ProviderReport) -> String {
    let segments = provider.segments.iter().map(|segment| {
        let processes: Vec<String> = segment
            .mapped_by
            .iter()
            .map(|process| text::short_process(Some(process), true))
            .collect();
        [
            format!("{:x}", segment.serial),
            text::bytes(segment.len),
            text::bytes(segment.bytes_held),
            processes.join("\n"),
        ]
    });
    let classes = |classes: &[ClassReport]| {
        let class = |class: &ClassReport| {
            [
                format!("up to {}", text::bytes(class.size)),
                class.messages.to_string(),
                text::bytes(class.bytes),
            ]
        };
        classes.iter().map(class).collect::<Vec<_>>()
    };
    let peers = provider.peers.iter().map(|peer| {
        [
            peer.slot.to_string(),
            owner_says(peer).to_owned(),
            if peer.is_alive {
                text::short_process(peer.process.as_ref(), true)
            } else {
                "dead".to_owned()
            },
            text::bytes_or_none(peer.bytes),
            peer.messages.to_string(),
            peer.views.to_string(),
            peer.grants.to_string(),
        ]
    });
    let lines = [
        ("provider", text::name_of_provider(provider)),
        (
            "state",
            text::state_of_provider(provider).to_owned() + &problem(&provider.state),
        ),
        (
            "owner",
            text::process(provider.owner.as_ref(), is_there(&provider.state)),
        ),
        ("held", text::bytes(provider.bytes_held)),
        ("mapped", text::bytes(provider.bytes_mapped)),
        ("leased", text::bytes(provider.bytes_leased)),
        ("borrowed", text::bytes(provider.bytes_borrowed)),
        (
            "shared",
            format!("at most {} messages at a time", provider.max_shared),
        ),
    ];
    let tables = [
        text::wrapped_table(["SEGMENT", "LENGTH", "HELD", "MAPPED BY"], segments),
        text::table(
            ["LEASED CLASS", "MESSAGES", "BYTES"],
            classes(&provider.leased),
        ),
        text::table(
            ["BORROWED CLASS", "MESSAGES", "BYTES"],
            classes(&provider.borrowed),
        ),
        text::wrapped_table(
            [
                "PEER",
                "OWNER SAYS",
                "PROCESS",
                "LEASED",
                "MESSAGES",
                "VIEWS",
                "GRANTS",
            ],
            peers,
        ),
    ];
    described(&lines, &tables)
}

fn channel(channel: &ChannelReport) -> String {
    let receivers = channel.receivers.iter().map(|receiver| {
        // The id has a line of its own: beside the process, the table would be too wide.
        let mut who = text::short_process(receiver.process.as_ref(), receiver.is_alive);
        if let Some(id) = receiver.id {
            who += &format!("\n{id}");
        }
        [
            who,
            text::link(receiver).to_owned(),
            receiver.on_full.to_string().replace('_', " "),
            text::fill(receiver),
            receiver.sent.to_string(),
            receiver.missed.total().to_string(),
            format!("{}/{}", receiver.borrowed, receiver.max_borrowed),
            text::bytes_or_none(receiver.bytes_borrowed),
        ]
    });
    let lines = [
        ("channel", text::name_of_channel(channel)),
        (
            "state",
            text::state_of_channel(channel).to_owned() + &problem(&channel.state),
        ),
        (
            "sender",
            text::process(channel.sender.as_ref(), is_there(&channel.state)),
        ),
        (
            "provider",
            channel
                .provider
                .map_or(text::NONE.to_owned(), |id| id.to_string()),
        ),
        (
            "kind",
            if channel.is_publisher {
                "publisher"
            } else {
                "sender"
            }
            .to_owned(),
        ),
        (
            "type",
            channel
                .message_type
                .as_ref()
                .map_or(text::NONE.to_owned(), |of| text::visible(&of.to_string())),
        ),
    ];
    let heads = [
        "RECEIVER",
        "LINK",
        "WHEN FULL",
        "WAITING",
        "SENT",
        "MISSED",
        "BUFFERS",
        "BORROWED",
    ];
    let damaged = channel
        .damaged
        .iter()
        .map(|of| [of.id.to_string(), text::visible(&of.problem)]);
    described(
        &lines,
        &[
            text::wrapped_table(heads, receivers),
            text::wrapped_table(["DAMAGED", "PROBLEM"], damaged),
        ],
    )
}

fn described(lines: &[(&str, String)], tables: &[String]) -> String {
    let mut text = text::named_values(lines);
    for table in tables {
        if !table.is_empty() {
            text.push('\n');
            text += table;
        }
    }
    text.push('\n');
    text
}
