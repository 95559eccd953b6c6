//! `show`: everything known about one provider or channel.

use crate::args::{Code, Scope, Show};
use crate::unseen::is_there;
use crate::{json, text, Answer, Fallible};
use shm_pool::inspect::{
    ChannelReport, ClassReport, DamagedReceiver, ObjectState, PeerReport, ProviderReport,
    ReceiverReport, Report, SegmentReport,
};

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

/// Keeps the objects with this id or name, in every prefix unless one is given. Prefixes and names
/// may have dots: every object that the text may mean is kept.
fn keep_only(report: &mut Report, what: &str) {
    report.providers.retain(|provider| {
        let is_id = |text: &str| text.parse() == Ok(provider.id);
        match without_prefix(what, &provider.prefix) {
            Some(rest) => is_id(what) || is_id(rest),
            None => is_id(what),
        }
    });
    report.channels.retain(|channel| {
        what == channel.name || without_prefix(what, &channel.prefix) == Some(&channel.name)
    });
}

/// Returns the text after the prefix and a dot. `None` if the text does not start with them.
fn without_prefix<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    text.strip_prefix(prefix)?.strip_prefix('.')
}

fn describe(report: &Report) -> String {
    let mut text = String::new();
    for provider in &report.providers {
        text += &describe_provider(provider);
    }
    for channel in &report.channels {
        text += &describe_channel(channel);
    }
    text += &text::footer(report);
    text
}

fn owner_says(peer: &PeerReport) -> &'static str {
    match peer.is_alive {
        true if peer.is_refused => "refused",
        true => "served",
        false => text::NONE,
    }
}

fn problem(state: &ObjectState) -> String {
    match state {
        ObjectState::Unusable(problem) => format!(": {}", text::visible(problem)),
        _ => String::new(),
    }
}

fn describe_provider(provider: &ProviderReport) -> String {
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
        segments(&provider.segments),
        classes("LEASED CLASS", &provider.leased),
        classes("BORROWED CLASS", &provider.borrowed),
        peers(&provider.peers),
    ];
    described(&lines, &tables)
}

fn segments(segments: &[SegmentReport]) -> String {
    let mut rows = Vec::new();
    for segment in segments {
        let mut processes = Vec::new();
        for process in &segment.mapped_by {
            processes.push(text::short_process(Some(process), true));
        }
        rows.push([
            format!("{:x}", segment.serial),
            text::bytes(segment.len),
            text::bytes(segment.bytes_held),
            processes.join("\n"),
        ]);
    }
    text::wrapped_table(["SEGMENT", "LENGTH", "HELD", "MAPPED BY"], rows)
}

fn classes(head: &str, classes: &[ClassReport]) -> String {
    let mut rows = Vec::new();
    for class in classes {
        rows.push([
            format!("up to {}", text::bytes(class.size)),
            class.messages.to_string(),
            text::bytes(class.bytes),
        ]);
    }
    text::table([head, "MESSAGES", "BYTES"], rows)
}

fn peers(peers: &[PeerReport]) -> String {
    let mut rows = Vec::new();
    for peer in peers {
        let process = if peer.is_alive {
            text::short_process(peer.process.as_ref(), true)
        } else {
            "dead".to_owned()
        };
        rows.push([
            peer.slot.to_string(),
            owner_says(peer).to_owned(),
            process,
            text::bytes_or_none(peer.bytes),
            peer.messages.to_string(),
            peer.views.to_string(),
            peer.grants.to_string(),
        ]);
    }
    let heads = [
        "PEER",
        "OWNER SAYS",
        "PROCESS",
        "LEASED",
        "MESSAGES",
        "VIEWS",
        "GRANTS",
    ];
    text::wrapped_table(heads, rows)
}

fn describe_channel(channel: &ChannelReport) -> String {
    let provider = match channel.provider {
        Some(id) => id.to_string(),
        None => text::NONE.to_owned(),
    };
    let kind = if channel.is_publisher {
        "publisher"
    } else {
        "sender"
    };
    let message_type = match &channel.message_type {
        Some(message_type) => text::visible(&message_type.to_string()),
        None => text::NONE.to_owned(),
    };
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
        ("provider", provider),
        ("kind", kind.to_owned()),
        ("type", message_type),
    ];
    let tables = [receivers(&channel.receivers), damaged(&channel.damaged)];
    described(&lines, &tables)
}

fn receivers(receivers: &[ReceiverReport]) -> String {
    let mut rows = Vec::new();
    for receiver in receivers {
        // The id has a line of its own: beside the process, the table would be too wide.
        let mut process = text::short_process(receiver.process.as_ref(), receiver.is_alive);
        if let Some(id) = receiver.id {
            process += &format!("\n{id}");
        }
        rows.push([
            process,
            text::link(receiver).to_owned(),
            receiver.on_full.to_string().replace('_', " "),
            text::fill(receiver),
            receiver.sent.to_string(),
            receiver.missed.total().to_string(),
            format!("{}/{}", receiver.borrowed, receiver.max_borrowed),
            text::bytes_or_none(receiver.bytes_borrowed),
        ]);
    }
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
    text::wrapped_table(heads, rows)
}

fn damaged(damaged: &[DamagedReceiver]) -> String {
    let mut rows = Vec::new();
    for receiver in damaged {
        rows.push([receiver.id.to_string(), text::visible(&receiver.reason)]);
    }
    text::wrapped_table(["DAMAGED", "PROBLEM"], rows)
}

/// Formats the values of one object, and below them the tables that have rows.
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
