//! Offers repositories of this host to others: over standard input and output, as the far half of an `ssh://` location, or over TLS.

use fullbore_engine::{
    backup::far_source::{SourceRights, served_sources},
    copy::{
        far::{QUESTION_ROOM, answer},
        near::NearTarget,
    },
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::REPOSITORY,
};
use fullbore_platform::{
    debug,
    memory::return_large_buffers,
    queue::{ByteBudget, Locked, start},
    write::anonymous_file,
};
use fullbore_repository::writer::must_be_possible;
use fullbore_storage::{
    Allowed, AppendRules, Confined, Location, Objects, Storages,
    wire::{
        ANSWER_WINDOW, ArrivedEnds, AskTopic, CallBody, HeldDoor, JoinOffer, MAX_ANSWER_BYTES,
        PeerSide, SessionDoor, TlsClients, TlsServer, Wire, WireService, WireStreams, WireTimes,
        listen_for_sessions, not_offered, relay_to_session, unknown_topic,
    },
};
use fullbore_tree::far::{ServedSources, question_room};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    flag,
};
use std::{
    collections::BTreeMap,
    env,
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, BufRead, BufReader, IsTerminal, Read, Seek},
    net::{IpAddr, SocketAddr, TcpListener},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::{ffi::OsStrExt, net::UnixStream},
    },
    path::PathBuf,
    process::{self, Command, Stdio},
    sync::{
        Arc, Mutex, OnceLock, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

/// The one location that the other side may open, and what it may do there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedLocation {
    /// The operations that are allowed.
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

/// What `serve --allow` gives the other side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllowedAccess {
    /// A repository.
    Repository(AllowedLocation),
    /// Files and directories at or below a path, to back them up.
    Source(PathBuf),
}

impl AllowedAccess {
    /// Reads `source:PATH`, or as [`AllowedLocation::parse`].
    ///
    /// # Errors
    /// [`ErrorKind::Usage`].
    pub fn parse(word: &str) -> Result<Self> {
        match word.strip_prefix("source:") {
            Some(path) if path.starts_with('/') => Ok(Self::Source(path.into())),
            Some(_) => Err(Error::new(
                ErrorKind::Usage,
                format!("cannot allow {word:?}: it is not source: and an absolute path"),
            )),
            None => AllowedLocation::parse(word).map(Self::Repository),
        }
    }

    /// Returns the one location, or all paths.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for several locations, or a location beside paths.
    pub fn divide(allowed: Vec<Self>) -> Result<(Option<AllowedLocation>, Vec<PathBuf>)> {
        let count = allowed.len();
        let mut paths = Vec::new();
        for one in allowed {
            match one {
                Self::Source(path) => paths.push(path),
                Self::Repository(location) if count == 1 => return Ok((Some(location), paths)),
                Self::Repository(_) => {
                    let what = "cannot allow more than one location";
                    return Err(
                        Error::new(ErrorKind::Usage, what).hint("only source:PATH can be repeated")
                    );
                }
            }
        }
        Ok((None, paths))
    }
}

/// Serves one session, or all that come.
#[derive(Debug, Clone, Default)]
pub struct Serve {
    /// How storages are reached.
    pub storages: Storages,
    /// Without it, the other side may open any location and run commands: it is whoever may log in.
    pub allowed: Option<AllowedLocation>,
    /// Only files at or below these paths are served, if there are any.
    pub sources_below: Vec<PathBuf>,
    /// Who adds backups, and how much, if backups may be added.
    pub rules: AppendRules,
    /// Lets further connections of the one session in.
    pub door: HeldDoor,
    /// The tree that the other side writes to, if it copies to one.
    pub copy: Arc<NearTarget>,
    /// Files of this host, for a backup that runs on the other one.
    pub sources: Arc<OnceLock<ServedSources>>,
}

impl Serve {
    /// May the other side do less than its user?
    fn is_limited(&self) -> bool {
        self.allowed.is_some() || !self.sources_below.is_empty()
    }

    fn sources(&self) -> &ServedSources {
        self.sources.get_or_init(|| {
            served_sources(match self.sources_below.is_empty() {
                true => SourceRights::All,
                false => SourceRights::Below(self.sources_below.clone()),
            })
        })
    }

    /// What is served to a host whose certificate has this name.
    fn for_certificate(&self, name: Option<String>) -> Self {
        Self {
            rules: self.rules.for_certificate(name),
            ..self.clone()
        }
    }

    /// Refuses options that change nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`].
    fn check_rules(&self) -> Result<()> {
        let appends = self
            .allowed
            .as_ref()
            .is_some_and(|of| of.allowed == Allowed::Append);
        if appends || self.rules == AppendRules::default() {
            return Ok(());
        }
        let what = "cannot use --host, --quota or --max-per-day without --allow append:LOCATION";
        Err(Error::new(ErrorKind::Usage, what))
    }

