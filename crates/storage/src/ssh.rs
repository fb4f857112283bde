//! Repositories on other hosts: starts `ssh HOST fullbore serve --stdio`, and uses its objects.

use super::{
    install::ProgramCopy,
    wire::{
        Dialer, JoinOffer, JoinedEnds, Offer, TlsFiles, Wire, WireEnds, WireLimits, WireObjects,
        WireStreams, WireTimes, connect_tcp, greet_to_join, pinned_client,
    },
};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::{child_environment::without_secrets, queue::Locked};
use std::{
    ffi::OsStr,
    io::{self, IsTerminal},
    num::NonZeroUsize,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

/// How other hosts are reached.
#[derive(Debug, Clone, Default)]
pub struct HostSettings {
    /// The program and its first arguments, split at spaces; `ssh` if there is none.
    pub command: Option<String>,
    /// The path of fullbore on other hosts; `fullbore` if there is none.
    pub far_program: Option<String>,
    /// Use a copy of this program on other hosts, and make it if it is not there.
    pub installs: bool,
    /// Connections of a session that carry data; as many as are useful if there is none.
    pub connections: Option<NonZeroUsize>,
    /// Limits of all sessions of this process.
    pub limits: WireLimits,
    /// By which servers of this program and this host know each other.
    pub tls: TlsFiles,
}

/// `HOST`, with `USER@` before and `:PORT` behind, as the arguments of ssh.
#[derive(Debug, PartialEq, Eq)]
struct SshHost {
    destination: String,
    port: Option<u16>,
}

impl SshHost {
    fn parse(host: &str) -> Result<Self> {
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
            .map(|port| {
                port.parse()
                    .map_err(|_| refused_host("its port is no number", host))
            })
            .transpose()?;
        let destination = match user {
            Some(user) => format!("{user}@{name}"),
            None => name.to_owned(),
        };
        // ssh would take it for an option.
        if name.is_empty() || destination.starts_with('-') {
            return Err(refused_host("it names no host", host));
        }
        Ok(Self { destination, port })
    }

    /// Returns the host without its user.
    fn name(&self) -> &str {
        let user_and_name = self.destination.rsplit_once('@');
        user_and_name.map_or(&self.destination, |(_, name)| name)
    }
}

fn refused_host(why: &str, host: &str) -> Error {
    let message = format!("cannot use {:?}", format!("ssh://{host}"));
    Error::new(ErrorKind::Usage, message).because(why.to_owned())
}

/// Returns a word for the shell of the other host.
fn quoted_for_shell(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Connects to the objects at a path of another host.
///
/// # Errors
/// [`ErrorKind::Unreachable`] if ssh fails, [`ErrorKind::Unsupported`] without this version of fullbore there; those of the other host.
pub(super) fn connect(host: &str, path: &Path, settings: &HostSettings) -> Result<WireObjects> {
    let wire = connect_to(host, settings, Offer::none())?;
    let name = format!("ssh://{host}{}", path.display());
    Arc::new(wire).objects(path.as_os_str(), &name)
}

/// Connects to the process that has started this one, over standard input.
///
/// # Errors
/// [`ErrorKind::Usage`] at a terminal; as `connect`.
pub fn connect_to_peer() -> Result<Wire> {
    let input = io::stdin();
    if input.is_terminal() {
        let message = "cannot use \"peer:\"";
        return Err(Error::new(ErrorKind::Usage, message)
            .because("it is for commands that another host has started"));
    }
    let streams = WireStreams {
        input: copied_descriptor(&input)?,
        output: copied_descriptor(&input)?,
    };
    Wire::connect(
        streams,
        "the other host",
        Offer::none(),
        WireTimes::default(),
    )
}

fn copied_descriptor(input: &io::Stdin) -> Result<OwnedFd> {
    let copied = input.as_fd().try_clone_to_owned();
    copied.map_err(|error| Error::io("could not open standard input", error))
}

/// Returns the objects that the process offers which has started this one.
///
/// # Errors
/// As [`connect_to_peer`].
pub(super) fn peer_objects(name: &str) -> Result<WireObjects> {
    Arc::new(connect_to_peer()?).objects(OsStr::new(""), name)
}

/// Connects to another host, and offers services to it.
///
/// # Errors
/// As `connect`.
pub fn connect_to(host: &str, settings: &HostSettings, offer: Offer) -> Result<Wire> {
    let way = SshWay::new(host, settings)?;
    let wire = match way.connect(settings, offer.clone()) {
        Err(error) if settings.installs && error.kind == ErrorKind::Unsupported => {
            let copy = ProgramCopy::of_this_program()?;
            copy.install(way.command(&[]), &way.peer)?;
            way.connect(settings, offer)?
        }
        connected => connected?,
    };
    let dialer = Arc::new(SshDialer::new(way));
    wire.dialing(dialer, settings.connections, WireTimes::default())
}

/// How ssh reaches fullbore on another host.
#[derive(Debug)]
struct SshWay {
    host: SshHost,
    /// The host, as messages call it, in quotes.
    peer: String,
    /// The program, and its first arguments.
    words: Vec<String>,
    /// Words for the shell of the other host that start fullbore.
    far_words: String,
}

impl SshWay {
    fn new(host: &str, settings: &HostSettings) -> Result<Self> {
        let words = settings.command.as_deref().unwrap_or("ssh");
        let far_words = if settings.installs {
            ProgramCopy::of_this_program()?.shell_words()
        } else {
            quoted_for_shell(settings.far_program.as_deref().unwrap_or("fullbore"))
        };
        Ok(Self {
            host: SshHost::parse(host)?,
            peer: format!("{:?}", format!("ssh://{host}")),
            words: words.split_ascii_whitespace().map(str::to_owned).collect(),
            far_words,
        })
    }

    fn program(&self) -> &str {
        self.words.first().map_or("ssh", |word| word)
    }

    /// Returns ssh with these options, and the host as its last argument so far.
    fn command(&self, options: &[&str]) -> Command {
        let mut command = Command::new(self.program());
        without_secrets(&mut command);
        command.args(self.words.iter().skip(1)).args(options);
        if let Some(port) = self.host.port {
            command.arg("-p").arg(port.to_string());
        }
        command.arg(&self.host.destination);
        command
    }

    fn connect(&self, settings: &HostSettings, offer: Offer) -> Result<Wire> {
        let times = WireTimes::default();
        let (ends, mut child) = self.start(&times)?;
        let limits = settings.limits.clone();
        let wire = Wire::greet(ends, &self.peer, offer, &times, limits);
        match wire {
            Ok(wire) => Ok(wire.keeping(Box::new(child))),
            Err(error) => Err(explained(
                error,
                child.ended(),
                &self.peer,
                &self.host.destination,
            )),
        }
    }

    /// Starts fullbore there.
    fn start(&self, times: &WireTimes) -> Result<(WireEnds, SshChild)> {
        let mut command = self.command(&[]);
        command.arg(format!("{} serve --stdio", self.far_words));
        let failed = |error| Error::io(format!("could not start {:?}", self.program()), error);
        // Sockets hold more than pipes. Two pairs: whoever shares one must not see that the other end of it does not block.
        let (output, far_input) = UnixStream::pair().map_err(failed)?;
        let (input, far_output) = UnixStream::pair().map_err(failed)?;
        command.stdin(Stdio::from(OwnedFd::from(far_input)));
        command.stdout(Stdio::from(OwnedFd::from(far_output)));
        let child = SshChild(command.spawn().map_err(failed)?);
        // It has copies of its ends of the pair.
        drop(command);
        let streams = WireStreams {
            input: input.into(),
            output: output.into(),
        };
        let ends = WireEnds::new(streams, times.greeting).map_err(failed)?;
        Ok((ends, child))
    }

    /// Returns the name or address that ssh connects to, by its configuration.
    fn host_name(&self) -> Option<String> {
        let mut command = self.command(&["-G"]);
        let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output();
        let text = String::from_utf8(output.ok()?.stdout).ok()?;
        let name = text.lines().find_map(|line| line.strip_prefix("hostname "));
        name.map(str::to_owned)
    }
}

/// Time for a TCP connection that goes beside ssh; where a firewall drops it, ssh carries the data.
const DIRECT_TIME: Duration = Duration::from_secs(2);

/// Opens further connections to a host that ssh has reached: TCP beside ssh, or more processes of ssh where that is not possible.
#[derive(Debug)]
struct SshDialer {
    way: SshWay,
    /// No TCP connection came about.
    is_blocked: AtomicBool,
    host_name: Mutex<Option<String>>,
}

impl SshDialer {
    fn new(way: SshWay) -> Self {
        Self {
            way,
            is_blocked: AtomicBool::new(false),
            host_name: Mutex::default(),
        }
    }

    fn dial_directly(&self, port: u16, pin: &[u8], offer: &JoinOffer) -> Result<JoinedEnds> {
        let mut known = self.host_name.locked();
        let host = match &*known {
            Some(host) => host.clone(),
            None => {
                let named = self.way.host_name();
                let name = self.way.host.name().to_owned();
                known.insert(named.unwrap_or(name)).clone()
            }
        };
        drop(known);
        // One limit for all steps: a host that answers byte by byte is given up too.
        let deadline = Instant::now() + 2 * DIRECT_TIME;
        let streams = connect_tcp(&host, port, DIRECT_TIME)?;
        let failed = |error| Error::io(format!("could not use port {port} of {host:?}"), error);
        let mut ends = WireEnds::new(streams, DIRECT_TIME).map_err(failed)?;
        ends.input.deadline = Some(deadline);
        ends.encrypt(pinned_client(pin)?).map_err(failed)?;
        greet_to_join(&mut ends, offer, &self.way.peer)?;
        Ok(JoinedEnds { ends, kept: None })
    }
}

impl Dialer for SshDialer {
    fn dial(&self, offer: &JoinOffer) -> Result<JoinedEnds> {
        if let Some((port, pin)) = offer.listener()
            && self.first_rests(offer)
        {
            let dialed = self.dial_directly(port, pin, offer);
            self.is_blocked.store(dialed.is_err(), Relaxed);
            return dialed;
        }
        let (mut ends, child) = self.way.start(&WireTimes::default())?;
        greet_to_join(&mut ends, offer, &self.way.peer)?;
        Ok(JoinedEnds {
            ends,
            kept: Some(Box::new(child)),
        })
    }

    fn first_rests(&self, offer: &JoinOffer) -> bool {
        offer.listener().is_some() && !self.is_blocked.load(Relaxed)
    }
}

/// Returns the error of a connection that did not come about, by the exit code of ssh.
fn explained(error: Error, status: Option<ExitStatus>, peer: &str, destination: &str) -> Error {
    let code = status.and_then(|status| status.code());
    if error.kind == ErrorKind::Unsupported && code.is_none() {
        return error;
    }
    let answer = |kind, word: &str, why: &str| {
        Error::new(kind, format!("{word} {peer}")).because(why.to_owned())
    };
    match code {
        Some(126 | 127) => answer(
            ErrorKind::Unsupported,
            "cannot start fullbore on",
            "it is not installed there, or not on the PATH of the shell that ssh starts",
        )
        .hint("use --install-far, which copies this program there, or give the path of one with --far-program"),
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
    /// Returns the exit status, if it comes soon.
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
