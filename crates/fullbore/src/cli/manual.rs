//! Manual pages for `man`: with examples, variables of the environment and files; exit codes have a section, one a line.

use super::{examples::examples, help::notes_of};
use clap_mangen::Man;
use std::io::{Result, Write};

/// The words that introduce the exit codes in the help of each command.
const CODES: &str = "EXIT CODES: ";

/// Renders the page of a command.
pub(super) fn page(command: &clap::Command, out: &mut dyn Write) -> Result<()> {
    let said = notes_of(command);
    // The pages have the text of all options, also of those that `-h` leaves out.
    let complete = command.clone().mut_args(|arg| arg.hide_short_help(false));
    let man = Man::new(complete).source(concat!("fullbore ", env!("CARGO_PKG_VERSION")));
    man.render_title(out)?;
    man.render_name_section(out)?;
    writeln!(out, ".SH SYNOPSIS\n{}", synopsis(command))?;
    man.render_description_section(out)?;
    man.render_options_section(out)?;
    if command.has_subcommands() {
        man.render_subcommands_section(out)?;
    }
    for line in said.lines().filter(|line| !line.starts_with(CODES)) {
        writeln!(out, ".SH NOTES\n{}", roff(line))?;
    }
    examples_section(command.get_name(), out)?;
    list_section("ENVIRONMENT", &VARIABLES, out)?;
    list_section("FILES", &FILES, out)?;
    for codes in said.lines().filter_map(|line| line.strip_prefix(CODES)) {
        exit_status(codes, out)?;
    }
    see_also(command, out)
}

/// Variables of the environment.
const VARIABLES: [(&str, &str); 9] = [
    (
        "FULLBORE_REPOSITORY",
        "The repository of a command that names none.",
    ),
    (
        "FULLBORE_OPTION",
        "The value of --option, in capitals and with _ for -, such as FULLBORE_COMPRESS for --compress. The command line wins over it, \
         and it wins over a profile.",
    ),
    (
        "FULLBORE_PROFILE",
        "The profile of a command that names none.",
    ),
    (
        "FULLBORE_KEY_FILE, FULLBORE_PASSPHRASE",
        "A file with a key, and the passphrase itself, of an encrypted repository.",
    ),
    (
        "FULLBORE_STORAGE_KEY",
        "A setting of object stores, as --storage KEY=VALUE.",
    ),
    (
        "FULLBORE_STATE_DIR",
        "The directory for what is remembered of repositories, and for lists of a host that only adds backups.",
    ),
    (
        "FULLBORE_NO_TRICKS, FULLBORE_DEBUG",
        "Set to any value: as --no-tricks; say on standard error what is tried.",
    ),
    (
        "XDG_CONFIG_HOME, XDG_CACHE_HOME, XDG_STATE_HOME",
        "The directories of the user for profiles, caches and lists.",
    ),
    (
        "PGHOST, PGPORT, PGUSER, PGPASSWORD, PGSERVICE",
        "How a PostgreSQL server is reached, as libpq reads them.",
    ),
];

/// Files beside repositories.
const FILES: [(&str, &str); 4] = [
    (
        "~/.config/fullbore/NAME.toml, /etc/fullbore/NAME.toml",
        "Profiles; the first that is there counts.",
    ),
    (
        "~/.cache/fullbore",
        "Copies of roots and manifests in object stores.",
    ),
    (
        "~/.local/state/fullbore",
        "What is remembered of repositories, and lists of a host that only adds backups.",
    ),
    (
        "~/.pgpass, ~/.pg_service.conf",
        "Passwords and settings of PostgreSQL connections.",
    ),
];

fn examples_section(command: &str, out: &mut dyn Write) -> Result<()> {
    for (index, (word, line)) in examples(command).iter().enumerate() {
        let heading = if index == 0 { ".SH EXAMPLES\n" } else { "" };
        writeln!(out, "{heading}.TP\n{}\n.B {}", roff(word), roff(line))?;
    }
    Ok(())
}

fn list_section(name: &str, list: &[(&str, &str)], out: &mut dyn Write) -> Result<()> {
    writeln!(out, ".SH {name}")?;
    for (word, text) in list {
        writeln!(out, ".TP\n\\fB{}\\fR\n{}", roff(word), roff(text))?;
    }
    Ok(())
}

/// Commands that a reader of the page of a command may want.
const RELATED: [(&str, &[&str]); 12] = [
    ("backup", &["init", "restore", "list", "run"]),
    ("restore", &["backup", "list", "find", "verify"]),
    ("drill", &["restore", "verify", "backup"]),
    ("forget", &["prune", "pin", "run"]),
    ("prune", &["forget", "run"]),
    ("verify", &["repair", "run"]),
    ("run", &["config", "systemd", "backup", "forget", "verify"]),
    ("config", &["run", "systemd"]),
    ("systemd", &["run", "config", "schedule"]),
    ("schedule", &["backup", "status", "systemd"]),
    ("status", &["schedule", "fleet"]),
    ("list", &["show", "find", "diff"]),
];

fn see_also(command: &clap::Command, out: &mut dyn Write) -> Result<()> {
    let name = command.get_name();
    let pages: Vec<String> = if command.has_subcommands() && name == "fullbore" {
        let commands = command.get_subcommands();
        commands.map(|inner| page_name(inner.get_name())).collect()
    } else {
        let related = RELATED.iter().find(|(verb, _)| *verb == name);
        let related = related.map_or(&[][..], |(_, names)| names);
        let pages = related.iter().map(|name| page_name(name));
        ["fullbore(1)".to_owned()]
            .into_iter()
            .chain(pages)
            .collect()
    };
    writeln!(
        out,
        ".SH \"SEE ALSO\"\n{}, tar(1), zstd(1)",
        roff(&pages.join(", "))
    )
}

fn page_name(command: &str) -> String {
    format!("fullbore-{command}(1)")
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
        let notes = ".SH NOTES\nNow this, or that.\n.SH ENVIRONMENT";
        let end = ".SH \"EXIT STATUS\"\n.TP\n\\fB0\\fR\ndone\n.TP\n\\fB1\\fR\nfailed, or not\n\
                   .TP\n\\fB4\\fR\ndamage (`\\-\\-data`, 2 copies)\n";
        assert!(
            page.contains(".SH NAME\nx \\- Do it") && page.contains(notes) && page.contains(end),
            "{page}"
        );
    }

    #[test]
    fn a_page_has_all_sections_in_their_usual_order() {
        let mut program = crate::cli::args::command();
        program.build();
        for command in std::iter::once(&program).chain(program.get_subcommands()) {
            let mut page = Vec::new();
            super::page(command, &mut page).unwrap();
            let page = String::from_utf8(page).unwrap();
            let is_program = command.get_name() == "fullbore" || command.get_name() == "help";
            let examples = (!is_program).then_some(".SH EXAMPLES");
            let rest = [".SH ENVIRONMENT", ".SH FILES", ".SH \"SEE ALSO\""];
            let places: Vec<_> = [".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION"]
                .into_iter()
                .chain(examples)
                .chain(rest)
                .map(|heading| {
                    page.find(heading)
                        .unwrap_or_else(|| panic!("{heading}\n{page}"))
                })
                .collect();
            assert!(places.is_sorted(), "{}", command.get_name());
        }
    }
}
