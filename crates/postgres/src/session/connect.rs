//! Connects to a server: host by host, encrypted or not as `sslmode` says. Explains the server's
//! refusals.

use super::{Session, pooler::refuse_pooled_session};
use crate::{
    conninfo::{Binding, Host, Params, ServerKind, SettingPlace, SslMode},
    tls,
};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform as platform;
use fullbore_platform::queue::start;
use postgres::{
    Client, Config, NoTls, config,
    error::{Severity, SqlState},
};
use std::{
    io, iter,
    sync::mpsc,
    time::{Duration, Instant},
};
use tokio_postgres_rustls::MakeRustlsConnect;

/// The oldest supported version.
const OLDEST: u32 = 13;

/// The first statement of a session, before any that uses names or takes time.
///
/// A database owner may have put functions before the system's, and a role may have a short time
/// limit. With `work_mem = 64kB` the rows of `pg_settings` (about 200 kB) go to a temporary file,
/// which `temp_file_limit = 0` forbids. Only a superuser may raise that limit; every role may raise
/// the memory.
const FIRST: &str = "SET statement_timeout = 0; SET search_path = pg_catalog, pg_temp; SET \
    work_mem = '16MB'; \
    SET default_transaction_isolation = 'read committed'; SET default_transaction_deferrable = off";

/// Rule 4, and no time limits: a checkpoint or the archive may take hours.
/// `client_connection_check_interval` ends a statement whose client is gone. Settings that a
/// version lacks are skipped.
const SETTINGS: &str = "SELECT set_config(name, value, false) FROM (VALUES \
    ('max_parallel_workers_per_gather', '0'), ('lock_timeout', '0'), \
    ('idle_in_transaction_session_timeout', '0'), ('idle_session_timeout', '0'), \
    ('transaction_timeout', '0'), \
    ('client_connection_check_interval', '1000')) \
    AS wanted (name, value) JOIN pg_settings USING (name)";

pub(super) fn connect(params: &Params) -> Result<Session> {
    let rounds: &[ServerKind] = match params.wanted {
        ServerKind::PreferStandby => &[ServerKind::Standby, ServerKind::Any],
        _ => &[params.wanted],
    };
    let mut failures = Vec::new();
    for wanted in rounds {
        for host in &params.hosts {
            match open_session(params, host).and_then(|session| check_kind(session, *wanted)) {
                Ok(session) => return Ok(session),
                // As libpq: a server that was reached and refuses has the last word.
                Err(error) if error.kind != ErrorKind::Unreachable => return Err(error),
                Err(error) => failures.push(error),
            }
        }
    }
    let mut failures = failures.into_iter();
    let first = failures.next().unwrap_or_else(|| {
        Error::new(ErrorKind::Usage, "there is no host to connect to")
            .hint("name it, as in postgres://USER@HOST/, or in PGHOST")
    });
    let others: Vec<_> = failures
        .map(|error| error.line())
        .filter(|line| *line != first.line())
        .collect();
    Err(others.into_iter().fold(first, Error::detail))
}

/// Returns the session if the server is of the wanted kind.
///
/// # Errors
/// [`ErrorKind::Unreachable`] otherwise: another host may be suitable.
fn check_kind(session: Session, wanted: ServerKind) -> Result<Session> {
    let (actual, fits) = match wanted {
        ServerKind::Primary => ("a standby", !session.standby),
        ServerKind::Standby => ("not a standby", session.standby),
        ServerKind::Any | ServerKind::PreferStandby => return Ok(session),
    };
    if fits {
        Ok(session)
    } else {
        Err(Error::new(
            ErrorKind::Unreachable,
            format!("the server at {} is {actual}", session.place),
        ))
    }
}

/// Opens a session with one host, and sets it up.
fn open_session(params: &Params, host: &Host) -> Result<Session> {
    let begun = Instant::now();
    let mut client = connect_host(params, host)?;
    // Behind a pooler each statement may reach another session, which would end the backup unseen.
    refuse_pooled_session(&mut client, || begun.elapsed())?;
    let mut session = Session {
        client: Some(client),
        place: host.to_string(),
        version: 0,
        standby: false,
        process: 0,
        slot: None,
        slot_limit: None,
        dropped: None,
        in_backup: false,
    };
    let changing = "could not change the settings of the session";
    session
        .client()?
        .batch_execute(FIRST)
        .map_err(|error| server_error(changing, &error))?;
    session.rows(changing, SETTINGS, &[])?;
    let sql = "SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), \
        pg_backend_pid(), \
               nullif(current_setting('max_slot_wal_keep_size', true), '-1')";
    let row = session.row("could not ask the server for its version", sql, &[])?;
    session.version = row.get::<i32>(0)?.unsigned_abs();
    session.standby = row.get(1)?;
    session.process = row.get(2)?;
    session.slot_limit = row.get(3)?;
    let major = session.major();
    if major >= OLDEST {
        return Ok(session);
    }
    let message = format!("cannot back up PostgreSQL {major}");
    Err(Error::new(ErrorKind::Unsupported, message)
        .hint("the oldest version that can be backed up is 13"))
}

