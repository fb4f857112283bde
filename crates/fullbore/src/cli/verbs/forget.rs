//! `fullbore forget`.

use super::prune::WalKeepArgs;
use crate::cli::{
    options::rare,
    output::{aside, is_terminal, terminal_columns, told, told_unless_within},
    select::{SelectArgs, wanted},
    verbs::{forget_backups::Forget, unforget::unforget},
};
use clap::{Args, ValueEnum, ValueHint};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_repository::{
    open::{place, without_backup},
    retention::{self, RetentionRules},
};
use fullbore_storage::Storages;
use jiff::Span;
use std::{
    ffi::OsString,
    io::{IsTerminal, Write, stderr, stdin},
};

/// `fullbore forget`.
#[derive(Debug, Args)]
#[command(
    after_help = "A backup is kept if a rule keeps it, or if it is pinned. If all kept backups are incomplete, the last complete one \
                  is kept too. If all kept backups are empty, the last one with content is kept too. \
                  `fullbore prune` or --prune frees the space of forgotten backups.\n\
                  EXIT CODES: 0 done, 1 failed, 2 wrong arguments, 4 done but damaged backups were skipped"
)]
#[command(mut_args(rare(&["keep_wal"])))]
pub(in crate::cli) struct ForgetArgs {
    /// A repository, with @BACKUP to forget this backup
    #[arg(value_name = "REPO[@BACKUP]", value_hint = ValueHint::DirPath)]
    repository: OsString,
    /// Forget these backups, whatever the rules say
    ///
    /// BACKUP is an id, latest, or a day or time at which exactly one backup began.
    #[arg(value_name = "BACKUP", conflicts_with = "Keep")]
    ids: Vec<String>,
    #[command(flatten)]
    keep: Keep,
    #[command(flatten)]
    select: SelectArgs,
    /// Backups among which each rule counts
    #[arg(long, value_enum, default_value_t = Group::Source, hide_short_help = true)]
    group_by: Group,
    /// List this forgotten backup again (repeatable)
    ///
    /// This is possible until `fullbore prune` has freed its data.
    #[arg(long, value_name = "ID", conflicts_with_all = ["ids", "Keep", "prune", "dry_run"], hide_short_help = true)]
    undo: Vec<String>,
    /// Also forget the last backup of a source, without asking
    #[arg(long, short, hide_short_help = true)]
    yes: bool,
    /// Free the space at once, as `fullbore prune` does
    #[arg(long)]
    prune: bool,
    #[command(flatten)]
    wal: WalKeepArgs,
    /// Only print what would be forgotten, and how much it would free
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
pub(super) struct Keep {
    /// Keep the last N backups
    #[arg(long, value_name = "N")]
    keep_last: Option<u32>,
    /// Keep the newest backup of each of the last N hours that have one
    #[arg(long, value_name = "N", hide_short_help = true)]
    keep_hourly: Option<u32>,
    /// Keep the newest backup of each of the last N days that have one
    #[arg(long, value_name = "N")]
    keep_daily: Option<u32>,
    /// Keep the newest backup of each of the last N weeks that have one
    #[arg(long, value_name = "N")]
    keep_weekly: Option<u32>,
    /// Keep the newest backup of each of the last N months that have one
    #[arg(long, value_name = "N")]
    keep_monthly: Option<u32>,
    /// Keep the newest backup of each of the last N years that have one
    #[arg(long, value_name = "N", hide_short_help = true)]
    keep_yearly: Option<u32>,
    /// Keep backups that are at most this much older than the newest
    ///
    /// A duration such as 30d or 2y5m7d3h has years, months, weeks, days and hours.
    #[arg(long, value_name = "DURATION", value_parser = span)]
    keep_within: Option<Span>,
    /// Keep backups with this tag (repeatable)
    #[arg(long, value_name = "TAG", value_parser = wanted, hide_short_help = true)]
    keep_tag: Vec<retention::TagRule>,
}

/// Refuses rules beside a backup that is named.
fn check_rules(keep: &Keep) -> Result<()> {
    if keep.clone().rules().is_empty() {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Usage,
        "cannot forget by name and by rules at once",
    ))
}

/// The backups among which each rule counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Group {
    /// For each host and its paths
    Source,
    /// For all backups together
    None,
}

fn span(text: &str) -> Result<Span, String> {
    retention::span(text).ok_or_else(|| {
        "use years, months, weeks, days and hours, such as 30d or 2y5m7d3h".to_owned()
    })
}

impl Keep {
    /// Returns the rules that these arguments ask for.
    pub(super) fn rules(self) -> RetentionRules {
        RetentionRules {
            last: self.keep_last.unwrap_or(0),
            hourly: self.keep_hourly.unwrap_or(0),
            daily: self.keep_daily.unwrap_or(0),
            weekly: self.keep_weekly.unwrap_or(0),
            monthly: self.keep_monthly.unwrap_or(0),
            yearly: self.keep_yearly.unwrap_or(0),
            within: self.keep_within,
            tags: self.keep_tag,
        }
    }
}

pub(in crate::cli) fn run(mut args: ForgetArgs, storages: &Storages) -> Result<u8> {
    let (_, named) = place(&args.repository)?;
    if let Some(named) = named {
        args.ids.insert(0, named.to_owned());
        check_rules(&args.keep)?;
    }
    args.repository = without_backup(&args.repository).to_owned();
    if !args.undo.is_empty() {
        return undo(args, storages);
    }
    let filter = args.select.filter(&args.repository, false)?;
    let columns = terminal_columns().filter(|_| !args.json);
    let mut forget = Forget {
        storages: storages.clone(),
        filter,
        repository: args.repository,
        ids: args.ids,
        rules: args.keep.rules(),
        by_source: args.group_by == Group::Source,
        dry_run: args.dry_run,
        prune: args.prune,
        wal: args.wal.retention(),
        has_header: is_terminal(),
        columns,
        json: args.json,
        sources: None,
    };
    if !forget.ids.is_empty() {
        let named = forget.named()?;
        if !named.emptied.is_empty() && !args.yes && !args.dry_run {
            agree_to_empty(&named.emptied, args.json)?;
        }
        forget.ids = named.ids;
    }
    let is_quiet = args.quiet && !args.json;
    told_unless_within(is_quiet, columns, |out| forget.run(out))
}

/// Lists forgotten backups again.
fn undo(mut args: ForgetArgs, storages: &Storages) -> Result<u8> {
    args.undo.append(&mut args.ids);
    told(|out| unforget(storages, &args.repository, &args.undo, args.json, out).map(|()| 0))
}

/// Asks whether sources may lose their last backup.
///
/// # Errors
/// [`ErrorKind::Usage`] if the answer is not yes, or if there is no terminal to ask at.
fn agree_to_empty(sources: &[String], json: bool) -> Result<()> {
    let can_ask = !json && stdin().is_terminal() && stderr().is_terminal();
    if can_ask {
        for source in sources {
            aside(format_args!("no backup of {source} will be left"));
        }
        let _ = write!(stderr(), "Forget its last backup? [y/N] ");
        let mut answer = String::new();
        let is_read = stdin().read_line(&mut answer).is_ok();
        if is_read && matches!(answer.trim(), "y" | "Y" | "yes") {
            return Ok(());
        }
    }
    let message = "cannot forget the last backup of a source without --yes";
    let error = sources
        .iter()
        .fold(Error::new(ErrorKind::Usage, message), |error, source| {
            error.detail(format!("no backup of {source} would be left"))
        });
    Err(error.hint("nothing was forgotten; `fullbore backup` makes another one first"))
}
