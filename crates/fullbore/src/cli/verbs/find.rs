//! `fullbore find`.

use crate::cli::values::any_bytes;
use crate::{
    cli::{
        output::{is_terminal, printed},
        select::SelectArgs,
    },
    command::find::Find,
};
use clap::{Args, ValueHint};
use fullbore_format::{error::Result, text::arguments::pattern};
use fullbore_storage::Storages;
use std::ffi::OsString;

/// `fullbore find`.
#[derive(Debug, Args)]
#[command(
    after_help = "EXIT CODES: 0 found, 1 not found or failed, 2 wrong arguments, 4 a backup is damaged"
)]
pub(in crate::cli) struct FindArgs {
    /// A repository, or one of its backups with @BACKUP
    #[arg(value_name = "REPO[@BACKUP]", value_hint = ValueHint::DirPath)]
    repository: OsString,
    #[command(flatten)]
    select: SelectArgs,
    /// Pattern as in .gitignore, such as '*.conf', 'etc/*.conf' or '/passwd'
    ///
    /// '*.conf' matches in any directory. 'etc/*.conf' and '/passwd' match from the root of the
    /// backup.
    #[arg(value_name = "PATTERN", value_parser = any_bytes(pattern))]
    pattern: OsString,
    #[arg(from_global)]
    json: bool,
    #[arg(from_global)]
    quiet: bool,
}

pub(in crate::cli) fn run(args: FindArgs, storages: &Storages) -> Result<u8> {
    let FindArgs {
        repository,
        select,
        pattern,
        json,
        quiet,
    } = args;
    let filter = select.filter(&repository, true)?;
    let find = Find {
        storages: storages.clone(),
        repository,
        filter,
        pattern,
        has_header: is_terminal() && !json && !quiet,
        json,
    };
    printed(|out| find.run(out))
}
