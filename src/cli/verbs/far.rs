//! Backups whose source is on another host, and restores whose target is: the whole command runs there, with this host's repository.

use super::{backup::BackupArgs, restore::RestoreArgs};
use crate::{
    cli::{command_line, output::aside},
    error::{Error, ErrorKind, Result},
    plan::SinkSpec,
    repo::open::place,
    storage::{
        Location, Objects,
        access::connect_to_host,
        wire::{OfferedObjects, Wire},
    },
    text::shown,
};
use std::{
    ffi::{OsStr, OsString},
    io::{self, Write},
    os::unix::ffi::OsStrExt,
    sync::Arc,
};

/// Options with a value that are for this host: how it reaches others, and how it opens the repository.
const NEAR_OPTIONS: [&str; 15] = [
    "--metrics",
    "--on",
    "--ssh",
    "--far-program",
    "--key",
    "--passphrase-file",
    "--storage",
    "--connections",
    "--limit-upload",
    "--limit-download",
    "--cache-dir",
    "--encrypt-to",
    "--tls-cert",
    "--tls-key",
    "--tls-ca",
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
pub(super) fn backup(args: &BackupArgs) -> Result<Option<u8>> {
    let Some((host, paths)) = source_host(args)? else {
        return Ok(None);
    };
    check_report(args.run.report.is_some())?;
    let (to, _) = SinkSpec::parse(&args.to, args.compress)?;
    let is_new = to.is_new_repository();
    let to = args
        .encrypt
        .apply(to, &args.to, is_new, args.no_create, args.dry_run)?;
    let Some(objects) = to.storage() else {
        let what = format!("cannot back up another host to {}", to.name());
        return Err(Error::new(ErrorKind::Usage, what).because("it is no repository"));
    };
    let arguments = FarArguments {
        to: offered_name(&args.to),
        words: paths,
    };
    run(&host, objects.clone(), &arguments).map(Some)
}

/// Runs a restore on the host of its target, if that is another one. Returns the exit code.
///
/// # Errors
/// [`ErrorKind::Usage`] if the backup is in no repository; those of the connection.
pub(super) fn restore(args: &RestoreArgs) -> Result<Option<u8>> {
    let Some(to) = &args.to else {
        return Ok(None);
    };
    let Location::Ssh { host, path } = Location::parse(to.as_os_str())? else {
        return Ok(None);
    };
    check_report(args.run.report.is_some())?;
    let (location, _) = place(&args.from)?;
    if !location.is_repository() {
        let what = format!("cannot restore {location} on another host");
        return Err(Error::new(ErrorKind::Usage, what).because("it is no repository"));
    }
    let arguments = FarArguments {
        to: path.into(),
        words: vec![(args.from.clone(), offered_name(&args.from))],
    };
    run(&host, location.objects()?, &arguments).map(Some)
}

/// A word of the command line of another host, and the one that takes its place there.
type Replaced = (OsString, OsString);

/// The host that all paths are on, and what they are called there; `None` if it is this one.
fn source_host(args: &BackupArgs) -> Result<Option<(String, Vec<Replaced>)>> {
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

fn check_report(is_wanted: bool) -> Result<()> {
    if !is_wanted {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Usage,
        "cannot write a --report of a command that runs on another host",
    ))
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
            if name == "--to" || NEAR_OPTIONS.contains(&name) {
                if value.is_none() {
                    arguments.next();
                }
                if name == "--to" {
                    far.push("--to".into());
                    far.push(self.to.clone());
                }
            } else if !NEAR_FLAGS.contains(&name) {
                far.push(self.word(argument));
            }
        }
        far
    }

    fn word(&self, argument: OsString) -> OsString {
        let replaced = self.words.iter().find(|(word, _)| *word == argument);
        replaced.map_or(argument, |(_, far)| far.clone())
    }
}

fn run(host: &str, objects: Arc<dyn Objects>, arguments: &FarArguments) -> Result<u8> {
    let service = OfferedObjects { objects, print };
    let wire: Wire = connect_to_host(host, Arc::new(service))?;
    wire.run(&arguments.of(command_line::words().into_iter().skip(1)))
}

/// Prints what the command on the other host has printed, which may be anything.
fn print(is_error: bool, bytes: &[u8]) -> Result<()> {
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
        };
        let of = |line: &str| {
            let far = arguments.of(line.split(' ').map(Into::into));
            far.join(OsStr::new(" ")).into_string().unwrap()
        };
        assert_eq!(
            of("backup ssh://h/srv --to /b --key k --ssh=x --passphrase --tag a=b -x"),
            "backup /srv --to peer:/b --tag a=b -x"
        );
        assert_eq!(
            of("--far-program f backup --to=/b --encrypt-to age1 ssh://h/srv --json"),
            "backup --to peer:/b /srv --json"
        );
        assert_eq!(host("ssh://me@h:22/".into()).unwrap(), "me@h:22");
        for bad in ["h", "ssh://", "ssh://h/p"] {
            host(bad.into()).unwrap_err();
        }
    }
}
