//! Damaged objects: every command shows them as such, along with everything else.

use crate::child::Child;
use crate::command::Names;
use std::fs::{self, File};
use std::os::unix::fs::{symlink, FileExt};

/// One damaged file does not hide the others.
#[test]
fn damaged_objects() {
    let names = Names::new("harm");
    let (owner, id) = Child::owner(&names.prefix, 1 << 20);
    let genuine = fs::read(names.path(&format!("{id}.ctl"))).unwrap();
    // A control object of another provider, one that is truncated, and one of another version.
    fs::write(names.path("0000000000000001.ctl"), &genuine).unwrap();
    fs::write(
        names.path("0000000000000002.ctl"),
        &genuine[..genuine.len() / 2],
    )
    .unwrap();
    fs::write(names.path("0000000000000003.ctl"), [0x5a; 8_192]).unwrap();
    // The longest possible file, without memory; and a symbolic link.
    File::create(names.path("0000000000000004.1"))
        .unwrap()
        .set_len(1 << 46)
        .unwrap();
    fs::write(names.path("noise.channel"), [0xff; 4_096]).unwrap();
    symlink("/nowhere", names.path("link.channel")).unwrap();
    let at_random = File::create(names.path("noise.0000000000000001.connection")).unwrap();
    at_random.write_all_at(&genuine[..4_096], 0).unwrap();

    for command in [
        &["ls"][..],
        &["who", "--for", "0s"],
        &["top", "--once", "--interval", "100ms"],
    ] {
        let text = names.run(command).fine();
        assert!(
            text.contains(&owner.id().to_string()),
            "{command:?}: {text}"
        );
        names.run(&[command, &["--json"]].concat()).json();
    }
    let ls = names.run(&["ls"]).fine();
    assert_eq!(ls.matches("damaged").count(), 5, "{ls}");
    let shown = names.run(&["show", "0000000000000001"]).fine();
    assert!(
        shown.contains("damaged: it is no control object of this provider"),
        "{shown}"
    );
    let shown = names.run(&["show", "noise", "--json"]).json();
    assert_eq!(shown["channels"][0]["state"], "unusable");
    assert!(shown["channels"][0]["problem"].is_string(), "{shown}");

    // Files that are not ours stay, and so do living objects.
    names.run(&["sweep", "--yes"]).fine();
    let mut left = Vec::new();
    for name in names.objects() {
        if !name.contains(&id.to_string()) {
            let (_, kind) = name.split_once('.').unwrap();
            left.push(kind.to_owned());
        }
    }
    let not_ours = [
        "0000000000000003.ctl",
        "link.channel",
        "noise.0000000000000001.connection",
        "noise.channel",
    ];
    assert_eq!(left, not_ours);
    for kind in not_ours {
        fs::remove_file(names.path(kind)).unwrap();
    }
    owner.shut_down();
}