/// Returns the encryption modes to try, in order. A socket is never encrypted, as with libpq.
pub(crate) fn ssl_modes(params: &Params, host: &Host) -> &'static [config::SslMode] {
    use config::SslMode::{Disable, Prefer, Require};
    match (&host.place, params.tls.mode) {
        (SettingPlace::Socket(_), _) | (_, SslMode::Disable) => &[Disable],
        (_, SslMode::Allow) => &[Disable, Require],
        (_, SslMode::Prefer) => &[Prefer, Disable],
        (_, SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull) => &[Require],
    }
}

fn connect_host(params: &Params, host: &Host) -> Result<Client> {
    let mut first = None;
    for way in ssl_modes(params, host) {
        let mut config = client_config(params, host);
        config.ssl_mode(*way);
        let tls = (*way != config::SslMode::Disable)
            .then(|| tls::connector(&params.tls))
            .transpose()?;
        match connect_within(params.connect_timeout, config, tls) {
            Ok(client) => return Ok(client),
            Err(failure) => {
                // As libpq: with prefer and allow the other kind of encryption is tried. The first
                // failure is shown.
                let may_try_other_mode = failure.may_try_other_mode();
                first = first.or(Some(failure));
                if !may_try_other_mode {
                    break;
                }
            }
        }
    }
    let message = format!(
        "could not connect to the server at {host} as {:?}",
        params.user
    );
    Err(match first {
        Some(ConnectFailure::Server(error)) => {
            with_hint(server_error(&message, &error), &error, host)
        }
        Some(ConnectFailure::TimedOut(limit)) => Error::new(ErrorKind::Unreachable, message)
            .because(format!(
                "no answer within {} seconds, the connect_timeout",
                limit.as_secs()
            ))
            .hint("is the server up, and does a firewall let this host through? connect_timeout=SECONDS in the URL waits longer"),
        Some(ConnectFailure::NoThread(error)) => error,
        None => Error::new(ErrorKind::Bug, message),
    })
}

/// Why a connection failed.
enum ConnectFailure {
    Server(postgres::Error),
    /// No answer within the limit.
    TimedOut(Duration),
    NoThread(Error),
}

impl ConnectFailure {
    /// Returns whether another encryption mode may work: an entry of pg_hba.conf may be only for
    /// encrypted or only for plain connections, or TLS itself failed.
    fn may_try_other_mode(&self) -> bool {
        match self {
            Self::Server(error) => match error.code() {
                Some(code) => *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION,
                None => error.to_string().contains("TLS"),
            },
            Self::TimedOut(_) | Self::NoThread(_) => false,
        }
    }
}

/// Connects, or gives up after `limit`. The crate's own limit ends when the socket is open, and a
/// server can be silent after that.
fn connect_within(
    limit: Option<Duration>,
    config: Config,
    tls: Option<MakeRustlsConnect>,
) -> Result<Client, ConnectFailure> {
    let connect = move || match tls {
        Some(tls) => config.connect(tls),
        None => config.connect(NoTls),
    };
    let Some(limit) = limit else {
        return connect().map_err(ConnectFailure::Server);
    };
    let (done, answer) = mpsc::channel();
    // After the limit the receiver is gone, and the result is dropped.
    start(move || drop(done.send(connect()))).map_err(ConnectFailure::NoThread)?;
    match answer.recv_timeout(limit) {
        Ok(connected) => connected.map_err(ConnectFailure::Server),
        Err(_) => Err(ConnectFailure::TimedOut(limit)),
    }
}

fn client_config(params: &Params, host: &Host) -> Config {
    let mut config = Config::new();
    config
        .user(&params.user)
        .dbname(&params.dbname)
        .application_name(&params.application_name)
        .port(host.port);
    match &host.place {
        SettingPlace::Socket(dir) => config.host_path(dir),
        SettingPlace::Network(name, address) => {
            address.iter().for_each(|address| {
                config.hostaddr(*address);
            });
            config.host(name)
        }
    };
    if let Some(password) = &host.password {
        config.password(&password.text);
    }
    if let Some(options) = &params.options {
        config.options(options);
    }
    // By name, no catch-all: a weaker binding than was asked for must not slip in.
    config.channel_binding(match params.tls.channel_binding {
        Binding::Disable => config::ChannelBinding::Disable,
        Binding::Prefer => config::ChannelBinding::Prefer,
        Binding::Require => config::ChannelBinding::Require,
    });
    if params.tls.direct {
        config.ssl_negotiation(config::SslNegotiation::Direct);
    }
    let keepalive = &params.keepalive;
    config
        .keepalives(keepalive.wanted)
        .keepalives_idle(keepalive.idle)
        .keepalives_interval(keepalive.interval);
    config.keepalives_retries(keepalive.count);
    if !keepalive.user_timeout.is_zero() {
        config.tcp_user_timeout(keepalive.user_timeout);
    }
    config.notice_callback(|notice| platform::debug(|| format!("server: {}", notice.message())));
    config
}

