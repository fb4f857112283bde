//! Repositories on other hosts: starts `ssh HOST fullbore serve --stdio`, and uses its objects.

use super::wire::{NoService, Wire, WireObjects, WireService, WireStreams, WireTimes};
use crate::error::{Error, ErrorKind, Result};
use std::{
    ffi::OsStr,
    io::{self, IsTerminal},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// How other hosts are reached.
#[derive(Debug, Clone, Default)]
pub struct SshSettings {
    /// The program and its first arguments, split at spaces; `ssh` if there is none.
    pub command: Option<String>,
    /// The path of fullbore on other hosts; `fullbore` if there is none.
    pub far_program: Option<String>,
}

/// `HOST`, with `USER@` before and `:PORT` behind, as the arguments of ssh.
#[derive(Debug, PartialEq, Eq)]
struct SshHost {
    destination: String,
    port: Option<u16>,
}

impl SshHost {
    fn parse(host: &str) -> Result<Self> {
        let refused = |why: &str| {
            let what = format!("cannot use {:?}", format!("ssh://{host}"));
            Error::new(ErrorKind::Usage, what).because(why.to_owned())
        };
        let (user, rest) = host
            .rsplit_once('@')
            .map_or((None, host), |(user, rest)| (Some(user), rest));
        // An address of IPv6 has colons, and is in brackets.
        let (name, port) = match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((name, "")) => (name, None),
            Some((name, port)) => (name, port.strip_prefix(':')),
            None => rest
                .split_once(':')
                .map_or((rest, None), |(name, port)| (name, Some(port))),
        };
        let port = port
            .map(|port| port.parse().map_err(|_| refused("its port is no number")))
            .transpose()?;
        let destination = match user {
            Some(user) => format!("{user}@{name}"),
            None => name.to_owned(),
        };
        // ssh would take it for an option.
        if name.is_empty() || destination.starts_with('-') {
            return Err(refused("it names no host"));
        }
        Ok(Self { destination, port })
    }
}

