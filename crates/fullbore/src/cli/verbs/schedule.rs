//! `fullbore schedule`: a timer of systemd that repeats a backup as it was typed, for people who never wrote a unit.
//!
//! A user gets a timer of their own, root one of the system. Where no systemd runs, a line for crontab is printed instead.

use super::{
    backup_args::BackupArgs,
    schedule_units::{PREFIX, ScheduledCommand, UnitDirectory, When},
};
use crate::cli::{
    command_line,
    output::{aside, printed, terminal_columns},
    profile,
};
use clap::{Args, FromArgMatches, ValueEnum};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    text::{self, columns::fitted_row},
};
use fullbore_storage::{Found, Location};
use serde_json::json;
use std::{env, ffi::OsString, path::Path};

/// `fullbore schedule`.
#[derive(Debug, Args)]
#[command(
    after_help = "Make the first backup by hand: it makes the repository, which a timer never does.\n\
                  EXIT CODES: 0 done, 1 failed (nothing was scheduled), 2 wrong arguments"
)]
pub(in crate::cli) struct ScheduleArgs {
    /// How often, or off to end it [default: list what is scheduled]
    #[arg(value_name = "WHEN", value_enum)]
    when: Option<ScheduleWord>,
    /// The words of a `fullbore backup`, or with off the names to end
    ///
    /// With -P NAME or --config FILE instead, the profile is run.
    #[arg(
        value_name = "WORD",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    words: Vec<OsString>,
    /// Use a timer of the user, also as root
    #[arg(long, hide_short_help = true)]
    user: bool,
    #[arg(from_global)]
    json: bool,
    #[arg(from_global)]
    quiet: bool,
}

/// The first word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ScheduleWord {
    /// Each hour
    Hourly,
    /// Each day
    Daily,
    /// Each week
    Weekly,
    /// Each month
    Monthly,
    /// No more
    Off,
}

impl ScheduleWord {
    fn when(self) -> Option<When> {
        match self {
            Self::Hourly => Some(When::Hourly),
            Self::Daily => Some(When::Daily),
            Self::Weekly => Some(When::Weekly),
            Self::Monthly => Some(When::Monthly),
            Self::Off => None,
        }
    }
}

pub(in crate::cli) fn run(args: ScheduleArgs) -> Result<u8> {
    let units = UnitDirectory::of_process(args.user)?;
    match args.when.map(ScheduleWord::when) {
        None => list(&units, args.json),
        Some(None) => end(&units, &args),
        Some(Some(when)) => begin(&units, when, &args),
    }
}

fn list(units: &UnitDirectory, json: bool) -> Result<u8> {
    let found = units.schedules()?;
    let columns = terminal_columns().filter(|_| !json);
    printed(|out| {
        for schedule in &found {
            if json {
                let line = json!({"type": "schedule", "name": schedule.name,
                    "when": schedule.when, "command": schedule.command});
                text::json(out, &line)?;
            } else {
                let before = format!("{:<24} {:<8} ", schedule.name, schedule.when);
                text::line(out, &fitted_row(&before, &schedule.command, columns))?;
            }
        }
        Ok(0)
    })?;
    if found.is_empty() && !json {
        aside("nothing is scheduled; `fullbore schedule daily ~ --to REPO` backs up each day");
    }
    Ok(0)
}

/// Ends all schedules, or those that are named.
fn end(units: &UnitDirectory, args: &ScheduleArgs) -> Result<u8> {
    let known: Vec<String> = units.schedules()?.into_iter().map(|one| one.name).collect();
    let named: Vec<String> = { args.words.iter() }
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    if let Some(unknown) = named.iter().find(|name| !known.contains(name)) {
        let message = format!("could not find the schedule {unknown:?}");
        return Err(Error::new(ErrorKind::NotFound, message).hint("`fullbore schedule` lists them"));
    }
    let ended = if named.is_empty() { known } else { named };
    for name in &ended {
        units.remove(name)?;
    }
    tell(
        args,
        &json!({"type": "result", "ended": ended}),
        || match ended.is_empty() {
            true => "nothing was scheduled".to_owned(),
            false => format!("ended: {}", ended.join(", ")),
        },
    )
}

fn begin(units: &UnitDirectory, when: When, args: &ScheduleArgs) -> Result<u8> {
    let command = match profile::of_process() {
        Some(profile) if args.words.is_empty() => ScheduledCommand::of_profile(profile)?,
        Some(_) => {
            let message = "cannot schedule a profile and a backup at once";
            return Err(Error::new(ErrorKind::Usage, message));
        }
        None => of_words(when)?,
    };
    if !units.has_systemd() {
        let message = "could not schedule: no systemd runs here for this user";
        let lines = command.crontab_lines(when)?;
        let error = Error::new(ErrorKind::Unsupported, message);
        let error = lines.into_iter().fold(error, Error::detail);
        return Err(error.hint(match when {
            When::Hourly => "add this line to your crontab with `crontab -e`",
            _ => "add these lines to your crontab with `crontab -e`; cron makes up for nothing: choose an hour (12) at which this host is on, and the second line backs up after each start",
        }));
    }
    units.write(&command, when)?;
    let name = &command.name;
    let unit = format!("{PREFIX}{name}.timer");
    let result = json!({"type": "result", "name": name, "when": when.word(), "unit": unit});
    tell(args, &result, || {
        format!(
            "scheduled {}: {}\n`fullbore schedule off {name}` ends it, `{}` shows its runs, and `fullbore status` tells when it is late",
            when.word(),
            command.typed,
            units.journal(name),
        )
    })?;
    if !args.quiet && !args.json && units.is_of_user() {
        aside(
            "note: it runs while you are logged in, and later what was missed; `loginctl enable-linger` lets it run always",
        );
    }
    Ok(0)
}

