//! The options that select backups of a repository.

use super::{
    command_line,
    profile::{self, NamedProfile},
    values::check_tag_key,
};
use clap::{Args, ValueHint, builder::NonEmptyStringValueParser};
use fullbore_engine::backup::paths::source_path;
use fullbore_format::error::Result;
use fullbore_repository::{
    retention::TagRule,
    select::{BackupFilter, OwnSource, RetryLine},
};
use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::Path,
};

/// Where help lists these options.
const HEADING: &str = "Which backups";

/// Options that select backups: where no id is given, the latest of them is meant.
#[derive(Debug, Clone, Args)]
pub(super) struct SelectArgs {
    /// Select backups of this host
    #[arg(long, help_heading = HEADING, value_name = "NAME", value_parser = NonEmptyStringValueParser::new(), hide_short_help = true)]
    host: Option<String>,
    /// Select backups of this source path (repeatable)
    ///
    /// The path is the one that was backed up: for a cluster its data directory, for a stream
    /// stdin:NAME.
    #[arg(long, help_heading = HEADING, value_name = "PATH", value_hint = ValueHint::AnyPath, hide_short_help = true)]
    path: Vec<OsString>,
    /// Select backups with the tag KEY or KEY=VALUE (repeatable)
    #[arg(long, short = 't', help_heading = HEADING, value_name = "TAG", value_parser = wanted, hide_short_help = true)]
    tag: Vec<TagRule>,
}

impl SelectArgs {
    /// Makes the filter. `from` is the repository, with `@ID` after it if `takes_id`.
    ///
    /// # Errors
    /// The system's, if a path is relative and the current directory cannot be read.
    pub(super) fn filter(self, from: &OsStr, takes_id: bool) -> Result<BackupFilter> {
        let paths: Vec<OsString> = self
            .path
            .into_iter()
            .map(source_name)
            .collect::<Result<_>>()?;
        let retry = RetryLine {
            has_options: true,
            ..retry(from, takes_id)
        };
        Ok(BackupFilter {
            own: own_source_unless(self.host.is_some() || !paths.is_empty()),
            host: self.host,
            paths,
            tags: self.tag,
            retry,
            ..BackupFilter::default()
        })
    }
}

/// A filter that selects everything, for a command without these options.
pub(super) fn no_filter(from: &OsStr, takes_id: bool) -> BackupFilter {
    BackupFilter {
        retry: retry(from, takes_id),
        own: own_source_unless(false),
        ..BackupFilter::default()
    }
}

/// The source of the profile of this process, unless the command line selects another one.
fn own_source_unless(is_selected: bool) -> Option<OwnSource> {
    profile::of_process()
        .filter(|_| !is_selected)
        .and_then(NamedProfile::own_source)
}

/// Converts a path to the name that a source has in the repository.
fn source_name(path: OsString) -> Result<OsString> {
    match path.as_bytes().starts_with(b"stdin:") {
        true => Ok(path),
        false => source_path(Path::new(&path)).map(OsString::from),
    }
}

/// Returns the command line of this process.
fn retry(from: &OsStr, takes_id: bool) -> RetryLine {
    let words = command_line::words();
    let place = command_line::own_words().place_of(from);
    RetryLine {
        words,
        has_options: false,
        // Behind the name of the program.
        from: place.filter(|_| takes_id).map(|place| place + 1),
    }
}

pub(super) fn wanted(text: &str) -> Result<TagRule, String> {
    check_tag_key(text.split_once('=').map_or(text, |(key, _)| key))?;
    TagRule::parse(text).ok_or_else(|| "use KEY or KEY=VALUE".to_owned())
}
