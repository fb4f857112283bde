//! What this host offers to a command of it that runs on another host: its repository, its files,
//! and a place for the report.

use crate::cli::{
    command_line, command_words::CommandWords, html_report::HtmlReport, output::aside,
};
use fullbore_engine::backup::{far_source::check_scope, paths::Scope};
use fullbore_format::{error::Result, text::shown};
use fullbore_platform::queue::Locked;
use fullbore_storage::{
    Objects, Storages,
    wire::{AskTopic, MAX_ANSWER_BYTES, NoService, PeerSide, Wire, WireService, unknown_topic},
};
use fullbore_tree::far::{ServedSources, opened_words, question_room};
use std::{
    ffi::{OsStr, OsString},
    io::{self, Write},
    os::unix::ffi::OsStrExt,
    path::Path,
    sync::{Arc, Mutex},
};

/// The value of `--on` of a command whose files are those of the host that has started it.
pub(super) const PEER: &str = "peer:";

/// Files for a backup that runs on another host.
#[derive(Debug)]
pub(super) enum OfferedFiles {
    /// Those of this host.
    Near(ServedSources),
    /// Those of a third one.
    Far { wire: Wire, scope: Box<Scope> },
}

/// Offers a command on another host all that it needs of this one.
#[derive(Debug)]
pub(super) struct NearService {
    /// The repository of the command, if it is on this host or this host reaches it.
    objects: Option<Arc<dyn Objects>>,
    /// The source of the command, if it is not on its own host.
    files: Option<OfferedFiles>,
    /// The file for its report, until that comes.
    report: Mutex<Option<HtmlReport>>,
}

impl NearService {
    /// Opens the file for the report, if one is wanted.
    pub(super) fn new(
        objects: Option<Arc<dyn Objects>>,
        files: Option<OfferedFiles>,
        report: Option<&Path>,
    ) -> Result<Self> {
        let report = report.map(HtmlReport::open).transpose()?;
        Ok(Self {
            objects,
            files,
            report: Mutex::new(report),
        })
    }

    /// Runs the command of this process on another host, with other arguments. Returns its exit code.
    pub(super) fn run(
        self,
        storages: &Storages,
        host: &str,
        arguments: &FarArguments,
    ) -> Result<u8> {
        let service = Arc::new(self);
        let wire = storages.connect_to_host(host, service.clone())?;
        let code = wire.run(&arguments.of(command_line::own_words()));
        // Threads of the session may hold the service until the process ends.
        drop(service.report.locked().take());
        code
    }
}

impl WireService for NearService {
    fn open(&self, location: &[u8]) -> Result<Arc<dyn Objects>> {
        match &self.objects {
            Some(objects) => Ok(objects.clone()),
            None => NoService.open(location),
        }
    }

    fn run(&self, arguments: Vec<OsString>, peer: PeerSide) -> Result<u8> {
        NoService.run(arguments, peer)
    }

    fn output(&self, is_error: bool, bytes: &[u8]) -> Result<()> {
        print(is_error, bytes)
    }

    fn question_room(&self, topic: AskTopic, question: &[u8]) -> usize {
        match topic {
            AskTopic::Files => question_room(question),
            _ => 0,
        }
    }

    fn ask(&self, topic: AskTopic, question: &[u8]) -> Result<Vec<u8>> {
        match (topic, &self.files) {
            (AskTopic::Files, Some(OfferedFiles::Near(sources))) => sources.answer(question),
            (AskTopic::Files, Some(OfferedFiles::Far { wire, scope })) => {
                if let Some(words) = opened_words(question)? {
                    check_scope(&words, scope)?;
                }
                wire.peer().ask(topic, question, MAX_ANSWER_BYTES)
            }
            (AskTopic::Report, _) => {
                let report = self.report.locked().take();
                let report = report.ok_or_else(|| unknown_topic(topic))?;
                report.print_numbers(question);
                Ok(Vec::new())
            }
            _ => Err(unknown_topic(topic)),
        }
    }
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