    /// Serves until the other side ends the connection.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] at a terminal or for options that change nothing; the reason why the connection ended, if the other side did not close it.
    pub fn run(&self) -> Result<()> {
        self.check_rules()?;
        return_large_buffers();
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
        let times = WireTimes::default();
        let arrived = ArrivedEnds::hear(streams, &times)?;
        if arrived.joins() {
            return relay_to_session(arrived);
        }
        arrived.begin(Arc::new(self.clone()), &times)?.wait()
    }

    /// Serves everyone who comes with a certificate that `clients` admits, until a signal ends this process.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if nothing is allowed, or for files of TLS that cannot be used; the address cannot be listened at.
    pub fn listen(&self, address: SocketAddr, clients: TlsClients) -> Result<()> {
        let allowed = self.allowed.as_ref().ok_or_else(|| {
            Error::new(ErrorKind::Usage, "cannot listen: nothing is allowed")
                .hint("say what hosts may do, and where: --allow append:LOCATION")
        })?;
        self.check_rules()?;
        return_large_buffers();
        let tls = TlsServer::new(self.storages.tls_files().clone(), clients)?;
        let failed = |error| Error::io(format!("could not listen at {address}"), error);
        let listener = TcpListener::bind(address).map_err(failed)?;
        let at = listener.local_addr().map_err(failed)?;
        let is_over = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            flag::register(signal, is_over.clone()).map_err(failed)?;
        }
        let location = Location::parse(&allowed.location)?;
        eprintln!("serving {location} at fullbore://{at}");
        let door = Arc::new(SessionDoor::default());
        let (serve, of) = (self.clone(), door.clone());
        let rooms = HostRooms::default();
        let service_of = move |name: Option<String>| -> Arc<dyn WireService> {
            Arc::new(ListeningService {
                answers: rooms.of(name.as_deref()),
                serve: serve.for_certificate(name),
                door: of.clone(),
            })
        };
        listen_for_sessions(&listener, tls, Box::new(service_of), door, || {
            is_over.load(Relaxed)
        })
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

/// Bytes of the data of a call that a host may send which is limited to this.
fn limited_body(allowed: Allowed, body: CallBody) -> Result<u64> {
    let is_change = matches!(
        body,
        CallBody::Object | CallBody::Amendment | CallBody::Keys | CallBody::Intent
    );
    match allowed {
        _ if !is_change => Err(body.not_offered()),
        Allowed::Read => {
            let what = "cannot change anything there: this host may only read";
            Err(Error::new(ErrorKind::Permission, what))
        }
        _ => Ok(body.max_bytes()),
    }
}

impl WireService for Serve {
    fn body_limit(&self, body: CallBody) -> Result<u64> {
        match &self.allowed {
            Some(allowed) => limited_body(allowed.allowed, body),
            None => Ok(body.max_bytes()),
        }
    }

    fn open(&self, location: &[u8]) -> Result<Arc<dyn Objects>> {
        if !self.sources_below.is_empty() {
            return Err(not_offered("a repository"));
        }
        let word = OsStr::from_bytes(location);
        let location = match &self.allowed {
            None if word.is_empty() => return Err(not_offered("a repository by itself")),
            Some(allowed) if word.is_empty() => Location::parse(&allowed.location)?,
            _ => self.location(word)?,
        };
        if matches!(
            location,
            Location::Ssh { .. } | Location::Server(_) | Location::Peer(_)
        ) {
            let what = format!("cannot open {location}: it is on a third host");
            return Err(Error::new(ErrorKind::Usage, what));
        }
        let objects = self.storages.stored_objects(&location)?;
        check_place(&*objects)?;
        match &self.allowed {
            Some(allowed) => Ok(Arc::new(Confined::new(
                objects,
                allowed.allowed,
                &self.rules,
            ))),
            None => Ok(objects),
        }
    }

    fn run(&self, arguments: Vec<OsString>, peer: PeerSide) -> Result<u8> {
        if self.is_limited() {
            return Err(not_offered("to run commands"));
        }
        run_here(&arguments, peer)
    }

    fn output(&self, _: bool, _: &[u8]) -> Result<()> {
        Err(not_offered("to print"))
    }

    fn offer(&self, peer: PeerSide) -> Result<JoinOffer> {
        self.door.offer(peer, reached_address())
    }

    fn question_room(&self, topic: AskTopic, question: &[u8]) -> usize {
        match topic {
            AskTopic::Files => question_room(question),
            AskTopic::Copy => QUESTION_ROOM,
            AskTopic::Report => 0,
        }
    }

