//! Offers repositories of this host to others: over standard input and output, as the far half of an `ssh://` location, or over TLS.

use super::{allowed_access::AllowedLocation, far_command::run_here};
use fullbore_engine::{
    backup::{far_source::SourceRights, file_service::FileService},
    copy::{near::NearTarget, service::CopyService},
    tape::service::TapeService,
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::REPOSITORY,
};
use fullbore_platform::{
    memory::return_large_buffers,
    queue::{ByteBudget, Locked},
};
use fullbore_repository::writer::must_be_possible;
use fullbore_storage::{
    Allowed, AppendRules, Confined, Location, Objects, Storages,
    wire::{
        ANSWER_WINDOW, ArrivedEnds, HeldDoor, ObjectBody, ObjectService, Offer, ServiceNumber,
        SessionDoor, TlsClients, TlsServer, WireStreams, WireTimes, command_service,
        connection_service, listen_for_sessions, not_offered, relay_to_session,
    },
};
use fullbore_tape::{TapeGrant, TapeRights};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    flag,
};
use std::{
    collections::BTreeMap,
    env,
    ffi::OsStr,
    io::{self, IsTerminal},
    net::{IpAddr, SocketAddr, TcpListener},
    os::{fd::AsFd, unix::ffi::OsStrExt},
    path::PathBuf,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

/// Serves one session, or all that come.
#[derive(Debug, Clone, Default)]
pub(in crate::cli) struct Serve {
    /// How storages are reached.
    pub(in crate::cli) storages: Storages,
    /// Without it, the other side may open any location and run commands: it is whoever may log in.
    pub(in crate::cli) allowed: Option<AllowedLocation>,
    /// Only files at or below these paths are served, if there are any.
    pub(in crate::cli) sources_below: Vec<PathBuf>,
    /// Who adds backups, and how much, if backups may be added.
    pub(in crate::cli) rules: AppendRules,
}

impl Serve {
    /// Returns the objects that the other side may open.
    fn objects(&self) -> ServedPlaces {
        ServedPlaces {
            storages: self.storages.clone(),
            allowed: self.allowed.clone(),
            rules: self.rules.clone(),
        }
    }

    /// Returns what one session is offered over standard input and output.
    fn offer(&self, tapes: &TapeService) -> Offer {
        let door = HeldDoor::default();
        let offer = Offer::none().service(
            ServiceNumber::CONNECTIONS,
            connection_service(move |peer| door.offer(peer, reached_address())),
        );
        if self.tape_grant().is_some() {
            return offer.service(ServiceNumber::TAPE, tapes.clone());
        }
        if self.allowed.is_some() {
            return offer.objects(self.objects());
        }
        if !self.sources_below.is_empty() {
            let files = FileService::new(SourceRights::Below(self.sources_below.clone()));
            return offer.service(ServiceNumber::FILES, files);
        }
        // Without a limit the other side is whoever may log in here.
        let target = Arc::new(NearTarget::default());
        offer
            .objects(self.objects())
            .service(ServiceNumber::FILES, FileService::new(SourceRights::All))
            .service(ServiceNumber::COPY, CopyService::new(target))
            .service(ServiceNumber::COMMANDS, command_service(run_here))
            .service(ServiceNumber::TAPE, tapes.clone())
    }

    /// Returns the only drive that may be used, if one is allowed.
    fn tape_grant(&self) -> Option<TapeRights> {
        let AllowedLocation { allowed, location } = self.allowed.as_ref()?;
        let Ok(Location::Tape(drive)) = Location::parse(location) else {
            return None;
        };
        let grant = match allowed {
            Allowed::Read => TapeGrant::Read,
            Allowed::Append => TapeGrant::Append,
            Allowed::Write => TapeGrant::Write,
        };
        Some(TapeRights::One { drive, grant })
    }

    /// Returns what a host is offered that has come with a certificate.
    fn offer_to_host(&self, door: &Arc<SessionDoor>, room: Arc<ByteBudget>) -> Offer {
        let door = door.clone();
        let connections = connection_service(move |peer| door.offer(peer));
        Offer::none()
            .objects(self.objects())
            .service(ServiceNumber::CONNECTIONS, connections)
            .with_room(room)
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
            .is_some_and(|location| location.allowed == Allowed::Append);
        let of_repository = appends && self.tape_grant().is_none();
        if of_repository || self.rules == AppendRules::default() {
            return Ok(());
        }
        let message =
            "cannot use --host, --quota or --max-per-day without --allow append: and a repository";
        Err(Error::new(ErrorKind::Usage, message))
    }

    /// Serves until the other side ends the connection.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] at a terminal or for options that change nothing; the reason why the connection ended, if the other side did not close it.
    pub(in crate::cli) fn run(&self) -> Result<()> {
        self.check_rules()?;
        return_large_buffers();
        let (input, output) = (io::stdin(), io::stdout());
        if input.is_terminal() || output.is_terminal() {
            let message = "cannot serve at a terminal";
            return Err(Error::new(ErrorKind::Usage, message).hint(
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
        let tapes = TapeService::new(self.tape_grant().unwrap_or(TapeRights::All));
        let session = arrived.begin(self.offer(&tapes), &times)?.wait();
        // Also if the connection was lost: what came is on the tape then.
        let ended = tapes.end();
        session.and(ended)
    }

    /// Serves everyone who comes with a certificate that `clients` admits, until a signal ends this process.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if nothing is allowed, or for files of TLS that cannot be used; the address cannot be listened at.
    pub(in crate::cli) fn listen(&self, address: SocketAddr, clients: TlsClients) -> Result<()> {
        let allowed = self.allowed.as_ref().ok_or_else(|| {
            Error::new(ErrorKind::Usage, "cannot listen: nothing is allowed")
                .hint("say what hosts may do, and where: --allow append:LOCATION")
        })?;
        if self.tape_grant().is_some() {
            let message = "cannot listen: a drive is served over ssh only";
            return Err(Error::new(ErrorKind::Usage, message));
        }
        self.check_rules()?;
        return_large_buffers();
        let tls = TlsServer::new(self.storages.tls_files().clone(), clients)?;
        let failed = |error| Error::io(format!("could not listen at {address}"), error);
        let listener = TcpListener::bind(address).map_err(failed)?;
        let listening = listener.local_addr().map_err(failed)?;
        let is_over = Arc::new(AtomicBool::new(false));
        // A signal does not end the process at once: the loop below looks at the flag.
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            flag::register(signal, is_over.clone()).map_err(failed)?;
        }
        let location = Location::parse(&allowed.location)?;
        eprintln!("serving {location} at fullbore://{listening}");
        let door = Arc::new(SessionDoor::default());
        let serve = self.clone();
        let offered_door = door.clone();
        let rooms = HostRooms::default();
        let offer_to = move |name: Option<String>| -> Offer {
            let room = rooms.of(name.as_deref());
            serve
                .for_certificate(name)
                .offer_to_host(&offered_door, room)
        };
        listen_for_sessions(&listener, tls, Box::new(offer_to), door, || {
            is_over.load(Relaxed)
        })
    }
}

/// The locations of this host that the other side may open.
#[derive(Debug)]
struct ServedPlaces {
    storages: Storages,
    /// The only one; any without it.
    allowed: Option<AllowedLocation>,
    rules: AppendRules,
}

impl ServedPlaces {
    /// The location that the other side means.
    fn location(&self, word: &OsStr) -> Result<Location> {
        let Some(allowed) = &self.allowed else {
            return Location::parse(word);
        };
        let location = Location::parse(&allowed.location)?;
        if same_place(&location, &Location::parse(word)?) {
            return Ok(location);
        }
        let message = format!(
            "cannot open {:?}: this host may open {location} only",
            word.display()
        );
        Err(Error::new(ErrorKind::Permission, message))
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
fn limited_body(allowed: Allowed, body: ObjectBody) -> Result<u64> {
    match allowed {
        Allowed::Read => {
            let message = "cannot change anything there: this host may only read";
            Err(Error::new(ErrorKind::Permission, message))
        }
        _ => Ok(body.max_bytes()),
    }
}

impl ObjectService for ServedPlaces {
    fn body_limit(&self, body: ObjectBody) -> Result<u64> {
        match &self.allowed {
            Some(allowed) => limited_body(allowed.allowed, body),
            None => Ok(body.max_bytes()),
        }
    }

    fn open(&self, location: &[u8]) -> Result<Arc<dyn Objects>> {
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
            let message = format!("cannot open {location}: it is on a third host");
            return Err(Error::new(ErrorKind::Usage, message));
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
}

/// The address of this host that ssh was reached at.
fn reached_address() -> Option<IpAddr> {
    // The addresses and ports of both ends.
    let ends = env::var("SSH_CONNECTION").ok()?;
    ends.split(' ').nth(2)?.parse().ok()
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
        let open = |path: &str| {
            serve
                .objects()
                .open(dir.path().join(path).as_os_str().as_bytes())
        };
        open("a").unwrap();
        open("a/").unwrap();
        for other in ["b", "", "a/../b", "a/b"] {
            assert_eq!(
                open(other).unwrap_err().kind,
                ErrorKind::Permission,
                "{other}"
            );
        }
        serve.objects().open(b"").unwrap();
        let error = Serve::default().objects().open(b"").unwrap_err();
        assert_eq!(error.kind, ErrorKind::Permission);
    }

    #[test]
    fn each_allowance_offers_its_own_services_and_no_others() {
        use ServiceNumber as Number;
        let tapes = TapeService::new(TapeRights::All);
        let numbers = |serve: &Serve| serve.offer(&tapes).numbers();
        let location = |allowed| {
            Some(AllowedLocation {
                allowed,
                location: "/r".into(),
            })
        };
        for allowed in [Allowed::Read, Allowed::Append, Allowed::Write] {
            let serve = Serve {
                allowed: location(allowed),
                ..Serve::default()
            };
            let objects_only = [Number::OBJECTS, Number::CONNECTIONS];
            assert_eq!(numbers(&serve), objects_only);
            let door = Arc::default();
            let to_host = serve.offer_to_host(&door, Arc::new(ByteBudget::new(1)));
            assert_eq!(to_host.numbers(), objects_only);
        }
        let sources = Serve {
            sources_below: vec!["/srv".into()],
            ..Serve::default()
        };
        assert_eq!(numbers(&sources), [Number::CONNECTIONS, Number::FILES]);
        for allowed in [Allowed::Read, Allowed::Append, Allowed::Write] {
            let location = AllowedLocation {
                allowed,
                location: "tape:/dev/nst0".into(),
            };
            let drive = Serve {
                allowed: Some(location),
                ..Serve::default()
            };
            assert_eq!(numbers(&drive), [Number::CONNECTIONS, Number::TAPE]);
        }
        let all = [
            Number::OBJECTS,
            Number::CONNECTIONS,
            Number::COMMANDS,
            Number::FILES,
            Number::COPY,
            Number::TAPE,
        ];
        assert_eq!(numbers(&Serve::default()), all);
    }

    #[test]
    fn a_directory_that_holds_something_else_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("x"), "").unwrap();
        let serve = Serve::default();
        let serve = serve.objects();
        let error = serve.open(dir.path().as_os_str().as_bytes()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Usage);
        assert!(serve.open(b"ssh://h/x").is_err());
    }
}
