//! Backups whose source or destination is on another host, and restores whose target is: the whole command runs there, with this host's
//! repository or files; or here, with the files of that host.

use super::{
    backup::BackupArgs,
    restore::{RestoreArgs, plan},
};
use crate::cli::scope_args::looks_twice;
use crate::cli::{
    command_line, html_report::HtmlReport, options::UNREADABLE, output::aside, values::RunOn,
};
use fullbore_engine::{
    backup::{
        far_source::{FarSubject, SourceRights, check_scope, served_sources},
        paths::Scope,
    },
    plan::SinkSpec,
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::REPOSITORY,
    text::shown,
};
use fullbore_platform::queue::Locked;
use fullbore_repository::{
    open::{named, place},
    writer::must_be_possible,
};
use fullbore_storage::{
    FarBackup, FarRestore, Location, Objects, Storages,
    ssh::connect_to_peer,
    wire::{AskTopic, MAX_ANSWER_BYTES, NoService, PeerSide, Wire, WireService, unknown_topic},
};
use fullbore_tree::far::{ServedSources, opened_words, question_room};
use std::{
    ffi::{OsStr, OsString},
    io::{self, Write},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

/// Options with a value that are for this host: how it reaches others, and how it opens the repository.
const NEAR_OPTIONS: [&str; 17] = [
    "--metrics",
    "--on",
    "--ssh",
    "--far-program",
    "--key",
    "--passphrase-file",
    "--expect-keys",
    "--storage",
    "--connections",
    "--limit-upload",
    "--limit-download",
    "--cache-dir",
    "--encrypt-to",
    "--tls-cert",
    "--tls-key",
    "--tls-ca",
    "--run-on",
];

/// Options without a value that are for this host.
const NEAR_FLAGS: [&str; 4] = [
    "--passphrase",
    "--no-encryption",
    "--no-cache",
    "--install-far",
];

/// Runs a backup on the host of its source, if that is another one. Returns the exit code.
///
/// # Errors
/// [`ErrorKind::Usage`] if the paths are on several hosts, or if the destination is no repository; those of the connection.
pub(super) fn backup(args: &BackupArgs, storages: &Storages) -> Result<Option<u8>> {
    if args.on.as_deref() == Some(PEER) {
        return Ok(None);
    }
    let source = source_host(args)?;
    if args.run_on == RunOn::Dest {
        return run_at_destination(args, storages, source);
    }
    let Some((host, paths)) = source else {
        return Ok(None);
    };
    let (to, _) = SinkSpec::parse(storages, &args.to, args.compress)?;
    let is_new = args.encrypt.asks_for_new(storages, &args.to)? && to.is_new_repository();
    let to = args
        .encrypt
        .apply(storages, to, &args.to, is_new, args.no_create, args.dry_run)?;
    let Some(objects) = to.storage() else {
        let what = format!("cannot back up another host to {}", to.name());
        return Err(Error::new(ErrorKind::Usage, what).because("it is no repository"));
    };
    // The other host cannot look at a place of this one.
    if objects.as_local().is_some() && objects.stat(REPOSITORY)?.is_none() {
        must_be_possible(&**objects, args.no_create)?;
    }
    let name = args.host.clone().unwrap_or_else(|| name_of(&host));
    let arguments = FarArguments {
        to: offered_name(&args.to),
        words: paths,
        added: match &args.host {
            Some(_) => Vec::new(),
            None => vec!["--host".into(), name.clone().into()],
        },
    };
    let report = args.run.report.as_deref();
    let rights = Arc::new(FarBackup::new(objects.clone(), &name));
    let service = NearService::new(Some(rights.clone()), None, report)?;
    let code = service.run(storages, &host, &arguments)?;
    let is_done = [0, UNREADABLE].contains(&code) && !args.dry_run;
    if is_done && !rights.has_root() {
        return Err(stored_nothing(&host));
    }
    Ok(Some(code))
}

/// The name of a host in its backups: without the user and the port by which ssh reaches it.
fn name_of(host: &str) -> String {
    let name = host.rsplit_once('@').map_or(host, |(_, name)| name);
    match name.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address.to_owned(),
        None => name.split(':').next().unwrap_or(name).to_owned(),
    }
}

fn stored_nothing(host: &str) -> Error {
    let what = format!("could not back up host {host:?}: it has stored no backup here");
    Error::new(ErrorKind::System, what)
        .because("the command there said that it was done")
        .hint("check fullbore on that host; it may have been replaced")
}

/// The value of `--on` of a command whose files are those of the host that has started it.
const PEER: &str = "peer:";

