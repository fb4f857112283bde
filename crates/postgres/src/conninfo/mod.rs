//! Connection parameters with the meaning and precedence that users of libpq expect.
//!
//! The connection string comes first, then the service, the environment and the defaults. A
//! parameter that asks for a check fullbore does not make is refused, not ignored. No error and no
//! `Debug` output shows a password.

mod files;
mod parse;
mod precedence;
mod transport;

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
    /// Kind of server wanted.
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

/// A password and its origin. `Debug` shows only the origin.
#[derive(Clone, PartialEq, Eq)]
pub struct ConnectionSecret {
    pub(super) text: String,
    pub(super) from: String,
}

/// Kind of server wanted (`target_session_attrs`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
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

impl fmt::Debug for ConnectionSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "from {}", self.from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt};

    fn environment(variables: &[(&str, &str)]) -> Environment {
        Environment {
            variables: variables
                .iter()
                .map(|(name, value)| ((*name).into(), (*value).into()))
                .collect(),
            user: Some("me".into()),
            home: None,
            socket_directories: vec![],
        }
    }

    fn params(text: &str, variables: &[(&str, &str)]) -> Params {
        Params::new(text, &environment(variables)).unwrap()
    }

    fn network(name: &str) -> SettingPlace {
        SettingPlace::Network(name.into(), None)
    }

    fn places(params: &Params) -> Vec<(SettingPlace, u16)> {
        params
            .hosts
            .iter()
            .map(|host| (host.place.clone(), host.port))
            .collect()
    }

    #[test]
    fn without_parameters_the_server_is_this_machine_and_the_role_this_user() {
        let params = params("", &[]);
        assert_eq!(
            (&*params.user, &*params.dbname, &*params.application_name),
            ("me", "postgres", "fullbore")
        );
        assert_eq!(places(&params), [(network("localhost"), 5432)]);
        assert_eq!(
            (params.tls.mode, params.tls.channel_binding),
            (SslMode::Prefer, Binding::Prefer)
        );
        assert!(
            params.connect_timeout.is_none()
                && params.keepalive.wanted
                && params.hosts[0].password.is_none()
        );
    }

    #[test]
    fn a_socket_that_is_there_comes_before_the_network() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(".s.PGSQL.7"), "").unwrap();
        let nearby = Environment {
            socket_directories: vec!["/nonexistent".into(), dir.path().into()],
            ..environment(&[("PGPORT", "7")])
        };
        assert_eq!(
            places(&Params::new("", &nearby).unwrap()),
            [(SettingPlace::Socket(dir.path().into()), 7)]
        );
        assert_eq!(
            places(&Params::new("port=8", &nearby).unwrap()),
            [(network("localhost"), 8)]
        );
    }

    #[test]
    fn the_string_comes_before_the_service_and_the_service_before_the_environment() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(
            dir.path().join("pg_service.conf"),
            "[s]\nuser=service\ndbname=service\nport=2\n",
        )
        .unwrap();
        let variables = [
            ("PGSYSCONFDIR", dir.path().to_str().unwrap()),
            ("PGUSER", "env"),
            ("PGDATABASE", "env"),
            ("PGPORT", "3"),
            ("PGHOST", "env"),
            ("PGCONNECT_TIMEOUT", "5"),
        ];
        let params = params("postgres://said@/?service=s", &variables);
        assert_eq!((&*params.user, &*params.dbname), ("said", "service"));
        assert_eq!(places(&params), [(network("env"), 2)]);
        assert_eq!(params.connect_timeout, Some(Duration::from_secs(5)));
        let error = Params::new("service=t", &environment(&variables)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::NotFound);
        assert!(
            error.what.starts_with("there is no service \"t\" in "),
            "{}",
            error.what
        );
    }

    #[test]
    fn hosts_addresses_and_ports_go_together() {
        let all = params("host=a,/run,b hostaddr=,,::1 port=1,,3", &[]);
        let address = SettingPlace::Network("b".into(), Some("::1".parse().unwrap()));
        assert_eq!(
            places(&all),
            [
                (network("a"), 1),
                (SettingPlace::Socket("/run".into()), 5432),
                (address, 3)
            ]
        );
        let address = SettingPlace::Network("127.0.0.1".into(), Some("127.0.0.1".parse().unwrap()));
        assert_eq!(
            places(&params("hostaddr=127.0.0.1", &[])),
            [(address, 5432)]
        );
        assert_eq!(
            places(&params("host=a,b port=7", &[])),
            [(network("a"), 7), (network("b"), 7)]
        );
        for bad in [
            "host=a,b port=1,2,3",
            "host=a,b hostaddr=::1",
            "port=0",
            "port=65536",
            "port=x",
            "hostaddr=a",
        ] {
            assert_eq!(
                Params::new(bad, &environment(&[])).unwrap_err().kind,
                ErrorKind::Usage,
                "{bad}"
            );
        }
    }

    #[test]
    fn a_value_without_meaning_is_named() {
        for (text, what) in [
            (
                "sslmode=x",
                "the connection parameter \"sslmode\" cannot be \"x\"",
            ),
            (
                "connect_timeout=x",
                "the connection parameter \"connect_timeout\" cannot be \"x\"",
            ),
            (
                "sslrootcert=system sslmode=require",
                "sslrootcert=system needs sslmode=verify-full",
            ),
            (
                "sslnegotiation=direct",
                "sslnegotiation=direct needs sslmode=require or more",
            ),
        ] {
            let error = Params::new(text, &environment(&[])).unwrap_err();
            assert_eq!((error.kind, &*error.what), (ErrorKind::Usage, what));
        }
        assert_eq!(
            params("sslrootcert=system", &[]).tls.mode,
            SslMode::VerifyFull
        );
        let refused = Params::new("", &environment(&[("PGREQUIREPEER", "x")])).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Unsupported);
    }

    #[test]
    fn files_at_home_are_used_if_they_are_there() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join(".postgresql");
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("root.crt"), "").unwrap();
        fs::write(home.path().join(".pgpass"), "localhost:*:*:*:hushhush\n").unwrap();
        fs::set_permissions(
            home.path().join(".pgpass"),
            fs::Permissions::from_mode(0o600),
        )
        .unwrap();
        let variables = [("HOME", home.path().to_str().unwrap())];
        let mut found = params("", &variables);
        assert_eq!(
            (&found.tls.roots, &found.tls.identity),
            (&CertificateRoots::File(dir.join("root.crt")), &None)
        );
        assert_eq!(found.hosts[0].password.take().unwrap().text, "hushhush");
        assert!(
            params("host=elsewhere", &variables).hosts[0]
                .password
                .is_none()
        );
        let known = Environment {
            home: Some(home.path().into()),
            ..environment(&[("HOME", "")])
        };
        let found = Params::new("", &known).unwrap();
        assert_eq!(
            found.tls.roots,
            CertificateRoots::File(dir.join("root.crt")),
            "the system's home directory is used where HOME is empty"
        );
        fs::set_permissions(
            home.path().join(".pgpass"),
            fs::Permissions::from_mode(0o644),
        )
        .unwrap();
        let found = params("", &variables);
        assert!(
            found.hosts[0].password.is_none() && found.warnings.len() == 1,
            "{found:?}"
        );
    }

    #[test]
    fn no_debug_shows_a_password() {
        for params in [
            params("postgres://u:hushhush@h", &[]),
            params("", &[("PGPASSWORD", "hushhush")]),
        ] {
            assert_eq!(params.hosts[0].password.as_ref().unwrap().text, "hushhush");
            assert!(!format!("{params:?}").contains("hushhush"));
        }
    }
}
