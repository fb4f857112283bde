//! `fullbore tag`.

use crate::{
    cli::{
        options::EXIT_CODES,
        output::told,
        select::no_filter,
        values::{distinct_tags, tag},
    },
    command::tag::TagCommand,
};
use clap::Args;
use fullbore_format::error::Result;
use fullbore_storage::Storages;
use std::ffi::OsString;

/// `fullbore tag`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(in crate::cli) struct TagArgs {
    /// A repository, with @BACKUP for one of its backups
    ///
    /// BACKUP is an id, latest, or a day on which exactly one backup began.
    #[arg(value_name = "REPO[@BACKUP]")]
    from: OsString,
    /// Tags to set, KEY or KEY=VALUE [default: print the tags]
    #[arg(value_name = "TAG", value_parser = tag)]
    tags: Vec<(String, String)>,
    /// Remove this tag (repeatable)
    #[arg(long, value_name = "KEY")]
    remove: Vec<String>,
    #[arg(from_global)]
    json: bool,
}

pub(in crate::cli) fn run(args: TagArgs, storages: &Storages) -> Result<u8> {
    let filter = no_filter(&args.from, true);
    let tag = TagCommand {
        storages: storages.clone(),
        from: args.from,
        filter,
        set: distinct_tags(args.tags)?.into_iter().collect(),
        remove: args.remove,
        json: args.json,
    };
    told(|out| tag.run(out).map(|()| 0))
}
