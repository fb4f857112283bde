//! `fullbore config`.

use super::run::step_words;
use crate::cli::{
    command_line,
    command_words::CommandWords,
    options::PLAIN_EXIT_CODES,
    output::{aside, printed},
    profile::{self, NamedProfile},
    report,
};
use clap::{Args, Subcommand};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    text,
};
use fullbore_repository::select::shell_word;
use std::{ffi::OsString, io::Write};

/// `fullbore config`.
#[derive(Debug, Args)]
pub(in crate::cli) struct ConfigArgs {
    #[command(subcommand)]
    action: ConfigAction,
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
        return printed(|out| check(profile, out).map(|()| 0));
    }
    let files = profile::all_files();
    if files.is_empty() {
        let message = "there is no profile in /etc/fullbore or ~/.config/fullbore";
        return Err(Error::new(ErrorKind::NotFound, message));
    }
    printed(|out| {
        let mut code = 0;
        for file in files {
            let checked = profile::in_file(file).and_then(|profile| check(&profile, out));
            if let Err(error) = checked {
                aside(report::error(&error));
                code = error.exit_code();
            }
        }
        Ok(code)
    })
}

/// Checks a profile, and prints the commands of its steps, and its hooks.
fn check(profile: &NamedProfile, out: &mut dyn Write) -> Result<()> {
    profile.check_hooks()?;
    text::line(out, &format!("{}: {:?}", profile.name, profile.file))?;
    let mut lines = Vec::new();
    for step in profile.steps() {
        let words = process_words(step_words(profile, step));
        parsed(profile, step, &words)?;
        lines.push((step, shell_line(&words)));
    }
    // Tables of other commands.
    for command in profile.profile.commands() {
        let words = process_words(profile.words_of(&[command]));
        if !lines.iter().any(|(step, _)| *step == command) {
            lines.push((command, shell_line(&words)));
        }
    }
    for hook in &profile.profile.hooks.0 {
        let words: Vec<_> = hook.words.iter().map(OsString::from).collect();
        lines.push((hook.name, shell_line(&words)));
    }
    for (name, line) in lines {
        text::line(out, &format!("  {name}: {line}"))?;
    }
    Ok(())
}

/// Returns the words of a process, with the name of the program.
fn process_words(words: CommandWords<'_>) -> Vec<OsString> {
    let program = [OsString::from("fullbore")].into_iter();
    program.chain(words.into_words_with(&[])).collect()
}

/// Lets clap check the values.
fn parsed(profile: &NamedProfile, step: &str, words: &[OsString]) -> Result<()> {
    let Err(error) = command_line::program().clone().try_get_matches_from(words) else {
        return Ok(());
    };
    let said = error.to_string();
    let first = said.lines().next().unwrap_or_default();
    let why = first.trim_start_matches("error: ").to_owned();
    let message = format!("{:?}: `fullbore {step}` cannot run", profile.file);
    Err(Error::new(ErrorKind::Usage, message).because(why))
}

fn shell_line(words: &[OsString]) -> String {
    let words: Vec<_> = words.iter().map(|word| shell_word(word)).collect();
    words.join(" ")
}
