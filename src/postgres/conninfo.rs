//! How a server is reached: what users of libpq expect, in its order of precedence.
//!
//! What the connection string says counts, then the service, then the environment, then the defaults. A parameter that
//! asks for a check which is not made here is refused, not ignored. No error and no `Debug` shows a password.

mod files;
mod text;

use crate::{
    error::{Error, Kind, Result},
    platform,
};
use std::{
    collections::HashMap,
    env, fmt,
    net::IpAddr,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};
use text::{Given, KEYWORDS, Use};

const DEFAULT_PORT: u16 = 5432;

/// What a connection depends on besides its string.
pub struct Environment {
    /// Variables: those of libpq, and `HOME`.
    pub variables: HashMap<String, String>,
    /// The user of the system, who is the user of the server if none is named.
    pub user: Option<String>,
    /// Where a server on this machine listens, by default. The first is tried first.
    pub socket_directories: Vec<PathBuf>,
}

impl Environment {
    /// That of this process. A variable that is not UTF-8 is not there.
    pub fn of_process() -> Self {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        let user = platform::owner::Names::default().user(platform::user().0);
        Self {
            variables: env::vars_os().filter_map(text).collect(),
            user: (!user.is_empty()).then(|| user.to_string()),
            // Debian's, and PostgreSQL's own.
            socket_directories: vec!["/var/run/postgresql".into(), "/tmp".into()],
        }
    }

    fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// A file in the user's home directory.
    pub(super) fn at_home(&self, file: &str) -> Option<PathBuf> {
        Some(Path::new(self.variable("HOME").filter(|home| !home.is_empty())?).join(file))
    }
}

/// How to connect to a server. Does not say what is wrong with it until it is tried.
#[derive(Debug, Clone)]
pub struct Params {
    /// Where, in the order of trying.
    pub hosts: Vec<Host>,
    /// As whom.
    pub user: String,
    /// To which database; a backup is of all of them.
    pub dbname: String,
    /// How the server sees this program.
    pub application_name: String,
    /// Settings for the server, as its command line has them.
    pub options: Option<String>,
    /// How long to wait for one host; for ever if none.
    pub connect_timeout: Option<Duration>,
    /// Which kind of server will do.
    pub wanted: Wanted,
    /// How the connection is encrypted.
    pub tls: Tls,
    /// How a dead peer is noticed.
    pub keepalive: Keepalive,
    /// What was ignored, a line each.
    pub warnings: Vec<String>,
}

/// One server that may be tried.
#[derive(Debug, Clone)]
pub struct Host {
    /// Where it listens.
    pub place: Place,
    /// On which port; of a socket, part of its name.
    pub port: u16,
    /// The password for it, if one is known.
    pub password: Option<Secret>,
}

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// In a directory, on a Unix socket.
    Socket(PathBuf),
    /// On a network: a name or an address, and an address to use instead of asking for that of the name.
    Network(String, Option<IpAddr>),
}

/// A password, and where it came from. `Debug` shows the latter.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    pub(super) text: String,
    pub(super) from: String,
}

/// Which kind of server will do (`target_session_attrs`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Wanted {
    Any,
    Primary,
    Standby,
    PreferStandby,
}

/// How a connection is encrypted.
#[derive(Debug, Clone)]
pub struct Tls {
    /// How much of it is wanted.
    pub mode: SslMode,
    /// Who may sign the server's certificate.
    pub roots: Roots,
    /// The client's certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Is the password bound to the encrypted connection?
    pub channel_binding: Binding,
    /// Does encryption begin at once, as 17 and newer permit?
    pub direct: bool,
}

/// How much encryption is wanted (`sslmode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
#[allow(missing_docs)]
pub enum SslMode {
    Disable,
    Allow,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

/// Who may sign the server's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Roots {
    /// Anybody, as nobody asks.
    None,
    /// Whom the system trusts.
    System,
    /// Those in a file.
    File(PathBuf),
}

