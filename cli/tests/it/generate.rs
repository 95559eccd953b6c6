//! `completions` and `man`: their output and files.

use crate::command::run;
use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

const COMMANDS: [&str; 7] = ["ls", "show", "who", "top", "sweep", "completions", "man"];

/// A directory of this test. Removed on drop.
struct Directory(PathBuf);

impl Directory {
    fn new(test: &str) -> Self {
        let name = format!("shm-pool-cli-{}-{test}", std::process::id());
        let path = env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Only a test that has failed already leaves nothing to remove.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Each script knows every command.
#[test]
fn completions() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = run(&["completions", shell]).fine();
        for command in COMMANDS {
            assert!(script.contains(command), "{shell}: no {command}");
        }
        assert!(script.contains("yes"), "{shell}: no --yes");
    }
    let unknown = run(&["completions", "tcsh"]);
    assert_eq!(unknown.code, 2);
    assert!(unknown.errors.contains("fish"), "{}", unknown.errors);
}

/// bash completes commands and options.
#[test]
fn bash_completes() {
    let directory = Directory::new("bash");
    let script = directory.0.join("shm-pool.bash");
    fs::write(&script, run(&["completions", "bash"]).fine()).unwrap();
    let completed = |words: &str| -> BTreeSet<String> {
        let program = format!(
            "source '{}'
            COMP_WORDS=({words})
            COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
            complete=$(complete -p shm-pool)
            [[ $complete =~ -F\\ ([^ ]+) ]]
            \"${{BASH_REMATCH[1]}}\" shm-pool \"${{COMP_WORDS[COMP_CWORD]}}\"
            printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            script.display()
        );
        let output = Command::new("bash")
            .args(["-c", &program])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        text.split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(
        completed("shm-pool sw"),
        BTreeSet::from(["sweep".to_owned()])
    );
    assert_eq!(
        completed("shm-pool sweep --y"),
        BTreeSet::from(["--yes".to_owned()])
    );
}

/// There is a page for the command and for each of its commands, and it says what `--help` says.
#[test]
fn manual_pages() {
    let directory = Directory::new("man");
    let pages = directory.0.join("share/man/man1");
    let printed = run(&["man", pages.to_str().unwrap()]);
    assert_eq!(printed.fine(), "");

    let mut expected = BTreeSet::from(["shm-pool.1".to_owned()]);
    for command in COMMANDS {
        expected.insert(format!("shm-pool-{command}.1"));
    }
    let written: BTreeSet<String> = fs::read_dir(&pages)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(written, expected);

    let page = |name: &str| fs::read_to_string(pages.join(name)).unwrap();
    let main = page("shm-pool.1");
    assert!(main.contains("Exit codes:") && main.contains("Inspection has no side effects"));
    assert!(page("shm-pool-sweep.1").contains("Actually remove the objects"));

    let file = pages.join("shm-pool.1");
    let into_a_file = run(&["man", file.to_str().unwrap()]);
    assert_eq!(into_a_file.code, 1);
    assert!(
        into_a_file.errors.contains("shm-pool.1"),
        "{}",
        into_a_file.errors
    );
}
