//! Offers repositories of this host to another one, over standard input and output: the far half of an `ssh://` location.

use crate::{
    copy::{
        far::{MAX_ANSWER, answer},
        near::NearTarget,
    },
    error::{Error, ErrorKind, Result},
    format::layout::REPOSITORY,
    platform::debug,
    queue::start,
    repo::writer::must_be_possible,
    storage::{
        Allowed, Confined, Location, Objects,
        access::stored_objects,
        wire::{PeerSide, Wire, WireService, WireStreams, WireTimes, not_offered},
    },
};
use std::{
    env,
    ffi::{OsStr, OsString},
    io::{self, BufRead, BufReader, IsTerminal, Read},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{ffi::OsStrExt, net::UnixStream},
    },
    process::{Command, Stdio},
    sync::Arc,
};

/// The one location that the other side may open, and what it may do there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedLocation {
    /// What may be done.
    pub allowed: Allowed,
    /// The location, as it was given.
    pub location: OsString,
}

impl AllowedLocation {
    /// Reads `read:LOCATION`, `append:LOCATION` or `write:LOCATION`.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`].
    pub fn parse(word: &str) -> Result<Self> {
        let (allowed, location) = word.split_once(':').unwrap_or((word, ""));
        let allowed = match allowed {
            "read" => Some(Allowed::Read),
            "append" => Some(Allowed::Append),
            "write" => Some(Allowed::Write),
            _ => None,
        };
        match allowed {
            Some(allowed) if !location.is_empty() => Ok(Self {
                allowed,
                location: location.into(),
            }),
            _ => Err(Error::new(
                ErrorKind::Usage,
                format!("cannot allow {word:?}: it is not read:, append: or write: and a location"),
            )),
        }
    }
}

/// Serves one connection.
#[derive(Debug, Clone, Default)]
pub struct Serve {
    /// Without it, the other side may open any location and run commands: it is whoever may log in.
    pub allowed: Option<AllowedLocation>,
    /// The tree that the other side writes to, if it copies to one.
    pub copy: Arc<NearTarget>,
}

impl Serve {
    /// Serves until the other side ends the connection.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] at a terminal; the reason why the connection ended, if the other side did not close it.
    pub fn run(&self) -> Result<()> {
        let (input, output) = (io::stdin(), io::stdout());
        if input.is_terminal() || output.is_terminal() {
            let what = "cannot serve at a terminal";
            return Err(Error::new(ErrorKind::Usage, what).hint(
                "ssh starts this command on the other host; use ssh://HOST/PATH as a repository",
            ));
        }
        let failed = |error| Error::io("could not open standard input and output", error);
        let streams = WireStreams {
            input: input.as_fd().try_clone_to_owned().map_err(failed)?,
            output: output.as_fd().try_clone_to_owned().map_err(failed)?,
        };
        let service = Arc::new(self.clone());
        Wire::connect(streams, "the other host", service, WireTimes::default())?.wait()
    }

    /// The location that the other side means.
    fn location(&self, word: &OsStr) -> Result<Location> {
        let Some(allowed) = &self.allowed else {
            return Location::parse(word);
        };
        let location = Location::parse(&allowed.location)?;
        if same_place(&location, &Location::parse(word)?) {
            return Ok(location);
        }
        let what = format!(
            "cannot open {:?}: this host may open {location} only",
            word.display()
        );
        Err(Error::new(ErrorKind::Permission, what))
    }
}

/// Two paths that differ by a slash at their ends are one.
fn same_place(a: &Location, b: &Location) -> bool {
    match (a.as_local(), b.as_local()) {
        (Some(a), Some(b)) => a.components().eq(b.components()),
        _ => a == b,
    }
}

impl WireService for Serve {
    fn open(&self, location: &[u8]) -> Result<Arc<dyn Objects>> {
        let word = OsStr::from_bytes(location);
        if word.is_empty() {
            return Err(not_offered("a repository by itself"));
        }
        let location = self.location(word)?;
        if matches!(
            location,
            Location::Ssh { .. } | Location::Server(_) | Location::Peer(_)
        ) {
            let what = format!("cannot open {location}: it is on a third host");
            return Err(Error::new(ErrorKind::Usage, what));
        }
        let objects = stored_objects(&location)?;
        check_place(&*objects)?;
        match &self.allowed {
            Some(allowed) => Ok(Arc::new(Confined::new(objects, allowed.allowed))),
            None => Ok(objects),
        }
    }

    fn run(&self, arguments: Vec<OsString>, peer: PeerSide) -> Result<u8> {
        if self.allowed.is_some() {
            return Err(not_offered("to run commands"));
        }
        run_here(&arguments, peer)
    }

    fn output(&self, _: bool, _: &[u8]) -> Result<()> {
        Err(not_offered("to print"))
    }

    fn ask(&self, question: &[u8]) -> Result<Vec<u8>> {
        if self.allowed.is_some() {
            return Err(not_offered("to copy trees"));
        }
        answer(&*self.copy, question)
    }
}