/// A word for the shell of the other host.
fn quoted_for_shell(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// The objects at a path of another host.
///
/// # Errors
/// [`ErrorKind::Unreachable`] if ssh fails, [`ErrorKind::Unsupported`] without this version of fullbore there; those of the other host.
pub(super) fn connect(host: &str, path: &Path, settings: &SshSettings) -> Result<WireObjects> {
    let wire = connect_to(host, settings, Arc::new(NoService))?;
    let name = format!("ssh://{host}{}", path.display());
    Arc::new(wire).objects(path.as_os_str(), &name)
}

/// What the process offers that has started this one, over standard input.
///
/// # Errors
/// [`ErrorKind::Usage`] at a terminal; as [`connect`].
pub(super) fn peer_objects(name: &str) -> Result<WireObjects> {
    Arc::new(connect_to_peer(name)?).objects(OsStr::new(""), name)
}

/// A connection to the process that has started this one, over standard input.
///
/// # Errors
/// [`ErrorKind::Usage`] at a terminal; as [`connect`].
pub(super) fn connect_to_peer(name: &str) -> Result<Wire> {
    let input = io::stdin();
    if input.is_terminal() {
        let what = format!("cannot use {:?}", format!("peer:{name}"));
        return Err(Error::new(ErrorKind::Usage, what)
            .because("it is for commands that another host has started"));
    }
    let copy = || {
        let copied = input.as_fd().try_clone_to_owned();
        copied.map_err(|error| Error::io("could not open standard input", error))
    };
    let streams = WireStreams {
        input: copy()?,
        output: copy()?,
    };
    let service = Arc::new(NoService);
    Wire::connect(streams, "the other host", service, WireTimes::default())
}

/// A connection to another host, over which it is offered a service.
///
/// # Errors
/// As [`connect`].
pub fn connect_to(
    host: &str,
    settings: &SshSettings,
    service: Arc<dyn WireService>,
) -> Result<Wire> {
    let SshHost { destination, port } = SshHost::parse(host)?;
    let words = settings.command.as_deref().unwrap_or("ssh");
    let mut words = words.split_ascii_whitespace();
    let program = words.next().unwrap_or("ssh");
    let far_program = settings.far_program.as_deref().unwrap_or("fullbore");
    let mut command = Command::new(program);
    command.args(words);
    if let Some(port) = port {
        command.arg("-p").arg(port.to_string());
    }
    command
        .arg(&destination)
        .arg(format!("{} serve --stdio", quoted_for_shell(far_program)));
    let failed = |error| Error::io(format!("could not start {program:?}"), error);
    // Sockets hold more than pipes. Two pairs: whoever shares one must not see that the other end of it does not block.
    let (output, far_input) = UnixStream::pair().map_err(failed)?;
    let (input, far_output) = UnixStream::pair().map_err(failed)?;
    command.stdin(Stdio::from(OwnedFd::from(far_input)));
    command.stdout(Stdio::from(OwnedFd::from(far_output)));
    let mut child = SshChild(command.spawn().map_err(failed)?);
    // It has copies of its ends of the pair.
    drop(command);
    let streams = WireStreams {
        input: input.into(),
        output: output.into(),
    };
    let peer = format!("{:?}", format!("ssh://{host}"));
    match Wire::connect(streams, &peer, service, WireTimes::default()) {
        Ok(wire) => Ok(wire.keeping(Box::new(child))),
        Err(error) => Err(explained(error, child.ended(), &peer, &destination)),
    }
}

/// The error of a connection that did not come about, by the exit code of ssh.
fn explained(error: Error, status: Option<ExitStatus>, peer: &str, destination: &str) -> Error {
    let code = status.and_then(|status| status.code());
    if error.kind == ErrorKind::Unsupported && code.is_none() {
        return error;
    }
    let answer = |kind, what: &str, why: &str| {
        Error::new(kind, format!("{what} {peer}")).because(why.to_owned())
    };
    match code {
        Some(126 | 127) => answer(
            ErrorKind::Unsupported,
            "cannot start fullbore on",
            "it is not installed there, or not on the PATH of the shell that ssh starts",
        )
        .hint("install the same version of fullbore there, or give its path with --far-program"),
        Some(255) => answer(
            ErrorKind::Unreachable,
            "could not reach",
            "ssh failed, and has said why",
        )
        .hint(format!(
            "`ssh {destination} fullbore --version` must work without a question"
        )),
        Some(code) if error.kind != ErrorKind::Unsupported => answer(
            ErrorKind::Unreachable,
            "could not start fullbore on",
            &format!("it ended with exit code {code}"),
        ),
        _ => error,
    }
}

/// Time for ssh to end after the other side has ended the connection.
const ENDING: Duration = Duration::from_secs(2);

/// A running ssh. Dropped, it is ended.
#[derive(Debug)]
struct SshChild(Child);

impl SshChild {
    /// The exit status, if it comes soon.
    fn ended(&mut self) -> Option<ExitStatus> {
        let began = Instant::now();
        loop {
            match self.0.try_wait() {
                Ok(None) if began.elapsed() < ENDING => thread::sleep(Duration::from_millis(10)),
                Ok(status) => return status,
                Err(_) => return None,
            }
        }
    }
}

impl Drop for SshChild {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it may have ended
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_a_user_and_a_port_and_is_no_option() {
        let host = |destination: &str, port| SshHost {
            destination: destination.into(),
            port,
        };
        for (text, expected) in [
            ("db1", host("db1", None)),
            ("me@db1:2222", host("me@db1", Some(2222))),
            ("a@b@db1", host("a@b@db1", None)),
            ("[::1]", host("::1", None)),
            ("me@[fe80::1]:22", host("me@fe80::1", Some(22))),
        ] {
            assert_eq!(SshHost::parse(text).unwrap(), expected, "{text}");
        }
        for bad in ["-oProxyCommand=x", "-x@h", "me@", "h:port", "h:99999", ""] {
            let error = SshHost::parse(bad).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Usage, "{bad}");
        }
    }

    #[test]
    fn the_path_of_a_far_program_is_one_word_for_a_shell() {
        assert_eq!(
            quoted_for_shell("/opt/x-1.0/fullbore"),
            "/opt/x-1.0/fullbore"
        );
        let out = Command::new("sh")
            .args(["-c", &format!("printf %s {}", quoted_for_shell("a 'b' $c"))])
            .output()
            .unwrap();
        assert_eq!(out.stdout, b"a 'b' $c");
    }
}
