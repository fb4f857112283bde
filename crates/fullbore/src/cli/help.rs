//! The overview, and the ends of the help of each command: examples and notes.
//!
//! The heading of an option, and whether `-h` has it, are facts of its field. `--help` and the
//! manual have all options.

use super::examples::{bare_name, examples};
use clap::Command;
use std::fmt::Write;

/// Options of every command that `-h` names on one line only.
const GLOBAL_LINE: &str =
    "Every command takes -r REPO, -P PROFILE, --key FILE, -q, -v, --json: see --help.";
/// Options of some commands that `-h` names on one line only.
const SELECT_LINE: &str = "Options that select backups: --host NAME, --path PATH, --tag TAG.";
/// Commands that `fullbore -h` describes. It names all others.
const FIRST: [&str; 11] = [
    "backup", "restore", "list", "find", "stats", "verify", "forget", "prune", "copy", "run",
    "init",
];

/// Columns of a small screen.
const COLUMNS: usize = 80;

/// Adds the ends of the help of each command. Commands that are not wanted get no arguments.
pub(super) fn arranged(program: Command, is_wanted: impl Fn(&str) -> bool) -> Command {
    program.mut_subcommands(|command| match bare_name(command.get_name()) {
        Some(name) if !is_wanted(name) => Command::new(name),
        _ => with_ends(command),
    })
}

fn with_ends(command: Command) -> Command {
    let found = examples(command.get_name());
    if found.is_empty() {
        return command;
    }
    let after = command.get_after_help().map(ToString::to_string);
    let after = after.unwrap_or_default();
    let selects = command
        .get_groups()
        .any(|group| group.get_id() == "SelectArgs");
    let line = match selects {
        true => format!("{SELECT_LINE}\n{GLOBAL_LINE}"),
        false => GLOBAL_LINE.to_owned(),
    };
    command
        .after_help(format!("{line}\n{after}"))
        .after_long_help(long_end(found, after))
}

/// The notes at the end of the help of a command, without the line about the options of all commands.
pub(super) fn notes_of(command: &Command) -> String {
    let text = command.get_after_help().map(ToString::to_string);
    let text = text.unwrap_or_default();
    let notes: Vec<&str> = text.lines().filter(is_note).collect();
    notes.join("\n")
}

fn is_note(line: &&str) -> bool {
    ![SELECT_LINE, GLOBAL_LINE].contains(line)
}

/// The overview that `fullbore -h` and `fullbore` print: the usual commands, and the names of all others.
pub(super) fn overview(program: &Command) -> String {
    let mut text = "Back up and restore PostgreSQL clusters and file trees\n\n\
        Usage: fullbore COMMAND [OPTIONS], as in\n  \
        fullbore backup /srv/data --to /mnt/disk/data\n  \
        fullbore restore /mnt/disk/data --to /srv/back\n\n"
        .to_owned();
    for name in FIRST {
        let command = program.find_subcommand(name);
        let about = command.and_then(Command::get_about);
        let about = about.map(ToString::to_string).unwrap_or_default();
        let _ = writeln!(text, "  {name:<7}  {about}");
    }
    let others = program.get_subcommands().map(Command::get_name);
    let is_other = |name: &&str| !FIRST.contains(name) && *name != "help";
    let others: Vec<&str> = others.filter(is_other).collect();
    let _ = write!(
        text,
        "\n{}\n\n{GLOBAL_LINE}\n\
         `fullbore COMMAND -h` has the usual options, `fullbore --help` all commands.\n",
        in_lines("Also: ", &others),
    );
    text
}

/// Returns names in lines of a small screen.
fn in_lines(begin: &str, names: &[&str]) -> String {
    let mut lines = vec![begin.to_owned()];
    for (index, name) in names.iter().enumerate() {
        let comma = if index + 1 < names.len() { "," } else { "" };
        let line = lines.last().map_or(0, |line| line.trim_end().len());
        if line + name.len() + comma.len() >= COLUMNS {
            lines.push("  ".to_owned());
        }
        if let Some(line) = lines.last_mut() {
            line.push_str(&format!("{name}{comma} "));
        }
    }
    let lines: Vec<&str> = lines.iter().map(|line| line.trim_end()).collect();
    lines.join("\n")
}

