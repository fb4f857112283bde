//! `fullbore man`.

use crate::cli::{
    manual,
    output::{is_terminal, printed},
};
use clap::Command;
use fullbore_format::error::{Error, ErrorKind, Result};
use std::{
    io::{self, Write},
    path::Path,
    process::{self, Stdio},
};

/// Shows the manual page of the program or of a command, or writes the pages of all commands to a directory.
pub(in crate::cli) fn run(program: Command, named: Option<&str>, to: Option<&Path>) -> Result<u8> {
    let mut command = program.disable_help_subcommand(true);
    command.build();
    let failed = |e| Error::io("could not write the manual", e);
    let Some(dir) = to else {
        let command = match named {
            Some(name) => command_named(&command, name)?,
            None => &command,
        };
        let mut page = Vec::new();
        manual::page(command, &mut page).map_err(failed)?;
        return show(&page);
    };
    std::fs::create_dir_all(dir).map_err(failed)?;
    for command in std::iter::once(&command).chain(command.get_subcommands()) {
        let name = command.get_display_name().unwrap_or(command.get_name());
        let mut page = Vec::new();
        manual::page(command, &mut page)
            .and_then(|()| std::fs::write(dir.join(format!("{name}.1")), page))
            .map_err(|e| Error::io(format!("could not write the manual to {dir:?}"), e))?;
    }
    Ok(0)
}

fn command_named<'a>(program: &'a Command, name: &str) -> Result<&'a Command> {
    program.find_subcommand(name).ok_or_else(|| {
        let message = format!("there is no command {name:?}");
        Error::new(ErrorKind::Usage, message).hint("`fullbore --help` lists the commands")
    })
}

/// Shows a page by man on a terminal. Prints it elsewhere, and where there is no man.
fn show(page: &[u8]) -> Result<u8> {
    if is_terminal() && shown_by_man(page).unwrap_or(false) {
        return Ok(0);
    }
    printed(|out| {
        let written = out.write_all(page);
        written.map_err(|e| Error::io("could not write to standard output", e))?;
        Ok(0)
    })
}

/// Returns whether man has shown the page.
fn shown_by_man(page: &[u8]) -> io::Result<bool> {
    let mut man = process::Command::new("man");
    let mut man = man.args(["-l", "-"]).stdin(Stdio::piped()).spawn()?;
    if let Some(mut input) = man.stdin.take() {
        // A reader that leaves early has seen enough.
        let _ = input.write_all(page);
    }
    Ok(man.wait()?.success())
}
