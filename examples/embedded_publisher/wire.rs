//! How the processes of a round tell their parent something: lines of numbers on standard output.

#![forbid(unsafe_code)]

use crate::support::Fallible;
use std::io::{self, BufRead, Write};

/// Tells the parent.
pub(crate) fn tell(numbers: &[u64]) -> Fallible {
    let line: Vec<String> = numbers.iter().map(u64::to_string).collect();
    let mut output = io::stdout().lock();
    writeln!(output, "{}", line.join(" "))?;
    Ok(output.flush()?)
}

/// What the other process tells next. An error if it has ended.
pub(crate) fn hear(input: &mut impl BufRead) -> Fallible<Vec<u64>> {
    let mut line = String::new();
    if input.read_line(&mut line)? == 0 {
        return Err("it ended before it had told anything".into());
    }
    Ok(line.split_whitespace().map(str::parse).collect::<Result<_, _>>()?)
}
