//! `completions` and `man`: the files that a package installs beside the command.

use crate::args::{Args, Completions, Man};
use crate::{Answer, Fallible};
use clap::CommandFactory;
use std::fs;
use std::io;
use std::path::Path;

pub(crate) fn completions(options: &Completions) -> Fallible<Answer> {
    let mut command = Args::command();
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut command, name, &mut script);
    let script = String::from_utf8(script)?;
    // For bash, clap_complete 4.6 spells a name with a dash in two ways, and then finds no option of any
    // subcommand.
    Ok(Answer::fine(
        script.replace("shm__subcmd__pool", "shm__pool"),
    ))
}

/// Writes a page for the command and one for each of its subcommands.
pub(crate) fn man(options: &Man) -> Fallible<Answer> {
    let directory = &options.into;
    if let Err(error) = write_pages(directory) {
        return Err(format!("manual pages in {}: {error}", directory.display()).into());
    }
    Ok(Answer::fine(String::new()))
}

fn write_pages(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    clap_mangen::generate_to(Args::command(), directory)
}