/// Is the password bound to the encrypted connection (`channel_binding`)?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Binding {
    Disable,
    Prefer,
    Require,
}

/// How a dead peer is noticed while a statement takes long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// Is it asked at all?
    pub wanted: bool,
    /// After how much silence.
    pub idle: Duration,
    /// Then how often.
    pub interval: Duration,
    /// How many times in vain.
    pub count: u32,
    /// For how long sent data may stay unacknowledged; the system's default if zero.
    pub user_timeout: Duration,
}

impl Params {
    /// What `text` says, a URL or keywords with values, and what it leaves to the service, the environment and the defaults.
    ///
    /// # Errors
    /// [`Kind::Usage`] if the string cannot be read or a value means nothing, [`Kind::Unsupported`] if a parameter cannot
    /// be honoured, [`Kind::NotFound`] if there is no such service.
    pub fn new(text: &str, environment: &Environment) -> Result<Self> {
        let (given, from) = layered(text, environment)?;
        let text = |name: &str| given.get(name).filter(|value| !value.is_empty()).cloned();
        let mut warnings = Vec::new();
        let user = text("user").or_else(|| environment.user.clone()).ok_or_else(|| {
            Error::new(Kind::Usage, "cannot tell as whom to connect").hint("name a user, as in postgres://user@host")
        })?;
        let mut params = Self {
            hosts: hosts(&given, environment)?,
            user,
            dbname: text("dbname").unwrap_or_else(|| "postgres".into()),
            application_name: text("application_name").unwrap_or_else(|| "fullbore".into()),
            options: text("options"),
            connect_timeout: number::<i64>(&given, "connect_timeout")?
                .and_then(|seconds| u64::try_from(seconds).ok().filter(|&seconds| seconds > 0))
                .map(Duration::from_secs),
            wanted: wanted(&given)?,
            tls: Tls::new(&given, environment)?,
            keepalive: Keepalive::new(&given)?,
            warnings: Vec::new(),
        };
        match text("password") {
            Some(text) => params.hosts.iter_mut().for_each(|host| {
                host.password = Some(Secret { text: text.clone(), from: from.clone() });
            }),
            None => params.look_up_passwords(text("passfile"), environment, &mut warnings),
        }
        params.warnings = warnings;
        Ok(params)
    }

    fn look_up_passwords(&mut self, file: Option<String>, environment: &Environment, warnings: &mut Vec<String>) {
        let Some(file) = file.map(PathBuf::from).or_else(|| environment.at_home(".pgpass")) else { return };
        let lines = match files::passwords(&file) {
            Ok(lines) => lines,
            Err(warning) => return warnings.push(warning),
        };
        for host in &mut self.hosts {
            let name = host.name_in_passfile(environment);
            let wanted = [&*name, &host.port.to_string(), &self.dbname, &self.user];
            host.password = files::password(&lines, wanted, &file);
        }
    }
}

/// All that is given, first come first; and where the password came from.
fn layered(text: &str, environment: &Environment) -> Result<(Given, String)> {
    let mut given = text::parse(text)?;
    let mut from = if given.contains_key("password") { "the connection string" } else { "PGPASSWORD" }.to_owned();
    let named = |given: &Given, name: &str, variable: &str| {
        let named = given.get(name).map(String::as_str).or_else(|| environment.variable(variable));
        named.filter(|named| !named.is_empty()).map(str::to_owned)
    };
    if let Some(service) = named(&given, "service", "PGSERVICE") {
        let own = named(&given, "servicefile", "PGSERVICEFILE").map(PathBuf::from);
        // Where Debian's libpq looks.
        let system = environment.variable("PGSYSCONFDIR").unwrap_or("/etc/postgresql-common");
        let files = own.or_else(|| environment.at_home(".pg_service.conf")).into_iter();
        let files: Vec<_> = files.chain([Path::new(system).join("pg_service.conf")]).collect();
        for (name, value) in files::service(&service, &files)? {
            if name == "password" && !given.contains_key(name) {
                from = format!("service {service:?}");
            }
            given.entry(name).or_insert(value);
        }
    }
    for (name, variable, _) in KEYWORDS.iter().filter(|(.., becomes)| *becomes != Use::Ignored) {
        match environment.variable(variable).filter(|value| !value.is_empty()) {
            Some(value) if !given.contains_key(name) => given.insert(text::keyword(name)?, value.to_owned()),
            _ => None,
        };
    }
    match given.get("gssencmode").map(String::as_str) {
        Some("require") => Err(Error::new(Kind::Unsupported, "cannot encrypt a connection with GSSAPI")),
        _ => Ok((given, from)),
    }
}

