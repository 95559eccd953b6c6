//! A process of a run, from both of its ends: started, heard and ended by the one, reporting from the other.
//!
//! A process tells on its standard output, a line of JSON each: that it listens, that it goes on, what it has seen. Its standard
//! input says nothing, and ends when the program that started it does, in whatever way.

use crate::Result;
use serde_json::Value;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{self, Command, ExitStatus, Stdio};
use std::sync::mpsc::Sender;
use std::thread;

/// What was heard of which process, by the order in which they were started.
pub(crate) struct News {
    pub(crate) from: usize,
    pub(crate) what: Heard,
}

/// What was heard.
pub(crate) enum Heard {
    /// It says something.
    Said(Value),
    /// It says no more. Nothing closes its output but its end.
    Ended,
}

/// A process that does not outlive its handle.
pub(crate) struct Child {
    pub(crate) name: String,
    process: process::Child,
}

impl Child {
    /// Starts it. What it says goes to `news`, with the number `from`.
    pub(crate) fn spawn(name: String, command: &mut Command, from: usize, news: Sender<News>) -> Result<Self> {
        let named = |error: io::Error| format!("cannot start {name}: {error}");
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(named)?;
        let output = process.stdout.take();
        let child = Self { name, process };
        // Ends with the output, that is, with the process.
        thread::spawn(move || {
            let lines = output.into_iter().flat_map(|output| BufReader::new(output).lines().map_while(io::Result::ok));
            // zenoh logs to standard output, too.
            let said = lines.filter_map(|line| match serde_json::from_str(&line) {
                Ok(said) => Some(Heard::Said(said)),
                Err(_) => {
                    eprintln!("{line}");
                    None
                }
            });
            for what in said.chain([Heard::Ended]) {
                // Nobody hears it if the run has failed already.
                let _ = news.send(News { from, what });
            }
        });
        Ok(child)
    }

    /// Waits for it to end.
    pub(crate) fn wait(&mut self) -> Result<ExitStatus> {
        Ok(self.process.wait().map_err(|error| format!("cannot wait for {}: {error}", self.name))?)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Errors mean that it has ended already, and then there is nothing to do.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// In a process that was started so: tells something.
pub(crate) fn say(news: &Value) -> Result<()> {
    let mut output = io::stdout().lock();
    writeln!(output, "{news}").and_then(|()| output.flush()).map_err(|error| format!("nobody listens: {error}").into())
}

/// In a process that was started so: ends it when the program that started it is gone. It would wait for ever otherwise.
pub(crate) fn end_with_parent() {
    thread::spawn(|| {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        eprintln!("the program that started this process is gone");
        process::exit(1);
    });
}