fn tell(
    args: &ScheduleArgs,
    result: &serde_json::Value,
    line: impl FnOnce() -> String,
) -> Result<u8> {
    printed(|out| {
        if args.json {
            text::json(out, result)?;
        } else if !args.quiet {
            line().lines().try_for_each(|line| text::line(out, line))?;
        }
        Ok(0)
    })
}

/// Returns the words behind WHEN as they were typed, also those that are options of each command.
fn typed_words() -> Vec<OsString> {
    let words = command_line::words();
    let is_when = |word: &OsString| {
        let word = word.to_str();
        word.is_some_and(|word| ScheduleWord::from_str(word, false).is_ok())
    };
    let command = words.iter().position(|word| word == "schedule");
    let rest = command.map_or(&[][..], |command| &words[command + 1..]);
    let when = rest.iter().position(is_when);
    when.map_or(Vec::new(), |when| rest[when + 1..].to_vec())
}

/// Returns the command of the words of a backup, if a timer can run it.
fn of_words(when: When) -> Result<ScheduledCommand> {
    let words = typed_words();
    let backup = parsed(&words)?;
    check_ends(&backup)?;
    check_environment(&backup)?;
    let mut own = Vec::new();
    if !backup.no_create {
        // A disk that is not plugged in gets no repository at its mount point.
        own.push("--no-create".into());
    }
    if backup.every.is_none() {
        own.extend(["--every".into(), OsString::from(when.interval())]);
    }
    let dir = env::current_dir().map_err(|e| Error::io("could not find this directory", e))?;
    ScheduledCommand::of_backup(&dir, own, &words, &backup.scope.paths)
}

fn parsed(words: &[OsString]) -> Result<BackupArgs> {
    let program = command_line::program().clone();
    let line = ["fullbore", "backup"].map(OsString::from).into_iter();
    let matches = program.try_get_matches_from(line.chain(words.iter().cloned()));
    let read = matches.and_then(|matches| match matches.subcommand() {
        Some((_, matches)) => BackupArgs::from_arg_matches(matches),
        None => Err(clap::Error::new(clap::error::ErrorKind::MissingSubcommand)),
    });
    read.map_err(|error| {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default();
        let why = first.trim_start_matches("error: ").trim_end_matches(':');
        let lacking = text
            .lines()
            .skip(1)
            .take_while(|line| line.starts_with("  "));
        let lacking: Vec<&str> = lacking.map(str::trim).collect();
        Error::new(
            ErrorKind::Usage,
            "cannot schedule: the words are not those of a backup",
        )
        .because(format!("{why} {}", lacking.join(" ")).trim())
        .hint("for example `fullbore schedule daily ~ --to /mnt/disk/home`")
    })
}

/// Refuses variables that this command has and a timer does not: by hand the backup works, and at night it would fail.
fn check_environment(backup: &BackupArgs) -> Result<()> {
    let verb = command_line::program().find_subcommand("backup");
    let options = verb.map(profile::option_variables).unwrap_or_default();
    let to = backup.first_to().to_string_lossy();
    let is_store = ["s3://", "gs://", "az://"]
        .iter()
        .any(|scheme| to.starts_with(scheme));
    let is_needed = |name: &String| {
        let is_of_store = ["AWS_", "GOOGLE_", "AZURE_"]
            .iter()
            .any(|begin| name.starts_with(begin));
        options.contains(name) || name == "FULLBORE_PASSPHRASE" || (is_store && is_of_store)
    };
    let set = env::vars_os().filter(|(_, value)| !value.is_empty());
    let names = set.filter_map(|(name, _)| name.into_string().ok());
    let mut lost: Vec<String> = names.filter(is_needed).collect();
    if lost.is_empty() {
        return Ok(());
    }
    lost.sort();
    let message = format!(
        "cannot schedule: a timer does not have {}, which is set here",
        lost.join(", ")
    );
    Err(Error::new(ErrorKind::Usage, message).hint(
        "give it as an option, or in a profile: `fullbore schedule daily -P NAME`; credentials of a store belong in its own file, such as ~/.aws/credentials",
    ))
}

/// Refuses a source that is not there, and a destination that the timer would find without a repository.
fn check_ends(backup: &BackupArgs) -> Result<()> {
    if backup.stdin_name.is_some() || backup.dry_run {
        let message = "cannot schedule a backup of standard input, or one that stores nothing";
        return Err(Error::new(ErrorKind::Usage, message));
    }
    let is_url = |path: &Path| path.to_string_lossy().contains("://");
    let mut local = backup.scope.paths.iter().filter(|path| !is_url(path));
    if let Some(lost) = local.find(|path| !path.exists()) {
        let message = format!("could not find the source {lost:?}");
        return Err(Error::new(ErrorKind::NotFound, message));
    }
    let place = Location::parse(backup.first_to())?;
    if place.as_local().is_some() && place.look() != Found::Repository {
        let message = format!("could not find a repository at {place}");
        return Err(Error::new(ErrorKind::NotFound, message).hint(
            "plug in its disk, or make the first backup by hand: `fullbore backup PATH --to REPO`",
        ));
    }
    Ok(())
}