fn meaningless(name: &str, value: &str) -> Error {
    Error::new(Kind::Usage, format!("the connection parameter {name:?} cannot be {value:?}"))
}

fn number<T: FromStr>(given: &Given, name: &str) -> Result<Option<T>> {
    let value = given.get(name).map(|value| value.trim()).filter(|value| !value.is_empty());
    value.map(|value| value.parse().map_err(|_| meaningless(name, value))).transpose()
}

/// The value as one of those that have a meaning.
fn one_of<T: Copy>(given: &Given, name: &str, values: &[(&str, T)], default: T) -> Result<T> {
    match given.get(name).map(String::as_str).filter(|value| !value.is_empty()) {
        None => Ok(default),
        Some(value) => {
            let found = values.iter().find(|(known, _)| *known == value).map(|(_, meaning)| *meaning);
            let known: Vec<_> = values.iter().map(|(known, _)| *known).collect();
            found.ok_or_else(|| meaningless(name, value).hint(format!("it is one of {}", known.join(", "))))
        }
    }
}

fn wanted(given: &Given) -> Result<Wanted> {
    let values = [
        ("any", Wanted::Any),
        ("primary", Wanted::Primary),
        ("read-write", Wanted::Primary),
        ("standby", Wanted::Standby),
        ("read-only", Wanted::Standby),
        ("prefer-standby", Wanted::PreferStandby),
    ];
    one_of(given, "target_session_attrs", &values, Wanted::Any)
}

/// As many as there are names, or addresses if there are no names.
fn hosts(given: &Given, environment: &Environment) -> Result<Vec<Host>> {
    let list = |name: &str| -> Vec<&str> {
        given.get(name).filter(|value| !value.is_empty()).map_or(Vec::new(), |value| value.split(',').collect())
    };
    let (names, addresses, ports) = (list("host"), list("hostaddr"), list("port"));
    let count = names.len().max(addresses.len()).max(1);
    let odd = |what: &str, is: usize| Error::new(Kind::Usage, format!("there are {count} hosts and {is} {what}"));
    if !names.is_empty() && !addresses.is_empty() && names.len() != addresses.len() {
        return Err(odd("addresses", addresses.len()));
    }
    if ports.len() > 1 && ports.len() != count {
        return Err(odd("ports", ports.len()));
    }
    let mut hosts = Vec::new();
    for at in 0..count {
        let port = match ports.get(at).or(ports.first()).map(|port| port.trim()).filter(|port| !port.is_empty()) {
            Some(port) => port.parse().ok().filter(|port| *port > 0).ok_or_else(|| meaningless("port", port))?,
            None => DEFAULT_PORT,
        };
        let part =
            |list: &[&str]| list.get(at).map(|part| part.trim()).filter(|part| !part.is_empty()).map(str::to_owned);
        let address = part(&addresses)
            .map(|address| address.parse().map_err(|_| meaningless("hostaddr", &address)))
            .transpose()?;
        let places = match (part(&names), address) {
            (Some(name), None) if name.starts_with('/') => vec![Place::Socket(name.into())],
            (Some(name), address) => vec![Place::Network(name, address)],
            (None, Some(address)) => vec![Place::Network(address.to_string(), Some(address))],
            (None, None) => default_places(port, environment),
        };
        hosts.extend(places.into_iter().map(|place| Host { place, port, password: None }));
    }
    Ok(hosts)
}

