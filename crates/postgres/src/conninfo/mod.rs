//! Connection parameters with the meaning and precedence that users of libpq expect.
//!
//! The connection string comes first, then the service, the environment and the defaults. A
//! parameter that asks for a check fullbore does not make is refused, not ignored. No error and no
//! `Debug` output shows a password.

mod connection_secret;
mod files;
mod parse;
mod precedence;
mod transport;

pub use connection_secret::ConnectionSecret;
pub use precedence::Environment;
pub use transport::{Binding, CertificateRoots, Keepalive, SslMode, Tls};

use fullbore_format::error::{Error, ErrorKind, Result};
use parse::{Given, invalid_value, number, one_of};
use std::{fmt, net::IpAddr, path::PathBuf, time::Duration};

const DEFAULT_PORT: u16 = 5432;

/// Parameters of a connection. Mistakes that only the server can notice appear when connecting.
#[derive(Debug, Clone)]
pub struct Params {
    /// Hosts, in the order of trying.
    pub hosts: Vec<Host>,
    /// Role name.
    pub user: String,
    /// Database to connect to; a backup contains all databases.
    pub dbname: String,
    /// Name of this program in the server's views.
    pub application_name: String,
    /// Settings for the server, in the syntax of its command line.
    pub options: Option<String>,
    /// Time to wait for each host; `None` waits without limit.
    pub connect_timeout: Option<Duration>,
    pub wanted: ServerKind,
    /// Encryption of the connection.
    pub tls: Tls,
    /// Detection of a dead peer.
    pub keepalive: Keepalive,
    /// Ignored settings, one line each.
    pub warnings: Vec<String>,
}

/// A server to try.
#[derive(Debug, Clone)]
pub struct Host {
    /// Where the server listens.
    pub place: SettingPlace,
    /// The port; for a socket, part of its file name.
    pub port: u16,
    /// The password for this host, if known.
    pub password: Option<ConnectionSecret>,
}

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingPlace {
    /// On a Unix socket in this directory.
    Socket(PathBuf),
    /// On a network: a name or an address, and an address to use without resolving the name.
    Network(String, Option<IpAddr>),
}

/// Kind of server wanted (`target_session_attrs`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerKind {
    Any,
    Primary,
    Standby,
    PreferStandby,
}

impl Params {
    /// Reads `text`, a URL or keywords with values, and completes it from the service, the
    /// environment and the defaults.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the string or a value is invalid, [`ErrorKind::Unsupported`] if a
    /// parameter cannot be honoured, [`ErrorKind::NotFound`] if the service does not exist.
    pub fn new(text: &str, environment: &Environment) -> Result<Self> {
        let (given, origin) = precedence::collect(text, environment)?;
        let text = |name: &str| given.get(name).filter(|value| !value.is_empty()).cloned();
        let user = text("user").or_else(|| environment.user.clone());
        let user = user.ok_or_else(|| {
            Error::new(ErrorKind::Usage, "cannot tell which user to connect as")
                .hint("name a user, as in postgres://user@host")
        })?;
        let mut params = Self {
            hosts: hosts(&given, environment)?,
            user,
            dbname: text("dbname").unwrap_or_else(|| "postgres".into()),
            application_name: text("application_name").unwrap_or_else(|| "fullbore".into()),
            options: text("options"),
            connect_timeout: connect_timeout(&given)?,
            wanted: wanted_kind(&given)?,
            tls: Tls::new(&given, environment)?,
            keepalive: Keepalive::new(&given)?,
            warnings: Vec::new(),
        };
        if let Some(text) = text("password") {
            let password = ConnectionSecret { text, from: origin };
            for host in &mut params.hosts {
                host.password = Some(password.clone());
            }
        } else {
            params.look_up_passwords(text("passfile"), environment);
        }
        Ok(params)
    }

    /// Takes the password of each host from the password file.
    fn look_up_passwords(&mut self, file: Option<String>, environment: &Environment) {
        let file = file.map(PathBuf::from);
        let Some(file) = file.or_else(|| environment.at_home(".pgpass")) else {
            return;
        };
        let lines = match files::read_passwords(&file) {
            Ok(lines) => lines,
            Err(warning) => return self.warnings.push(warning),
        };
        for host in &mut self.hosts {
            let name = host.name_in_passfile(environment);
            let wanted = [&*name, &host.port.to_string(), &self.dbname, &self.user];
            host.password = files::find_password(&lines, wanted, &file);
        }
    }
}

