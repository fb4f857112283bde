//! How the help of each command is arranged: headings, the options that `-h` leaves out, and examples.
//!
//! `--help` and the manual have all options.

use super::{args::Cli, examples::examples};
use clap::{Arg, Command, CommandFactory};
use std::fmt::Write;

const SOURCE: &str = "Source";
const DESTINATION: &str = "Destination";
const PERFORMANCE: &str = "Performance";

/// The headings of options that have none of their own, by long option.
const HEADINGS: [(&str, &[&str]); 3] = [
    (
        SOURCE,
        &[
            "exclude",
            "exclude-from",
            "exclude-caches",
            "exclude-if-present",
            "files-from",
            "null",
            "one-file-system",
            "full-paths",
            "stdin-name",
            "stdin-from-command",
            "on",
        ],
    ),
    (
        DESTINATION,
        &[
            "to",
            "no-create",
            "compress",
            "segment-size",
            "overwrite",
            "delta",
            "delete",
            "numeric-owner",
        ],
    ),
    (
        PERFORMANCE,
        &[
            "workers",
            "readers",
            "memory",
            "max-rate",
            "frame-size",
            "digest",
        ],
    ),
];

/// Commands with too many options for a screen, and those that `-h` prints.
const SHORT: [(&str, &[&str]); 4] = [
    (
        "backup",
        &[
            "to",
            "exclude",
            "exclude-caches",
            "one-file-system",
            "compress",
            "full",
            "tag",
            "dry-run",
            "no-create",
            "encrypt-to",
        ],
    ),
    (
        "restore",
        &[
            "to",
            "overwrite",
            "delta",
            "dry-run",
            "include",
            "exclude",
            "target-time",
            "keep-going",
        ],
    ),
    (
        "copy",
        &["delete", "dry-run", "checksum", "exclude", "compress"],
    ),
    (
        "export",
        &["to", "compress", "keep-going", "encrypt-to", "host", "path"],
    ),
];

/// Options of every command that `-h` prints.
const SHORT_EVERYWHERE: [&str; 7] = [
    "help",
    "json",
    "quiet",
    "verbose",
    "profile",
    "repository",
    "key",
];
/// Options of every command that `-h` leaves out.
const LONG_EVERYWHERE: [&str; 4] = ["no-tricks", "report", "passphrase-file", "color"];

/// The program for clap, with arranged help.
pub(super) fn program() -> Command {
    let of_all = |arg: Arg| {
        let is_long = is_left_out("", &arg);
        arg.hide_short_help(is_long)
    };
    Cli::command().mut_args(of_all).mut_subcommands(arranged)
}

fn arranged(command: Command) -> Command {
    let name = command.get_name().to_owned();
    let command = command.mut_args(|arg| {
        let is_long = is_left_out(&name, &arg);
        let arg = with_heading(&name, arg);
        if is_long {
            arg.hide_short_help(true)
        } else {
            arg
        }
    });
    match examples(&name) {
        [] => command,
        found => {
            let after = command.get_after_help().map(ToString::to_string);
            command.after_long_help(long_end(found, after.unwrap_or_default()))
        }
    }
}

/// Does `-h` leave the option out?
fn is_left_out(command: &str, arg: &Arg) -> bool {
    let Some(long) = arg.get_long() else {
        return arg.is_hide_short_help_set();
    };
    let short = SHORT.iter().find(|(name, _)| *name == command);
    let is_rare = short
        .is_some_and(|(_, options)| !options.contains(&long) && !SHORT_EVERYWHERE.contains(&long));
    is_rare || LONG_EVERYWHERE.contains(&long) || arg.is_hide_short_help_set()
}

fn with_heading(command: &str, arg: Arg) -> Arg {
    let is_grouped = SHORT.iter().any(|(name, _)| *name == command);
    let long = arg.get_long().filter(|_| is_grouped).unwrap_or_default();
    let mut headings = HEADINGS.iter();
    let found = headings.find(|(_, options)| options.contains(&long));
    match (found, arg.get_help_heading()) {
        (Some((heading, _)), None) => arg.help_heading(*heading),
        _ => arg,
    }
}

/// The end of `--help`: examples, then the end of `-h`.
fn long_end(examples: &[(&str, &str)], after: String) -> String {
    let mut text = "EXAMPLES:\n".to_owned();
    for (what, line) in examples {
        let _ = writeln!(text, "  {what}:\n      $ {line}");
    }
    if !after.is_empty() {
        let _ = write!(text, "\n{after}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of a terminal of a usual size, which is not the smallest.
    const SCREEN_LINES: usize = 50;

    #[test]
    fn the_short_help_of_each_command_fits_a_screen() {
        let mut program = program();
        program.build();
        for command in program.get_subcommands_mut() {
            let help = command.render_help().to_string();
            let lines = help.lines().count();
            assert!(lines <= SCREEN_LINES, "{lines} lines\n{help}");
        }
    }

    #[test]
    fn the_long_help_has_all_options_in_groups_and_examples() {
        let mut program = program();
        program.build();
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