/// Adds a hint to a refusal.
fn with_hint(error: Error, cause: &postgres::Error, host: &Host) -> Error {
    let code = cause.code();
    // By code where the server gave one: texts are in the language of the server.
    let hint = if code == Some(&SqlState::INVALID_PASSWORD) {
        match &host.password {
            Some(password) => format!("the password is from {}", password.from),
            None => return error,
        }
    } else if code.is_none() && reason(cause).contains("password missing") {
        "set one with PGPASSWORD, ~/.pgpass or the service file".into()
    } else if code.is_none() && reason(cause).contains("not valid for name") {
        "the certificate is for another name; sslmode=verify-ca does not compare names".into()
    } else if code == Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION) {
        "connect as another role, as in postgres://role@host, run fullbore as the system user of \
            that name, as in `sudo -u postgres fullbore …`, \
         or permit this role in the server's pg_hba.conf"
            .into()
    } else if code == Some(&SqlState::INVALID_CATALOG_NAME) {
        "name a database that is there, as in postgres:///NAME: the session needs one, and all are \
            backed up"
            .into()
    } else if is_no_server(cause) {
        "is a server running there? To back up a stopped cluster, name its data directory: \
            `fullbore backup PGDATA --offline`"
            .into()
    } else if code.is_none() && reason(cause).contains("lookup address") {
        "is the name right? fullbore reads the files of the cluster, so run it on the server's host, \
            or with `--on ssh://HOST`"
            .into()
    } else {
        return error;
    };
    error.hint(hint)
}

/// Returns an error of the server, with its detail and hint, or of the connection.
pub(crate) fn server_error(message: &str, error: &postgres::Error) -> Error {
    let failed = Error::new(error_kind(error), message).because(reason(error));
    let Some(refusal) = error.as_db_error() else {
        return failed;
    };
    let failed = refusal.detail().into_iter().fold(failed, Error::detail);
    match refusal.hint() {
        Some(hint) => failed.hint(hint.trim_end_matches('.').to_owned()),
        None => failed,
    }
}

/// Returns whether the server ended the session with this error. The connection reports it only a
/// moment later.
pub(super) fn is_fatal(error: &postgres::Error) -> bool {
    let severity = error
        .as_db_error()
        .and_then(postgres::error::DbError::parsed_severity);
    matches!(severity, Some(Severity::Fatal | Severity::Panic))
}

fn error_kind(error: &postgres::Error) -> ErrorKind {
    let Some(code) = error.code() else {
        // A retry does not help without a password or with a wrong certificate.
        let hopeless = reason(error).contains("password missing") || is_about_certificates(error);
        return if hopeless {
            ErrorKind::Permission
        } else {
            ErrorKind::Unreachable
        };
    };
    kind_of_state(code.code())
}

/// Returns the kind of an error of the server by its SQLSTATE.
pub(crate) fn kind_of_state(code: &str) -> ErrorKind {
    match code {
        "28000" | "28P01" | "42501" => ErrorKind::Permission,
        "53100" => ErrorKind::Full,
        // The server is starting, stopping, or has too many connections.
        "57P01" | "57P02" | "57P03" | "53300" => ErrorKind::Unreachable,
        _ => ErrorKind::System,
    }
}

fn is_about_certificates(error: &postgres::Error) -> bool {
    use rustls::Error::{AlertReceived, InvalidCertificate};
    let inside = innermost(error)
        .downcast_ref::<io::Error>()
        .and_then(io::Error::get_ref);
    matches!(
        inside.and_then(|inside| inside.downcast_ref()),
        Some(InvalidCertificate(_) | AlertReceived(_))
    )
}

fn is_no_server(error: &postgres::Error) -> bool {
    let system = innermost(error)
        .downcast_ref::<io::Error>()
        .map(io::Error::kind);
    matches!(
        system,
        Some(io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
    )
}

fn innermost(error: &postgres::Error) -> &(dyn std::error::Error + 'static) {
    let outer: &(dyn std::error::Error + 'static) = error;
    iter::successors(Some(outer), |error| error.source())
        .last()
        .unwrap_or(outer)
}

/// Returns the reason: the server's message, or the innermost cause.
pub(super) fn reason(error: &postgres::Error) -> String {
    if let Some(refusal) = error.as_db_error() {
        return refusal.message().to_owned();
    }
    let innermost = innermost(error);
    match innermost.downcast_ref() {
        Some(system) => fullbore_format::error::reason(system),
        None => innermost.to_string(),
    }
}
