//! `fullbore man`.

use crate::cli::{manual, output::printed};
use clap::Command;
use fullbore_format::error::{Error, Result};
use std::path::Path;

/// Prints the manual page, or writes the pages of all commands to a directory.
pub(in crate::cli) fn run(program: Command, to: Option<&Path>) -> Result<u8> {
    let mut command = program.disable_help_subcommand(true);
    command.build();
    let failed = |e| Error::io("could not write the manual", e);
    let Some(dir) = to else {
        return printed(|mut out| manual::page(&command, &mut out).map(|()| 0).map_err(failed));
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
