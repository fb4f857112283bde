//! `fullbore diff`.

use crate::{
    cli::{options::selected, output::printed, select::SelectArgs},
    command::diff::Diff,
    error::Result,
};
use clap::{Args, ValueHint};
use std::{ffi::OsString, path::PathBuf};

/// `fullbore diff`.
#[derive(Debug, Args)]
#[command(
    after_help = "Bytes are those of the content that is new; of what was changed, those that differ, in whole blocks.\n\
                  EXIT CODES: 0 done, whether they differ or not, 1 failed, 2 wrong arguments, 4 damage was found"
)]
pub(in crate::cli) struct DiffArgs {
    /// The repository
    #[arg(value_name = "REPOSITORY", value_hint = ValueHint::DirPath)]
    repository: OsString,
    #[command(flatten)]
    select: SelectArgs,
    /// A backup: an id, the beginning of one, or latest [default: the one before B of the same source]
    #[arg(value_name = "A")]
    a: Option<String>,
    /// Another one
    #[arg(value_name = "B", default_value = "latest")]
    b: String,
    /// Only these, and what is below them
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

pub(in crate::cli) fn run(args: DiffArgs) -> Result<u8> {
    let DiffArgs {
        repository,
        select,
        a,
        b,
        paths,
        json,
    } = args;
    let filter = select.filter(&repository, false)?;
    let diff = Diff {
        repository,
        filter,
        a,
        b,
        paths: selected(paths),
        json,
    };
    printed(|out| diff.run(out).map(|_| 0))
}
