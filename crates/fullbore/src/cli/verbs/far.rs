//! What this host offers to a command of it that runs on another host: its repository, its files,
//! and a place for the report.

use crate::cli::{
    command_line, command_words::CommandWords, html_report::HtmlReport, output::aside,
};
use fullbore_format::{error::Result, text::shown};
use fullbore_platform::queue::Locked;
use fullbore_storage::{
    Storages,
    wire::{Offer, ServiceNumber, WireService, answer_by, not_offered, print_service},
};
use std::{
    ffi::{OsStr, OsString},
    io::{self, Write},
    os::unix::ffi::OsStrExt,
    path::Path,
    sync::{Arc, Mutex},
};

/// The value of `--on` of a command whose files are those of the host that has started it.
pub(super) const PEER: &str = "peer:";

/// Returns an offer of standard output and standard error of this command, and of nothing else.
pub(super) fn printing() -> Offer {
    let service = |is_error| print_service(move |bytes| print(is_error, bytes));
    Offer::none()
        .service(ServiceNumber::OUTPUT, service(false))
        .service(ServiceNumber::ERRORS, service(true))
}

/// Runs the command of this process on another host, with other arguments, and offers it all that it needs of this host. Returns its
/// exit code.
pub(super) fn run_there(
    storages: &Storages,
    host: &str,
    arguments: &FarArguments,
    offer: Offer,
    report: Option<&Path>,
) -> Result<u8> {
    let words = arguments.of(command_line::own_words());
    let Some(report) = report else {
        let wire = storages.connect_to_host(host, offer)?;
        return wire.run(&words);
    };
    let report = Arc::new(Mutex::new(Some(HtmlReport::open(report)?)));
    let offer = offer.service(ServiceNumber::REPORT, report_service(report.clone()));
    let wire = storages.connect_to_host(host, offer)?;
    let code = wire.run(&words);
    // Threads of the session may hold the service until the process ends.
    drop(report.locked().take());
    code
}

/// Returns the service that writes the report of the command, once.
fn report_service(report: Arc<Mutex<Option<HtmlReport>>>) -> impl WireService + 'static {
    answer_by(move |page, _| {
        let report = report.locked().take();
        let report = report.ok_or_else(|| not_offered(ServiceNumber::REPORT.words()))?;
        report.print_numbers(page);
        Ok(Vec::new())
    })
}

/// A word of the command line of another host, and the one that takes its place there.
pub(super) type Replaced = (OsString, OsString);

pub(super) fn offered_name(word: &OsStr) -> OsString {
    [OsStr::new("peer:"), word].into_iter().collect()
}

/// The options that are for this host, by clap groups: how it reaches others, how it opens the
/// repository, and those that choose the host.
const NEAR_GROUPS: [&str; 3] = ["StorageArgs", "EncryptArgs", "near"];

/// How the arguments of this process become those of a command on another host.
#[derive(Debug)]
pub(super) struct FarArguments {
    /// The value of `--to`.
    pub(super) to: OsString,
    pub(super) words: Vec<Replaced>,
    /// Options that this host adds.
    pub(super) added: Vec<OsString>,
}

impl FarArguments {
    fn of(&self, words: CommandWords<'_>) -> Vec<OsString> {
        words
            .without_groups(&NEAR_GROUPS)
            // This host prints the lines of the other one, without its control characters.
            .without("color")
            .with_value("to", &self.to)
            // The report comes back.
            .with_value("report", OsStr::new(PEER))
            .with_places(|word| self.far_name(word))
            .into_words_with(&self.added)
    }

    fn far_name(&self, word: OsString) -> OsString {
        let replaced = self.words.iter().find(|(near, _)| *near == word);
        replaced.map_or(word, |(_, far)| far.clone())
    }
}

/// Prints what the command on the other host has printed, which may be anything.
pub(super) fn print(is_error: bool, bytes: &[u8]) -> Result<()> {
    let text = String::from_utf8_lossy(bytes);
    let text = text.strip_suffix('\n').unwrap_or(&text);
    if is_error {
        aside(text);
    } else {
        // The command goes on without its output.
        let _ = writeln!(io::stdout().lock(), "{}", shown(text));
    }
    Ok(())
}

/// Reads the value of `--on`.
///
/// # Errors
/// A text for the user.
pub(super) fn host(word: OsString) -> Result<String, String> {
    if word == PEER {
        return Ok(PEER.to_owned());
    }
    let host = word.as_bytes().strip_prefix(b"ssh://");
    let host = host.and_then(|host| std::str::from_utf8(host).ok());
    let host = host.map(|host| host.trim_end_matches('/'));
    match host {
        Some(host) if !host.is_empty() && !host.contains('/') => Ok(host.to_owned()),
        _ => Err("ssh://HOST".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::program;

    #[test]
    fn options_of_this_host_stay_here_and_places_are_replaced() {
        let arguments = FarArguments {
            to: "peer:/b".into(),
            words: vec![("ssh://h/srv".into(), "/srv".into())],
            added: vec!["--host".into(), "h".into()],
        };
        let program = program();
        for (near, far) in [
            (
                "backup ssh://h/srv --to /b --key k --ssh=x --passphrase --tag a=b -x",
                "backup /srv --to=peer:/b --tag a=b -x --host h",
            ),
            (
                "--far-program f backup --to=/b --encrypt-to age1 ssh://h/srv --json --report=r",
                "backup --to=peer:/b /srv --json --report=peer: --host h",
            ),
            (
                "--color=always backup --run-on dest --metrics m.prom --on ssh://h --no-encryption --to /b /srv",
                "backup --to=peer:/b /srv --host h",
            ),
            // Words behind `--` are no options, and a value is none either.
            (
                "backup --to /b --tag --key -- --key ssh://h/srv --to",
                "backup --to=peer:/b --tag --key --host h -- --key /srv --to",
            ),
        ] {
            let words = near.split(' ').map(OsString::from);
            let words = arguments.of(CommandWords::read(&program, words));
            assert_eq!(words.join(OsStr::new(" ")), far, "{near}");
        }
        assert_eq!(host("ssh://me@h:22/".into()).unwrap(), "me@h:22");
        for bad in ["h", "ssh://", "ssh://h/p"] {
            host(bad.into()).unwrap_err();
        }
    }
}