/// Offers a command on this side all that the other side offers.
#[derive(Debug)]
struct PeerService(PeerSide);

impl WireService for PeerService {
    fn open(&self, _: &[u8]) -> Result<Arc<dyn Objects>> {
        Ok(Arc::new(self.0.objects("the other host")?))
    }

    fn run(&self, _: Vec<OsString>, _: PeerSide) -> Result<u8> {
        Err(not_offered("to run commands"))
    }

    fn output(&self, _: bool, _: &[u8]) -> Result<()> {
        Err(not_offered("to print"))
    }

    fn ask(&self, question: &[u8]) -> Result<Vec<u8>> {
        self.0.ask(question, MAX_ANSWER)
    }
}

/// Runs this program with other arguments. Its standard input leads to the objects of the other side, and its output goes there.
fn run_here(arguments: &[OsString], peer: PeerSide) -> Result<u8> {
    let failed = |error| Error::io("could not start fullbore", error);
    let service = Arc::new(PeerService(peer.clone()));
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    let program = env::current_exe().map_err(failed)?;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let streams = WireStreams {
        input: ours.try_clone().map_err(failed)?.into(),
        output: ours.into(),
    };
    // It ends with the command, which says what was wrong, if it has used the objects at all.
    let serving = start(move || {
        Wire::connect(streams, "the command", service, WireTimes::default())
            .and_then(Wire::wait)
            .map_err(|error| debug(|| error.line()))
    })?;
    let (output, errors) = (child.stdout.take(), child.stderr.take());
    let also = peer.clone();
    let errors = start(move || {
        if let Some(errors) = errors {
            forward(errors, true, &also);
        }
    })?;
    if let Some(output) = output {
        forward(output, false, &peer);
    }
    let status = child.wait().map_err(failed)?;
    let _ = errors.join(); // one that panicked has printed all it could
    let _ = serving.join();
    Ok(status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .unwrap_or(1))
}

/// Bytes of the output of a command that are sent at once.
const OUTPUT_BYTES: usize = 64 << 10;

/// Sends all lines of a command to the other side, as many at once as there are. Reads on if that is gone, so that the command ends.
fn forward(from: impl Read, is_error: bool, peer: &PeerSide) {
    let mut from = BufReader::with_capacity(OUTPUT_BYTES, from);
    let mut waiting = Vec::new();
    let print = |bytes: &[u8]| {
        if let Err(error) = peer.print(is_error, bytes) {
            debug(|| error.line());
        }
    };
    loop {
        let read = match from.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Ok([]) | Err(_) => break,
            Ok(bytes) => {
                waiting.extend_from_slice(bytes);
                bytes.len()
            }
        };
        from.consume(read);
        let lines = waiting.iter().rposition(|byte| *byte == b'\n');
        let end = lines.map_or(0, |last| last + 1);
        if end > 0 || waiting.len() >= OUTPUT_BYTES {
            let rest = waiting.split_off(if end > 0 { end } else { waiting.len() });
            print(&waiting);
            waiting = rest;
        }
    }
    if !waiting.is_empty() {
        print(&waiting);
    }
}

/// Refuses a directory that neither is a repository nor may become one. The other side cannot look at it.
fn check_place(objects: &dyn Objects) -> Result<()> {
    let Some(local) = objects.as_local() else {
        return Ok(());
    };
    if matches!(objects.stat(REPOSITORY), Ok(Some(_))) {
        return local.check_backups_link();
    }
    must_be_possible(objects, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_allowed_is_a_word_and_one_location() {
        let parsed = AllowedLocation::parse("append:/srv/a:b").unwrap();
        assert_eq!(parsed.allowed, Allowed::Append);
        assert_eq!(parsed.location, "/srv/a:b");
        for bad in ["append", "append:", "all:/x", "/x", ""] {
            let error = AllowedLocation::parse(bad).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Usage, "{bad}");
        }
    }

    #[test]
    fn a_location_that_is_not_the_allowed_one_is_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        let allowed = AllowedLocation {
            allowed: Allowed::Read,
            location: dir.path().join("a").into(),
        };
        let serve = Serve {
            allowed: Some(allowed),
            ..Serve::default()
        };
        let open = |path: &str| serve.open(dir.path().join(path).as_os_str().as_bytes());
        open("a").unwrap();
        open("a/").unwrap();
        for other in ["b", "", "a/../b", "a/b"] {
            assert_eq!(
                open(other).unwrap_err().kind,
                ErrorKind::Permission,
                "{other}"
            );
        }
        assert_eq!(serve.open(b"").unwrap_err().kind, ErrorKind::Permission);
    }

    #[test]
    fn a_directory_that_holds_something_else_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("x"), "").unwrap();
        let serve = Serve::default();
        let error = serve.open(dir.path().as_os_str().as_bytes()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Usage);
        assert!(serve.open(b"ssh://h/x").is_err());
    }
}