/// Runs a backup on the host of its destination, if that is another one. Returns the exit code.
fn run_at_destination(
    args: &BackupArgs,
    storages: &Storages,
    source: Option<FarSource>,
) -> Result<Option<u8>> {
    check_trees(args)?;
    let Location::Ssh { host, path } = Location::parse(&args.to)? else {
        return Ok(None);
    };
    let (from, words) = match source {
        Some((from, words)) => (Some(from), words),
        None => (None, Vec::new()),
    };
    let scope = far_scope(args, &words);
    let mut added: Vec<OsString> = vec!["--on".into(), PEER.into()];
    if let (Some(from), None) = (&from, &args.host) {
        added.extend(["--host".into(), name_of(from).into()]);
    }
    let arguments = FarArguments {
        to: path.into(),
        words,
        added,
    };
    let files = match from {
        Some(from) => OfferedFiles::Far {
            wire: storages.connect_to_host(&from, Arc::new(NoService))?,
            scope: Box::new(scope),
        },
        None => OfferedFiles::Near(served_sources(SourceRights::Scope(scope))),
    };
    let service = NearService::new(None, Some(files), args.run.report.as_deref())?;
    service.run(storages, &host, &arguments).map(Some)
}

/// Only trees are read for a backup that runs on another host.
fn check_trees(args: &BackupArgs) -> Result<()> {
    let is_url = |path: &PathBuf| path.to_string_lossy().starts_with("postgres");
    let is_cluster = args.connect.is_some() || args.offline || args.scope.paths.iter().any(is_url);
    if !is_cluster && args.stdin_name.is_none() {
        return Ok(());
    }
    let what = "cannot use --run-on dest with a cluster or standard input";
    Err(Error::new(ErrorKind::Usage, what)
        .because("only files and directories are read from another host")
        .hint("leave it out: the host of the source does the work"))
}

/// The files that the command line names, by what they are called on the host that has them.
fn far_scope(args: &BackupArgs, words: &[Replaced]) -> Scope {
    let mut scope = args.scope.scope(looks_twice(args.compare));
    for path in &mut scope.paths {
        let replaced = words.iter().find(|(word, _)| word == path.as_os_str());
        if let Some((_, far)) = replaced {
            *path = far.into();
        }
    }
    scope
}

/// Files for a backup that runs on another host.
#[derive(Debug)]
enum OfferedFiles {
    /// Those of this host.
    Near(ServedSources),
    /// Those of a third one.
    Far { wire: Wire, scope: Box<Scope> },
}

/// Offers a command on another host all that it needs of this one.
#[derive(Debug)]
struct NearService {
    /// The repository of the command, if it is on this host or this host reaches it.
    objects: Option<Arc<dyn Objects>>,
    /// The source of the command, if it is not on its own host.
    files: Option<OfferedFiles>,
    /// The file for its report, until that comes.
    report: Mutex<Option<HtmlReport>>,
}

