//! Manual pages for `man`: the exit codes have a section of their own, one a line.

use clap_mangen::Man;
use std::io::{Result, Write};

/// The words that introduce the exit codes in the help of each command.
const CODES: &str = "EXIT CODES: ";

/// Renders the page of a command.
pub(super) fn page(command: &clap::Command, out: &mut dyn Write) -> Result<()> {
    let said = command
        .get_after_help()
        .map(ToString::to_string)
        .unwrap_or_default();
    let man = Man::new(command.clone()).source(concat!("fullbore ", env!("CARGO_PKG_VERSION")));
    man.render_title(out)?;
    man.render_name_section(out)?;
    writeln!(out, ".SH SYNOPSIS\n{}", synopsis(command))?;
    man.render_description_section(out)?;
    man.render_options_section(out)?;
    if command.has_subcommands() {
        man.render_subcommands_section(out)?;
    }
    for line in said.lines() {
        match line.strip_prefix(CODES) {
            None => writeln!(out, ".SH NOTES\n{}", roff(line))?,
            Some(codes) => exit_status(codes, out)?,
        }
    }
    Ok(())
}

/// The synopsis with all required arguments; a command with several forms has a line for each.
fn synopsis(command: &clap::Command) -> String {
    let usage = command.clone().render_usage().to_string();
    let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage);
    usage
        .lines()
        .map(|line| roff(line.trim()))
        .collect::<Vec<_>>()
        .join("\n.br\n")
}

/// Splits the text into one entry for each code.
fn exit_status(codes: &str, out: &mut dyn Write) -> Result<()> {
    write!(out, ".SH \"EXIT STATUS\"")?;
    let mut last = None;
    for part in codes.split(", ") {
        let code = part
            .split_once(' ')
            .and_then(|(code, meaning)| Some((code.parse::<u8>().ok()?, meaning)));
        match code.filter(|(code, _)| Some(*code) > last) {
            Some((code, meaning)) => {
                write!(out, "\n.TP\n\\fB{code}\\fR\n{}", roff(meaning))?;
                last = Some(code);
            }
            None => write!(out, ", {}", roff(part))?,
        }
    }
    writeln!(out)
}

fn roff(text: &str) -> String {
    text.replace('\\', "\\e")
        .replace('-', "\\-")
        .replace('\'', "\\(aq")
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_has_to_be_said_is_in_the_synopsis() {
        let option = clap::Arg::new("to")
            .long("to")
            .required(true)
            .value_name("DEST");
        let command = clap::Command::new("x")
            .bin_name("fullbore x")
            .arg(option)
            .arg(clap::Arg::new("path"));
        let mut page = Vec::new();
        super::page(&command, &mut page).unwrap();
        let page = String::from_utf8(page).unwrap();
        assert!(
            page.contains(".SH SYNOPSIS\nfullbore x \\-\\-to <DEST> [path]\n"),
            "{page}"
        );
    }

    #[test]
    fn each_code_has_a_line_and_what_is_said_besides_a_section() {
        let said = "Now this, or that.\nEXIT CODES: 0 done, 1 failed, or not, 4 damage (`--data`, 2 copies)";
        let command = clap::Command::new("x").about("Do it").after_help(said);
        let mut page = Vec::new();
        super::page(&command, &mut page).unwrap();
        let page = String::from_utf8(page).unwrap();
        let end = ".SH NOTES\nNow this, or that.\n.SH \"EXIT STATUS\"\n.TP\n\\fB0\\fR\ndone\n.TP\n\\fB1\\fR\nfailed, or not\n\
                   .TP\n\\fB4\\fR\ndamage (`\\-\\-data`, 2 copies)\n";
        assert!(
            page.contains(".SH NAME\nx \\- Do it") && page.contains(end),
            "{page}"
        );
    }
}
