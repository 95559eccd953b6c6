//! Long names and many processes do not make tables too wide for a terminal.

use crate::child::{Child, Task};
use crate::command::Names;
use shm_pool::channel::Publisher;

const COLUMNS: usize = 100;

/// Panics if a line is longer than [`COLUMNS`]. Returns the length of the longest.
fn check_width(text: &str) -> usize {
    let mut widest = 0;
    for line in text.lines() {
        let width = line.chars().count();
        assert!(width <= COLUMNS, "{width} columns:\n{line}\nin:\n{text}");
        widest = widest.max(width);
    }
    widest
}

/// Returns the text without what separates the lines of a wrapped cell.
fn unwrapped(text: &str) -> String {
    text.split_whitespace().collect()
}

#[test]
fn long_names_and_many_processes() {
    let names = Names::new("width");
    let topic = "/robot/front_left/camera/image_rectified".repeat(4);
    let (owner, id) = Child::owner(&names.prefix, 64 << 20);
    let mut messages = Vec::new();
    for _ in 0..5 {
        messages.push(owner.publish(1 << 20).unwrap());
    }
    let mut subscribers = Vec::new();
    for _ in 0..5 {
        subscribers.push(Child::subscriber(&names.prefix, &messages));
    }

    let provider = names.provider().build().unwrap();
    let mut publisher = Publisher::builder()
        .max_subscribers(8)
        .capacity(2048)
        .create(&provider, &topic)
        .unwrap();
    let mut receivers = Vec::new();
    for number in 0..4 {
        let task = Task::ChannelSubscriber {
            prefix: names.prefix.clone(),
            channel: topic.clone(),
        };
        let name =
            format!("/opt/robot/perception_pipeline --stage segmentation_of_frames_{number}");
        let receiver = Child::start_as(&name, &task);
        receiver.answer::<()>();
        receiver.stop();
        receivers.push(receiver);
    }
    for _ in 0..1500 {
        let message = provider.alloc(10_000).unwrap().freeze();
        let sent = publisher.send(message).unwrap();
        assert_eq!(sent.receivers, 4);
    }

    let who = names.run(&["who", "--for", "10ms"]).fine();
    let shown = names.run(&["show", &topic]).fine();
    let provider_shown = names.run(&["show", &id.to_string()]).fine();
    for text in [&who, &shown, &provider_shown] {
        check_width(text);
    }
    // Nothing of the name is lost: a wide cell continues on the next line.
    assert!(unwrapped(&shown).contains(&topic), "{shown}");
    for receiver in &receivers {
        let process = format!("{} STOPPED", receiver.id());
        assert!(who.contains(&process), "{who}");
        assert!(shown.contains(&process), "{shown}");
    }
    assert_eq!(
        provider_shown.matches("served").count(),
        5,
        "{provider_shown}"
    );
    assert!(check_width(&who) > 80, "the names are long:\n{who}");

    for child in receivers.into_iter().chain(subscribers) {
        child.kill();
    }
    owner.shut_down();
}
