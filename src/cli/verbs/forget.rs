//! `fullbore forget`.

use crate::{
    cli::{
        output::{is_terminal, told_unless},
        select::{no_filter, wanted},
    },
    command::forget::Forget,
    error::{Error, ErrorKind, Result},
    repo::{
        open::{place, without_backup},
        retention::{self, RetentionRules},
    },
};
use clap::{Args, ValueEnum, ValueHint};
use jiff::Span;
use std::ffi::OsString;

/// `fullbore forget`.
#[derive(Debug, Args)]
#[command(
    after_help = "A backup stays if any rule keeps it, or if it is pinned; and the last complete one, if all that stay lack something. \
                  `fullbore prune` or --prune frees what is forgotten.\n\
                  EXIT CODES: 0 done, 1 failed, 2 wrong arguments, 4 done but damaged backups were left alone"
)]
pub(in crate::cli) struct ForgetArgs {
    /// A repository; REPO@BACKUP forgets this backup
    #[arg(value_name = "REPO[@BACKUP]", value_hint = ValueHint::DirPath)]
    repository: OsString,
    /// Forget these, whatever the rules say, also the last one of a source, or what is left of one that was cut off
    #[arg(value_name = "BACKUP", conflicts_with = "Keep")]
    ids: Vec<String>,
    #[command(flatten)]
    keep: Keep,
    /// The rules hold for each source by itself, or for all backups together
    #[arg(long, value_enum, default_value_t = Group::Source)]
    group_by: Group,
    /// Free the space at once, as `fullbore prune` does
    #[arg(long)]
    prune: bool,
    /// Only say what would be forgotten, and how much it would free
    #[arg(long, short = 'n')]
    dry_run: bool,
    #[arg(from_global)]
    json: bool,
    #[arg(from_global)]
    quiet: bool,
}

/// What to keep.
#[derive(Debug, Clone, Args)]
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
    /// Keep what is no older than this before the newest: 30d, 2y5m7d3h (years, months, weeks, days, hours)
    #[arg(long, value_name = "DURATION", value_parser = span)]
    keep_within: Option<Span>,
    /// Keep what has this tag; can be repeated
    #[arg(long, value_name = "TAG", value_parser = wanted)]
    keep_tag: Vec<retention::TagRule>,
}

/// Refuses rules beside a backup that is named.
fn check_rules(keep: &Keep) -> Result<()> {
    if RetentionRules::from(keep.clone()).is_empty() {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Usage,
        "cannot forget by name and by rules at once",
    ))
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
    retention::span(text).ok_or_else(|| {
        "use years, months, weeks, days and hours, such as 30d or 2y5m7d3h".to_owned()
    })
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

pub(in crate::cli) fn run(mut args: ForgetArgs) -> Result<u8> {
    let (_, named) = place(&args.repository)?;
    if let Some(named) = named {
        args.ids.insert(0, named.to_owned());
        check_rules(&args.keep)?;
    }
    args.repository = without_backup(&args.repository).to_owned();
    let filter = no_filter(&args.repository, false);
    let forget = Forget {
        filter,
        repository: args.repository,
        ids: args.ids,
        rules: args.keep.into(),
        by_source: args.group_by == Group::Source,
        dry_run: args.dry_run,
        prune: args.prune,
        has_header: is_terminal(),
        json: args.json,
    };
    told_unless(args.quiet && !args.json, |out| forget.run(out))
}
