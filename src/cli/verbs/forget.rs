//! `fullbore forget`.

use crate::{
    cli::{
        output::told,
        select::{no_filter, wanted},
    },
    command::forget::Forget,
    error::Result,
    repo::retention::{self, RetentionRules},
};
use clap::{Args, ValueEnum, ValueHint};
use jiff::Span;
use std::ffi::OsString;

/// `fullbore forget`.
#[derive(Debug, Args)]
#[command(
    after_help = "A backup stays if any rule keeps it, or if it is pinned; and the last complete one, if all that stay lack something. \
                  What is forgotten is freed by `fullbore prune`.\n\
                  EXIT CODES: 0 done, 1 failed, 2 wrong arguments, 4 done but damaged backups were left alone"
)]
pub(in crate::cli) struct ForgetArgs {
    /// The repository
    #[arg(value_name = "REPO", value_hint = ValueHint::DirPath)]
    repository: OsString,
    /// Forget these, whatever the rules say, also the last one of a source, or what is left of one that was cut off: ids, beginnings of ids, or latest
    #[arg(value_name = "ID", conflicts_with = "Keep")]
    ids: Vec<String>,
    #[command(flatten)]
    keep: Keep,
    /// The rules hold for each source by itself, or for all backups together
    #[arg(long, value_enum, default_value_t = Group::Source)]
    group_by: Group,
    /// Only say what would be forgotten
    #[arg(long)]
    dry_run: bool,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

/// What to keep.
#[derive(Debug, Args)]
#[group(multiple = true)]
struct Keep {
    /// Keep the last N backups
    #[arg(long, value_name = "N")]
    keep_last: Option<u32>,
    /// Keep the newest of each of the last N hours that have a backup
    #[arg(long, value_name = "N")]
    keep_hourly: Option<u32>,
    /// … of the last N days
    #[arg(long, value_name = "N")]
    keep_daily: Option<u32>,
    /// … of the last N weeks
    #[arg(long, value_name = "N")]
    keep_weekly: Option<u32>,
    /// … of the last N months
    #[arg(long, value_name = "N")]
    keep_monthly: Option<u32>,
    /// … of the last N years
    #[arg(long, value_name = "N")]
    keep_yearly: Option<u32>,
    /// Keep what is no older than this before the newest: 30d, 2y5m7d3h (years, months, days, hours)
    #[arg(long, value_name = "DURATION", value_parser = span)]
    keep_within: Option<Span>,
    /// Keep what has this tag; can be repeated
    #[arg(long, value_name = "KEY[=VALUE]", value_parser = wanted)]
    keep_tag: Vec<retention::TagRule>,
}

/// What rules hold for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Group {
    /// The backups of each host and paths by themselves
    Source,
    /// All of them together
    None,
}

fn span(text: &str) -> Result<Span, String> {
    retention::span(text)
        .ok_or_else(|| "use years, months, days and hours, such as 30d or 2y5m7d3h".to_owned())
}

impl From<Keep> for RetentionRules {
    fn from(keep: Keep) -> Self {
        Self {
            last: keep.keep_last.unwrap_or(0),
            hourly: keep.keep_hourly.unwrap_or(0),
            daily: keep.keep_daily.unwrap_or(0),
            weekly: keep.keep_weekly.unwrap_or(0),
            monthly: keep.keep_monthly.unwrap_or(0),
            yearly: keep.keep_yearly.unwrap_or(0),
            within: keep.keep_within,
            tags: keep.keep_tag,
        }
    }
}

pub(in crate::cli) fn run(args: ForgetArgs) -> Result<u8> {
    let filter = no_filter(&args.repository, false);
    let forget = Forget {
        filter,
        repository: args.repository,
        ids: args.ids,
        rules: args.keep.into(),
        by_source: args.group_by == Group::Source,
        dry_run: args.dry_run,
        json: args.json,
    };
    told(|out| forget.run(out))
}