/// Returns the time to wait for a host; as in libpq, zero and negative numbers mean no limit.
fn connect_timeout(given: &Given) -> Result<Option<Duration>> {
    let seconds = number::<i64>(given, "connect_timeout")?;
    let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok());
    let seconds = seconds.filter(|&seconds| seconds > 0);
    Ok(seconds.map(Duration::from_secs))
}

fn wanted_kind(given: &Given) -> Result<ServerKind> {
    let values = [
        ("any", ServerKind::Any),
        ("primary", ServerKind::Primary),
        ("read-write", ServerKind::Primary),
        ("standby", ServerKind::Standby),
        ("read-only", ServerKind::Standby),
        ("prefer-standby", ServerKind::PreferStandby),
    ];
    one_of(given, "target_session_attrs", &values, ServerKind::Any)
}

/// Returns one host for each name, or for each address if there are no names.
fn hosts(given: &Given, environment: &Environment) -> Result<Vec<Host>> {
    let names = list(given, "host");
    let addresses = list(given, "hostaddr");
    let ports = list(given, "port");
    let count = names.len().max(addresses.len()).max(1);
    if !names.is_empty() && !addresses.is_empty() && names.len() != addresses.len() {
        return Err(count_mismatch(count, "addresses", addresses.len()));
    }
    if ports.len() > 1 && ports.len() != count {
        return Err(count_mismatch(count, "ports", ports.len()));
    }
    let mut hosts = Vec::new();
    for index in 0..count {
        let port = port_at(&ports, index)?;
        let address = part(&addresses, index).map(parse_address).transpose()?;
        let places = match (part(&names, index), address) {
            // libpq's rules: a path is a socket, hostaddr spares the look-up, and the name still
            // serves TLS and passwords.
            (Some(name), None) if name.starts_with('/') => vec![SettingPlace::Socket(name.into())],
            (Some(name), address) => vec![SettingPlace::Network(name.to_owned(), address)],
            (None, Some(address)) => {
                vec![SettingPlace::Network(address.to_string(), Some(address))]
            }
            (None, None) => default_places(port, environment),
        };
        hosts.extend(places.into_iter().map(|place| Host {
            place,
            port,
            password: None,
        }));
    }
    Ok(hosts)
}

/// Splits a value at its commas; empty if the parameter is not given.
fn list<'a>(given: &'a Given, name: &str) -> Vec<&'a str> {
    match given.get(name) {
        Some(value) if !value.is_empty() => value.split(',').collect(),
        _ => Vec::new(),
    }
}

/// Returns part `index` of a list, unless it is empty.
fn part<'a>(list: &[&'a str], index: usize) -> Option<&'a str> {
    list.get(index)
        .map(|part| part.trim())
        .filter(|part| !part.is_empty())
}

/// Returns the port of host `index`; a single port is for all hosts.
fn port_at(ports: &[&str], index: usize) -> Result<u16> {
    let index = if index < ports.len() { index } else { 0 };
    let Some(text) = part(ports, index) else {
        return Ok(DEFAULT_PORT);
    };
    let port = text.parse().ok().filter(|port| *port > 0);
    port.ok_or_else(|| invalid_value("port", text))
}

fn parse_address(text: &str) -> Result<IpAddr> {
    text.parse().map_err(|_| invalid_value("hostaddr", text))
}

fn count_mismatch(hosts: usize, subject: &str, count: usize) -> Error {
    let subject = format!("there are {hosts} hosts and {count} {subject}");
    Error::new(ErrorKind::Usage, subject)
}

/// Returns the sockets that exist in the default directories, or else this machine by its name.
fn default_places(port: u16, environment: &Environment) -> Vec<SettingPlace> {
    let places: Vec<_> = environment
        .socket_directories
        .iter()
        .filter(|dir| dir.join(format!(".s.PGSQL.{port}")).exists())
        .cloned()
        .map(SettingPlace::Socket)
        .collect();
    if places.is_empty() {
        vec![SettingPlace::Network("localhost".into(), None)]
    } else {
        places
    }
}

impl Host {
    /// The host name to look for in the password file.
    fn name_in_passfile(&self, environment: &Environment) -> String {
        match &self.place {
            SettingPlace::Socket(dir) if environment.socket_directories.contains(dir) => {
                "localhost".into()
            }
            SettingPlace::Socket(dir) => dir.to_string_lossy().into_owned(),
            SettingPlace::Network(name, _) => name.clone(),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            SettingPlace::Socket(dir) => {
                write!(f, "{:?}", dir.join(format!(".s.PGSQL.{}", self.port)))
            }
            SettingPlace::Network(name, _) => write!(f, "{name:?}, port {}", self.port),
        }
    }
}

#[cfg(test)]
mod tests;
