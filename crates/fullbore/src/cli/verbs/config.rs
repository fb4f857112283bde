//! `fullbore config`.

use super::{backup_source::is_url, far_backup, run::step_words};
use crate::cli::{
    args::{Cli, Command},
    command_line,
    command_words::CommandWords,
    options::PLAIN_EXIT_CODES,
    output::{aside, printed},
    profile::{self, NamedProfile},
    report,
};
use clap::{Args, FromArgMatches, Subcommand};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    root::EntryName,
    text,
};
use fullbore_repository::select::shell_word;
use fullbore_storage::{Found, Location};
use serde_json::{Value, json};
use std::{
    ffi::{OsStr, OsString},
    io::Write,
    os::unix::ffi::OsStrExt,
    path::PathBuf,
};

/// `fullbore config`.
#[derive(Debug, Args)]
pub(in crate::cli) struct ConfigArgs {
    #[command(subcommand)]
    action: ConfigAction,
    #[arg(from_global)]
    json: bool,
}

/// The actions of `fullbore config`.
#[derive(Debug, Subcommand)]
enum ConfigAction {
    /// Check one profile or all, and print the commands they stand for
    #[command(after_help = PLAIN_EXIT_CODES)]
    Check {
        /// The profile [default: all in /etc/fullbore and ~/.config/fullbore]
        #[arg(value_name = "NAME")]
        name: Option<String>,
    },
}

/// Checks profiles.
pub(in crate::cli) fn run(args: ConfigArgs) -> Result<u8> {
    let ConfigAction::Check { name: _ } = args.action;
    if let Some(profile) = profile::of_process() {
        return printed(|out| check(profile, args.json, out).map(|()| 0));
    }
    let files = profile::all_files();
    if files.is_empty() {
        let message = "there is no profile in /etc/fullbore or ~/.config/fullbore";
        return Err(Error::new(ErrorKind::NotFound, message));
    }
    printed(|out| {
        let mut code = 0;
        for file in files {
            let checked =
                profile::in_file(file).and_then(|profile| check(&profile, args.json, out));
            if let Err(error) = checked {
                aside(report::error(&error));
                code = error.exit_code();
            }
        }
        Ok(code)
    })
}

/// Checks a profile, and prints the commands of its steps, and its hooks.
fn check(profile: &NamedProfile, is_json: bool, out: &mut dyn Write) -> Result<()> {
    profile.check_hooks()?;
    let mut lines = Vec::new();
    for step in profile.steps() {
        let words = process_words(step_words(profile, step));
        check_words(profile, step, &words)?;
        lines.push((step, words));
    }
    // Tables of other commands.
    for command in profile.profile.commands() {
        let words = process_words(profile.words_of(&[command]));
        if !lines.iter().any(|(step, _)| *step == command) {
            lines.push((command, words));
        }
    }
    for hook in &profile.profile.hooks.0 {
        let words: Vec<_> = hook.words.iter().map(OsString::from).collect();
        lines.push((hook.name, words));
    }
    let warnings = missing_places(profile);
    warnings
        .iter()
        .for_each(|warning| aside(format_args!("warning: {warning}")));
    if is_json {
        return text::json(out, &profile_json(profile, &lines, &warnings));
    }
    text::line(out, &format!("{}: {:?}", profile.name, profile.file))?;
    for (name, words) in lines {
        text::line(out, &format!("  {name}: {}", shell_line(&words)))?;
    }
    Ok(())
}

/// The profile as JSON, with the words of its steps, its commands and its hooks.
fn profile_json(
    profile: &NamedProfile,
    lines: &[(&str, Vec<OsString>)],
    warnings: &[String],
) -> Value {
    let name = |word: &OsStr| EntryName(word.as_bytes().to_vec());
    let command = |(step, words): &(&str, Vec<OsString>)| {
        let words: Vec<_> = words.iter().map(|word| name(word)).collect();
        json!({"step": step, "words": words})
    };
    let commands: Vec<_> = lines.iter().map(command).collect();
    json!({"type": "profile", "profile": profile.name, "path": name(profile.file.as_os_str()), "commands": commands,
        "warnings": warnings})
}

/// Returns the words of a process, with the name of the program.
fn process_words(words: CommandWords<'_>) -> Vec<OsString> {
    let program = [OsString::from("fullbore")].into_iter();
    program.chain(words.into_words_with(&[])).collect()
}

/// Returns what is not there now, on this host: the night would fail.
fn missing_places(profile: &NamedProfile) -> Vec<String> {
    let own = &profile.profile;
    let mut missing = Vec::new();
    let words = step_words(profile, "backup");
    let is_here = !words.has("on") && !words.has("stdin_from_command");
    for source in own.sources.iter().filter(|_| is_here) {
        if let Some(Err(error)) = local_path(source).map(|path| path.symlink_metadata()) {
            let error = Error::io(format!("could not find the source {source:?}"), error);
            missing.push(format!("{}: is its disk mounted?", error.line()));
        }
    }
    let repositories = own.repository.iter().chain(&own.also);
    for repository in repositories {
        let is_missing = local_path(repository)
            .is_some_and(|path| Location::Local(path).look() != Found::Repository);
        if is_missing {
            missing.push(format!(
                "could not find a repository at {repository:?}: `fullbore init {}` makes one, unless its disk is not mounted",
                profile.name
            ));
        }
    }
    missing
}

/// Returns the path of a source or a repository on this host.
fn local_path(word: &str) -> Option<PathBuf> {
    match Location::parse(OsStr::new(word)) {
        Ok(Location::Local(path)) if !is_url(word) => Some(path),
        _ => None,
    }
}

/// Checks the values as the command would, before it begins.
fn check_words(profile: &NamedProfile, step: &str, words: &[OsString]) -> Result<()> {
    let message = || format!("{:?}: `fullbore {step}` cannot run", profile.file);
    let parsed = command_line::program()
        .clone()
        .try_get_matches_from(words)
        .and_then(|matches| Cli::from_arg_matches(&matches));
    let error = match parsed {
        Ok(cli) => {
            let checked = match &cli.command {
                Command::Backup(args) => far_backup::check_hosts(args),
                _ => Ok(()),
            };
            return checked
                .map_err(|error| Error::new(ErrorKind::Usage, message()).because(error.line()));
        }
        Err(error) => error,
    };
    let said = error.to_string();
    let first = said.lines().next().unwrap_or_default();
    let why = first.trim_start_matches("error: ").to_owned();
    Err(Error::new(ErrorKind::Usage, message()).because(why))
}

fn shell_line(words: &[OsString]) -> String {
    let words: Vec<_> = words.iter().map(|word| shell_word(word)).collect();
    words.join(" ")
}