impl NearService {
    /// Opens the file for the report, if one is wanted.
    fn new(
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
    fn run(self, storages: &Storages, host: &str, arguments: &FarArguments) -> Result<u8> {
        let service = Arc::new(self);
        let wire = storages.connect_to_host(host, service.clone())?;
        let code = wire.run(&arguments.of(command_line::words().into_iter().skip(1)));
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

/// The files of another host that a backup here reads.
///
/// # Errors
/// [`ErrorKind::Usage`] for what is no tree; those of the connection.
pub(super) fn subject(args: &BackupArgs, storages: &Storages) -> Result<Option<FarSubject>> {
    if args.on.as_deref() == Some(PEER) {
        return FarSubject::new(connect_to_peer()?, far_scope(args, &[])).map(Some);
    }
    let source = source_host(args)?;
    let Some((host, paths)) = source.filter(|_| args.run_on == RunOn::Dest) else {
        return Ok(None);
    };
    let scope = far_scope(args, &paths);
    let wire = storages.connect_to_host(&host, Arc::new(NoService))?;
    Ok(Some(FarSubject::new(wire, scope)?.of_host(name_of(&host))))
}

/// Runs a restore on the host of its target, if that is another one. Returns the exit code.
///
/// # Errors
/// [`ErrorKind::Usage`] if the backup is in no repository; those of the connection.
pub(super) fn restore(args: &RestoreArgs, storages: &Storages) -> Result<Option<u8>> {
    let Some(to) = &args.to else {
        return Ok(None);
    };
    let Location::Ssh { host, path } = Location::parse(to.as_os_str())? else {
        return Ok(None);
    };
    let (location, selector) = place(&args.from)?;
    if !location.is_repository() {
        let what = format!("cannot restore {location} on another host");
        return Err(Error::new(ErrorKind::Usage, what).because("it is no repository"));
    }
    let in_place = args.overwrite.is_some() || args.delta.is_delta();
    let root = plan(args, storages)?.chosen_root(in_place)?;
    // The other host finds one backup, so it needs no other name for it than its id.
    let named = match selector {
        Some(selector) => named(without(&args.from, selector), &root.id),
        None => args.from.clone(),
    };
    let arguments = FarArguments {
        to: path.into(),
        words: vec![(args.from.clone(), offered_name(&named))],
        added: Vec::new(),
    };
    let report = args.run.report.as_deref();
    let rights = FarRestore::new(storages.objects(&location)?, &root);
    let service = NearService::new(Some(Arc::new(rights)), None, report)?;
    service.run(storages, &host, &arguments).map(Some)
}

/// The word of a repository without `@` and the words that select a backup.
fn without(word: &OsStr, selector: &str) -> OsString {
    let bytes = word.as_bytes();
    let end = bytes.len().saturating_sub(selector.len() + 1);
    OsStr::from_bytes(&bytes[..end]).to_owned()
}

/// A word of the command line of another host, and the one that takes its place there.
type Replaced = (OsString, OsString);

/// A host, and what paths are called there.
type FarSource = (String, Vec<Replaced>);

/// The host that all paths are on, and what they are called there; `None` if it is this one.
fn source_host(args: &BackupArgs) -> Result<Option<FarSource>> {
    let mut host = args.on.clone();
    let mut paths = Vec::new();
    for word in &args.scope.paths {
        let Location::Ssh { host: of, path } = Location::parse(word.as_os_str())? else {
            continue;
        };
        if host.get_or_insert_with(|| of.clone()) != &of {
            let what = "cannot back up several hosts in one backup";
            return Err(Error::new(ErrorKind::Usage, what));
        }
        paths.push((word.clone().into(), path.into()));
    }
    let is_mixed = !paths.is_empty() && paths.len() < args.scope.paths.len();
    if is_mixed && args.on.is_none() {
        let what = "cannot back up several hosts in one backup";
        return Err(Error::new(ErrorKind::Usage, what));
    }
    if host.is_some() && args.stdin_name.is_some() {
        let what = "cannot back up standard input on another host";
        return Err(Error::new(ErrorKind::Usage, what));
    }
    Ok(host.map(|host| (host, paths)))
}

fn offered_name(word: &OsStr) -> OsString {
    [OsStr::new("peer:"), word].into_iter().collect()
}

/// How the arguments of this process become those of a command on another host.
#[derive(Debug)]
struct FarArguments {
    /// The value of `--to`.
    to: OsString,
    words: Vec<Replaced>,
    /// Options that this host adds.
    added: Vec<OsString>,
}

impl FarArguments {
    fn of(&self, arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
        let mut arguments = arguments.into_iter();
        let mut far = Vec::new();
        while let Some(argument) = arguments.next() {
            let text = argument.to_string_lossy().into_owned();
            let (name, value) = text
                .split_once('=')
                .map_or((&text[..], None), |(name, value)| (name, Some(value)));
            let replaced = match name {
                "--to" => Some(self.to.clone()),
                // The report comes back.
                "--report" => Some(PEER.into()),
                _ => None,
            };
            if replaced.is_some() || NEAR_OPTIONS.contains(&name) {
                if value.is_none() {
                    arguments.next();
                }
                if let Some(value) = replaced {
                    far.extend([name.into(), value]);
                }
            } else if !NEAR_FLAGS.contains(&name) {
                far.push(self.word(argument));
            }
        }
        // Words behind `--` are no options.
        let end = far.iter().position(|word| word == "--");
        let end = end.unwrap_or(far.len());
        far.splice(end..end, self.added.iter().cloned());
        far
    }

    fn word(&self, argument: OsString) -> OsString {
        let replaced = self.words.iter().find(|(word, _)| *word == argument);
        replaced.map_or(argument, |(_, far)| far.clone())
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

    #[test]
    fn options_of_this_host_stay_here_and_places_are_replaced() {
        let arguments = FarArguments {
            to: "peer:/b".into(),
            words: vec![("ssh://h/srv".into(), "/srv".into())],
            added: vec!["--host".into(), "h".into()],
        };
        let of = |line: &str| {
            let far = arguments.of(line.split(' ').map(Into::into));
            far.join(OsStr::new(" ")).into_string().unwrap()
        };
        assert_eq!(
            of("backup ssh://h/srv --to /b --key k --ssh=x --passphrase --tag a=b -x"),
            "backup /srv --to peer:/b --tag a=b -x --host h"
        );
        assert_eq!(
            of("--far-program f backup --to=/b --encrypt-to age1 ssh://h/srv --json --report=r"),
            "backup --to peer:/b /srv --json --report peer: --host h"
        );
        assert_eq!(host("ssh://me@h:22/".into()).unwrap(), "me@h:22");
        for bad in ["h", "ssh://", "ssh://h/p"] {
            host(bad.into()).unwrap_err();
        }
        for (host, name) in [("db1", "db1"), ("me@db1:22", "db1"), ("me@[::1]:22", "::1")] {
            assert_eq!(name_of(host), name);
        }
    }
}