/// The end of `--help`: examples, then the end of `-h`.
fn long_end(examples: &[(&str, &str)], after: String) -> String {
    let mut text = "EXAMPLES:\n".to_owned();
    for (word, line) in examples {
        let _ = writeln!(text, "  {word}:\n      $ {line}");
    }
    if !after.is_empty() {
        let _ = write!(text, "\n{after}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::{command, program};
    use clap::builder::StyledStr;

    /// Lines of a terminal of a usual size, which is not the smallest.
    const SCREEN_LINES: usize = 50;
    /// Lines and columns of the smallest usual terminal.
    const SMALL_SCREEN: (usize, usize) = (24, COLUMNS);
    /// Commands with a help for the smallest usual terminal.
    const SMALL: [&str; 21] = [
        "list",
        "cat",
        "mount",
        "stats",
        "prune",
        "find",
        "show",
        "init",
        "run",
        "config",
        "tag",
        "pin",
        "systemd",
        "diff",
        "unpin",
        "key",
        "serve",
        "repair",
        "bench",
        "completions",
        "man",
    ];

    /// Most characters in a short line of help: with the name of an option, a terminal of 100 columns has room for it.
    const SHORT_LINE: usize = 70;

    /// Adds the short line of help of a command, its arguments and their values, and of all commands below it.
    fn add_short_lines(command: &Command, lines: &mut Vec<(String, String)>) {
        let name = command.get_name();
        lines.push((name.to_owned(), text(command.get_about())));
        for arg in command.get_arguments() {
            let option = format!("{name} {}", arg.get_id());
            for value in arg.get_possible_values() {
                let help = value.get_help();
                lines.extend(help.map(|help| (option.clone(), help.to_string())));
            }
            lines.push((option, text(arg.get_help())));
        }
        for inner in command.get_subcommands() {
            add_short_lines(inner, lines);
        }
    }

    fn text(help: Option<&StyledStr>) -> String {
        help.map(ToString::to_string).unwrap_or_default()
    }

    #[test]
    fn the_help_of_each_argument_begins_with_a_short_line() {
        let program = program();
        let mut lines = Vec::new();
        for command in program.get_subcommands() {
            add_short_lines(command, &mut lines);
        }
        let count = |is_wrong: fn(&str) -> bool| {
            let wrong = lines.iter().filter(|(_, line)| is_wrong(line));
            let wrong: Vec<_> = wrong.collect();
            assert!(
                wrong.is_empty(),
                "{} of {}: {wrong:#?}",
                wrong.len(),
                lines.len()
            );
        };
        count(str::is_empty);
        count(|line| line.chars().count() > SHORT_LINE);
        count(|line| line.contains([';', '\n']));
        count(|line| line.ends_with('.'));
    }

    #[test]
    fn the_short_help_of_each_command_fits_a_screen() {
        let mut program = program();
        for command in program.get_subcommands_mut() {
            let help = command.render_help().to_string();
            let lines = help.lines().count();
            assert!(lines <= SCREEN_LINES, "{lines} lines\n{help}");
        }
    }

    #[test]
    fn the_overview_and_the_help_of_plain_commands_fit_a_small_screen() {
        let (lines, columns) = SMALL_SCREEN;
        let mut program = command().term_width(columns);
        program.build();
        let overview = overview(&program);
        let is_narrow = |line: &str| line.chars().count() <= columns;
        assert!(overview.lines().all(is_narrow), "{overview}");
        assert!(overview.lines().count() <= lines, "{overview}");
        for command in program.get_subcommands() {
            let name = command.get_name();
            assert!(overview.contains(name), "{name}\n{overview}");
        }
        for name in SMALL {
            let command = program.find_subcommand_mut(name).unwrap();
            let help = command.render_help().to_string();
            assert!(help.lines().count() <= lines, "{help}");
        }
    }

    #[test]
    fn the_long_help_has_all_options_in_groups_and_examples() {
        let mut program = program();
        let backup = program.find_subcommand_mut("backup").unwrap();
        let help = backup.render_long_help().to_string();
        for text in [
            "Source:",
            "Destination:",
            "Performance:",
            "EXAMPLES:",
            "EXIT CODES:",
            "--frame-size",
        ] {
            assert!(help.contains(text), "{text}\n{help}");
        }
        let short = backup.render_help().to_string();
        assert!(
            short.contains("--exclude") && !short.contains("--frame-size"),
            "{short}"
        );
    }
}
