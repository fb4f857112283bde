//! `fullbore find`.

use crate::{
    cli::{output::printed, select::SelectArgs},
    command::find::Find,
    error::Result,
    text::arguments::{any_bytes, pattern},
};
use clap::{Args, ValueHint};
use std::ffi::OsString;

/// `fullbore find`.
#[derive(Debug, Args)]
#[command(
    after_help = "EXIT CODES: 0 found, 1 not found or failed, 2 wrong arguments, 4 a backup is damaged"
)]
pub(in crate::cli) struct FindArgs {
    /// The repository
    #[arg(value_name = "REPOSITORY", value_hint = ValueHint::DirPath)]
    repository: OsString,
    #[command(flatten)]
    select: SelectArgs,
    /// As in .gitignore: '*.conf' anywhere, 'etc/*.conf' or '/passwd' from the root of the backup
    #[arg(value_name = "PATTERN", value_parser = any_bytes(pattern))]
    pattern: OsString,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

pub(in crate::cli) fn run(args: FindArgs) -> Result<u8> {
    let FindArgs {
        repository,
        select,
        pattern,
        json,
    } = args;
    let filter = select.filter(&repository, false)?;
    let find = Find {
        repository,
        filter,
        pattern,
        json,
    };
    printed(|out| find.run(out))
}