    fn ask(&self, topic: AskTopic, question: &[u8]) -> Result<Vec<u8>> {
        match topic {
            AskTopic::Files if self.allowed.is_none() => self.sources().answer(question),
            AskTopic::Copy if !self.is_limited() => answer(&*self.copy, question),
            _ => Err(unknown_topic(topic)),
        }
    }
}

/// The address of this host that ssh was reached at.
fn reached_address() -> Option<IpAddr> {
    // The addresses and ports of both ends.
    let ends = env::var("SSH_CONNECTION").ok()?;
    ends.split(' ').nth(2)?.parse().ok()
}

/// What a server that listens offers to each host.
#[derive(Debug)]
struct ListeningService {
    serve: Serve,
    door: Arc<SessionDoor>,
    answers: Arc<ByteBudget>,
}

/// The room for answers of all sessions of a host, by the name of its certificate.
#[derive(Debug, Default)]
struct HostRooms(Mutex<BTreeMap<String, Weak<ByteBudget>>>);

impl HostRooms {
    fn of(&self, name: Option<&str>) -> Arc<ByteBudget> {
        let mut rooms = self.0.locked();
        rooms.retain(|_, room| room.strong_count() > 0);
        let name = name.unwrap_or_default();
        if let Some(room) = rooms.get(name).and_then(Weak::upgrade) {
            return room;
        }
        let room = Arc::new(ByteBudget::new(ANSWER_WINDOW));
        rooms.insert(name.to_owned(), Arc::downgrade(&room));
        room
    }
}

impl WireService for ListeningService {
    fn answer_room(&self) -> Arc<ByteBudget> {
        self.answers.clone()
    }

    fn body_limit(&self, body: CallBody) -> Result<u64> {
        self.serve.body_limit(body)
    }

    fn open(&self, location: &[u8]) -> Result<Arc<dyn Objects>> {
        self.serve.open(location)
    }

    fn run(&self, arguments: Vec<OsString>, peer: PeerSide) -> Result<u8> {
        WireService::run(&self.serve, arguments, peer)
    }

    fn output(&self, is_error: bool, bytes: &[u8]) -> Result<()> {
        self.serve.output(is_error, bytes)
    }

    fn offer(&self, peer: PeerSide) -> Result<JoinOffer> {
        self.door.offer(peer)
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

    fn ask(&self, topic: AskTopic, question: &[u8]) -> Result<Vec<u8>> {
        self.0.ask(topic, question, MAX_ANSWER_BYTES)
    }
}

/// The word for the host that has started a command.
const PEER: &str = "peer:";

/// Runs this program with other arguments. Its standard input leads to the objects of the other side, and its output goes there.
fn run_here(arguments: &[OsString], peer: PeerSide) -> Result<u8> {
    let failed = |error| Error::io("could not start fullbore", error);
    let service = Arc::new(PeerService(peer.clone()));
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    let program = env::current_exe().map_err(failed)?;
    let mut arguments = arguments.to_vec();
    let report = FarReport::of(&mut arguments)?;
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
    if let Some(report) = report {
        report.send(&peer)?;
    }
    Ok(status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .unwrap_or(1))
}

/// What stands before the path of a report of which the numbers are wanted and not the page.
pub const FAR_NUMBERS: &str = "numbers:";

/// The numbers of the report of a command, until they are sent to the host that has asked for it.
#[derive(Debug)]
struct FarReport(File);

impl FarReport {
    /// Has the command write the numbers of its report to a file without a name, if the other host wants one: `--report peer:`.
    ///
    /// # Errors
    /// The system's.
    fn of(arguments: &mut [OsString]) -> Result<Option<Self>> {
        let option = arguments.iter().position(|word| word == "--report");
        let Some(value) = option.and_then(|at| arguments.get_mut(at + 1)) else {
            return Ok(None);
        };
        if value != PEER {
            return Ok(None);
        }
        let file = anonymous_file(&env::temp_dir())
            .map_err(|error| Error::io("could not make a file for the report", error))?;
        let path = format!("/proc/{}/fd/{}", process::id(), file.as_raw_fd());
        *value = format!("{FAR_NUMBERS}{path}").into();
        Ok(Some(Self(file)))
    }

    /// Sends the report, unless the command has failed and there is none.
    ///
    /// # Errors
    /// The system's; those of the other side.
    fn send(mut self, peer: &PeerSide) -> Result<()> {
        let failed = |error| Error::io("could not read the report", error);
        let mut page = Vec::new();
        self.0.rewind().map_err(failed)?;
        self.0.read_to_end(&mut page).map_err(failed)?;
        if page.is_empty() {
            return Ok(());
        }
        peer.ask(AskTopic::Report, &page, 0).map(drop)
    }
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
        serve.open(b"").unwrap();
        let error = Serve::default().open(b"").unwrap_err();
        assert_eq!(error.kind, ErrorKind::Permission);
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