/// The sockets that are there, else this machine by its name.
fn default_places(port: u16, environment: &Environment) -> Vec<Place> {
    let there = |dir: &&PathBuf| dir.join(format!(".s.PGSQL.{port}")).exists();
    let places: Vec<_> = environment.socket_directories.iter().filter(there).cloned().map(Place::Socket).collect();
    if places.is_empty() { vec![Place::Network("localhost".into(), None)] } else { places }
}

impl Host {
    fn name_in_passfile(&self, environment: &Environment) -> String {
        match &self.place {
            Place::Socket(dir) if environment.socket_directories.contains(dir) => "localhost".into(),
            Place::Socket(dir) => dir.to_string_lossy().into_owned(),
            Place::Network(name, _) => name.clone(),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Socket(dir) => write!(f, "{:?}", dir.join(format!(".s.PGSQL.{}", self.port))),
            Place::Network(name, _) => write!(f, "{name:?}, port {}", self.port),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "from {}", self.from)
    }
}

impl Tls {
    fn new(given: &Given, environment: &Environment) -> Result<Self> {
        let path = |name: &str, default: &str| {
            let named = given.get(name).filter(|value| !value.is_empty()).map(PathBuf::from);
            named.or_else(|| environment.at_home(default).filter(|path| path.exists()))
        };
        let roots = match path("sslrootcert", ".postgresql/root.crt") {
            Some(path) if path.as_os_str() == "system" => Roots::System,
            Some(path) => Roots::File(path),
            None => Roots::None,
        };
        let system = roots == Roots::System;
        let default = if system { SslMode::VerifyFull } else { SslMode::Prefer };
        let mode = one_of(given, "sslmode", &SslMode::NAMES, default)?;
        if system && mode != SslMode::VerifyFull {
            // As libpq: anybody can have a certificate that the system trusts, for another name.
            return Err(Error::new(Kind::Usage, "sslrootcert=system needs sslmode=verify-full"));
        }
        let direct = one_of(given, "sslnegotiation", &[("postgres", false), ("direct", true)], false)?;
        if direct && mode < SslMode::Require {
            return Err(Error::new(Kind::Usage, "sslnegotiation=direct needs sslmode=require or more"));
        }
        Ok(Self {
            mode,
            roots,
            identity: path("sslcert", ".postgresql/postgresql.crt").zip(
                given
                    .get("sslkey")
                    .filter(|key| !key.is_empty())
                    .map(PathBuf::from)
                    .or_else(|| environment.at_home(".postgresql/postgresql.key")),
            ),
            channel_binding: one_of(given, "channel_binding", &Binding::NAMES, Binding::Prefer)?,
            direct,
        })
    }
}

impl SslMode {
    const NAMES: [(&str, Self); 6] = [
        ("disable", Self::Disable),
        ("allow", Self::Allow),
        ("prefer", Self::Prefer),
        ("require", Self::Require),
        ("verify-ca", Self::VerifyCa),
        ("verify-full", Self::VerifyFull),
    ];
}

impl Binding {
    const NAMES: [(&str, Self); 3] = [("disable", Self::Disable), ("prefer", Self::Prefer), ("require", Self::Require)];
}

impl Keepalive {
    /// Sooner than the system's two hours: a backup that has lost its session is void, and should not be copied to its end.
    fn new(given: &Given) -> Result<Self> {
        let seconds = |name, default| {
            Ok::<_, Error>(Duration::from_secs(match number::<u64>(given, name)? {
                None | Some(0) => default,
                Some(seconds) => seconds,
            }))
        };
        Ok(Self {
            wanted: number::<i64>(given, "keepalives")? != Some(0),
            idle: seconds("keepalives_idle", 10)?,
            interval: seconds("keepalives_interval", 10)?,
            count: number(given, "keepalives_count")?.filter(|&count| count > 0).unwrap_or(6),
            user_timeout: Duration::from_millis(number(given, "tcp_user_timeout")?.unwrap_or(0)),
        })
    }
}
