//! Parses connection strings: URLs, and keywords with values.
//!
//! No error repeats the string: it may contain a password.

use Use::{Honoured, Ignored, Refused};
use fullbore_format::error::{Error, ErrorKind, Result};
use std::{collections::BTreeMap, str::FromStr};

/// Parameters by keyword. Never printed: one may be a password.
pub(super) type Given = BTreeMap<&'static str, String>;

/// How fullbore treats a keyword.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    Honoured,
    /// Has no effect on a backup.
    Ignored,
    /// Asks for a check that fullbore does not make. Ignoring it would mean to trust more than the
    /// user does.
    Refused,
}

/// The keywords of libpq 18, with the environment variable and the treatment of each.
pub(super) const KEYWORDS: [(&str, &str, Use); 51] = [
    ("application_name", "PGAPPNAME", Honoured),
    ("channel_binding", "PGCHANNELBINDING", Honoured),
    ("client_encoding", "PGCLIENTENCODING", Ignored),
    ("connect_timeout", "PGCONNECT_TIMEOUT", Honoured),
    ("dbname", "PGDATABASE", Honoured),
    ("fallback_application_name", "", Ignored),
    ("gssdelegation", "PGGSSDELEGATION", Ignored),
    ("gssencmode", "PGGSSENCMODE", Honoured),
    ("gsslib", "PGGSSLIB", Ignored),
    ("host", "PGHOST", Honoured),
    ("hostaddr", "PGHOSTADDR", Honoured),
    ("keepalives", "", Honoured),
    ("keepalives_count", "", Honoured),
    ("keepalives_idle", "", Honoured),
    ("keepalives_interval", "", Honoured),
    ("krbsrvname", "PGKRBSRVNAME", Ignored),
    ("load_balance_hosts", "PGLOADBALANCEHOSTS", Ignored),
    ("max_protocol_version", "PGMAXPROTOCOLVERSION", Ignored),
    ("min_protocol_version", "PGMINPROTOCOLVERSION", Ignored),
    ("oauth_client_id", "", Ignored),
    ("oauth_client_secret", "", Ignored),
    ("oauth_issuer", "", Ignored),
    ("oauth_scope", "", Ignored),
    ("options", "PGOPTIONS", Honoured),
    ("passfile", "PGPASSFILE", Honoured),
    ("password", "PGPASSWORD", Honoured),
    ("port", "PGPORT", Honoured),
    ("replication", "", Ignored),
    ("require_auth", "PGREQUIREAUTH", Refused),
    ("requirepeer", "PGREQUIREPEER", Refused),
    ("scram_client_key", "", Ignored),
    ("scram_server_key", "", Ignored),
    ("service", "PGSERVICE", Honoured),
    ("servicefile", "PGSERVICEFILE", Honoured),
    (
        "ssl_max_protocol_version",
        "PGSSLMAXPROTOCOLVERSION",
        Ignored,
    ),
    (
        "ssl_min_protocol_version",
        "PGSSLMINPROTOCOLVERSION",
        Refused,
    ),
    ("sslcert", "PGSSLCERT", Honoured),
    ("sslcertmode", "PGSSLCERTMODE", Refused),
    ("sslcompression", "PGSSLCOMPRESSION", Ignored),
    ("sslcrl", "PGSSLCRL", Refused),
    ("sslcrldir", "PGSSLCRLDIR", Refused),
    ("sslkey", "PGSSLKEY", Honoured),
    ("sslkeylogfile", "", Ignored),
    ("sslmode", "PGSSLMODE", Honoured),
    ("sslnegotiation", "PGSSLNEGOTIATION", Honoured),
    ("sslpassword", "", Refused),
    ("sslrootcert", "PGSSLROOTCERT", Honoured),
    ("sslsni", "PGSSLSNI", Ignored),
    ("target_session_attrs", "PGTARGETSESSIONATTRS", Honoured),
    ("tcp_user_timeout", "", Honoured),
    ("user", "PGUSER", Honoured),
];

/// Returns the keyword as it is in [`KEYWORDS`].
///
/// # Errors
/// [`ErrorKind::Usage`] with the name if the keyword is unknown, [`ErrorKind::Unsupported`] if it
/// is refused.
pub(super) fn keyword(name: &str) -> Result<&'static str> {
    match KEYWORDS.iter().find(|(known, ..)| *known == name) {
        Some((known, _, Refused)) => Err(Error::new(
            ErrorKind::Unsupported,
            format!("cannot honour the connection parameter {known:?}"),
        )
        .hint("remove it if the connection does not need it")),
        Some((known, ..)) => Ok(known),
        None => Err(Error::new(
            ErrorKind::Usage,
            format!("there is no connection parameter {name:?}"),
        )),
    }
}

/// Parses a URL or a string of keywords.
///
/// # Errors
/// [`ErrorKind::Usage`] if the string is neither, or a keyword is unknown.
pub(super) fn parse(text: &str) -> Result<Given> {
    match text
        .split_once("://")
        .filter(|(scheme, _)| is_postgres_scheme(scheme))
        .map(|(_, rest)| rest)
    {
        Some(rest) => parse_url(rest),
        None => parse_pairs(text),
    }
}

fn is_postgres_scheme(scheme: &str) -> bool {
    ["postgres", "postgresql"]
        .iter()
        .any(|known| scheme.eq_ignore_ascii_case(known))
}

fn parse_error(reason: impl Into<String>) -> Error {
    Error::new(ErrorKind::Usage, "cannot read the connection string").because(reason.into())
}

/// `[user[:password]@][host[:port],…][/dbname][?keyword=value&…]`, each part percent-encoded.
fn parse_url(rest: &str) -> Result<Given> {
    let mut given = Given::new();
    // As in libpq: a password may contain a "?", but a "/" only as %2F.
    let rest = match rest.find(['@', '/']) {
        Some(position) if rest[position..].starts_with('@') => {
            let (user, password) = rest[..position]
                .split_once(':')
                .unwrap_or((&rest[..position], ""));
            put(&mut given, "user", percent_decoded(user)?);
            put(&mut given, "password", percent_decoded(password)?);
            &rest[position + 1..]
        }
        _ => rest,
    };
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (hosts, dbname) = rest.split_once('/').unwrap_or((rest, ""));
    parse_hosts(&mut given, hosts)?;
    put(&mut given, "dbname", percent_decoded(dbname)?);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair
            .split_once('=')
            .ok_or_else(|| parse_error("a parameter of the URL has no \"=\""))?;
        match (&*percent_decoded(name)?, percent_decoded(value)?) {
            ("ssl", value) if value == "true" => given.insert("sslmode", "require".into()),
            (name, value) => given.insert(keyword(name)?, value),
        };
    }
    Ok(given)
}

/// Adds a parameter unless it is empty.
fn put(given: &mut Given, name: &'static str, value: String) {
    if !value.is_empty() {
        given.insert(name, value);
    }
}

/// Parses the hosts and ports of a URL.
fn parse_hosts(given: &mut Given, hosts: &str) -> Result<()> {
    let mut names = Vec::new();
    let mut ports = Vec::new();
    for host in hosts.split(',') {
        let (name, port) = match host.strip_prefix('[').map(|host| host.split_once(']')) {
            Some(Some((name, ""))) => (name, ""),
            Some(Some((name, port))) if port.starts_with(':') => (name, &port[1..]),
            Some(_) => {
                return Err(parse_error(
                    "a \"[\" begins an address that \"]\" does not end",
                ));
            }
            None => host.split_once(':').unwrap_or((host, "")),
        };
        names.push(percent_decoded(name)?);
        ports.push(percent_decoded(port)?);
    }
    // An empty host leaves the parameter to the service and the environment, as libpq does.
    if names.iter().any(|name| !name.is_empty()) || names.len() > 1 {
        given.insert("host", names.join(","));
    }
    if ports.iter().any(|port| !port.is_empty()) {
        given.insert("port", ports.join(","));
    }
    Ok(())
}

/// Decodes the percent-encoding of a part of a URL.
fn percent_decoded(text: &str) -> Result<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        if first != b'%' {
            bytes.push(first);
            rest = tail;
            continue;
        }
        match hex_digit_at(tail, 0).zip(hex_digit_at(tail, 1)) {
            Some((high, low)) if high + low > 0 => bytes.push((high * 16 + low) as u8),
            _ => {
                return Err(parse_error(
                    "a \"%\" is not followed by two hexadecimal digits",
                ));
            }
        }
        rest = &tail[2..];
    }
    String::from_utf8(bytes).map_err(|_| parse_error("the text that \"%\" encodes is not UTF-8"))
}

fn hex_digit_at(tail: &[u8], offset: usize) -> Option<u32> {
    tail.get(offset)
        .and_then(|&digit| char::from(digit).to_digit(16))
}

/// Parses `keyword = value …`. A value with spaces is in single quotes; a backslash makes the next
/// character literal.
fn parse_pairs(text: &str) -> Result<Given> {
    let mut given = Given::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (name, tail) = rest
            .split_once('=')
            .ok_or_else(|| parse_error("there is a word without \"=\""))?;
        let name = name.trim_end();
        if name.contains(char::is_whitespace) {
            return Err(parse_error("there is a word without \"=\""));
        }
        let (value, tail) = parse_value(tail.trim_start())?;
        given.insert(keyword(name)?, value);
        rest = tail.trim_start();
    }
    Ok(given)
}

/// Returns the value at the start of `text`, and the text after it.
fn parse_value(text: &str) -> Result<(String, &str)> {
    let quoted = text.starts_with('\'');
    let mut value = String::new();
    let mut chars = text[usize::from(quoted)..].chars();
    loop {
        match chars.next() {
            Some('\\') => value.extend(chars.next()),
            // Two quotes mean one, as in SQL; libpq refuses them.
            Some('\'') if quoted && chars.as_str().starts_with('\'') => value.extend(chars.next()),
            Some('\'') if quoted => return Ok((value, chars.as_str())),
            Some(space) if !quoted && space.is_whitespace() => return Ok((value, chars.as_str())),
            Some(other) => value.push(other),
            None if quoted => return Err(parse_error("a quote is not closed")),
            None => return Ok((value, "")),
        }
    }
}

/// Returns the error for a value that is not valid for the parameter.
pub(super) fn invalid_value(name: &str, value: &str) -> Error {
    Error::new(
        ErrorKind::Usage,
        format!("the connection parameter {name:?} cannot be {value:?}"),
    )
}

/// Returns a parameter as a number; `None` if it is empty or not given.
pub(super) fn number<T: FromStr>(given: &Given, name: &str) -> Result<Option<T>> {
    let value = given
        .get(name)
        .map(|value| value.trim())
        .filter(|value| !value.is_empty());
    value
        .map(|value| value.parse().map_err(|_| invalid_value(name, value)))
        .transpose()
}

/// Returns the meaning of a parameter that has a few valid values.
pub(super) fn one_of<T: Copy>(
    given: &Given,
    name: &str,
    values: &[(&str, T)],
    default: T,
) -> Result<T> {
    let value = given.get(name).map(String::as_str);
    match value.filter(|value| !value.is_empty()) {
        None => Ok(default),
        Some(value) => {
            let found = values
                .iter()
                .find(|(known, _)| *known == value)
                .map(|(_, meaning)| *meaning);
            let known: Vec<_> = values.iter().map(|(known, _)| *known).collect();
            found.ok_or_else(|| {
                invalid_value(name, value).hint(format!("it is one of {}", known.join(", ")))
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Vec<(&'static str, String)> {
        parse(text).unwrap().into_iter().collect()
    }

    fn is(text: &str, wanted: &[(&str, &str)]) {
        let found = said(text);
        let found: Vec<_> = found
            .iter()
            .map(|(name, value)| (*name, &**value))
            .collect();
        assert_eq!(found, wanted, "{text}");
    }

    #[test]
    fn a_url_is_read_as_libpq_reads_it() {
        is("postgres://", &[]);
        is("postgresql://host", &[("host", "host")]);
        is("postgres:///db", &[("dbname", "db")]);
        is("PostgreSQL:///db", &[("dbname", "db")]);
        is(
            "postgres://me:p%40s%2Fs?x@db.example:6432/my%20db",
            &[
                ("dbname", "my db"),
                ("host", "db.example"),
                ("password", "p@s/s?x"),
                ("port", "6432"),
                ("user", "me"),
            ],
        );
        is(
            "postgres://[::1]:5433,b,c:1/",
            &[("host", "::1,b,c"), ("port", "5433,,1")],
        );
        is(
            "postgres://%2Fvar%2Frun:5433/x",
            &[("dbname", "x"), ("host", "/var/run"), ("port", "5433")],
        );
        is(
            "postgres:///x?host=/tmp&sslmode=verify-full&ssl=true",
            &[("dbname", "x"), ("host", "/tmp"), ("sslmode", "require")],
        );
        is("postgres://me@/x", &[("dbname", "x"), ("user", "me")]);
    }

    #[test]
    fn keywords_are_read_as_libpq_reads_them() {
        is("", &[]);
        is("  host=a   port = 1 ", &[("host", "a"), ("port", "1")]);
        is(r"password='it''s'", &[("password", "it's")]);
        is(
            r"password='a b\'c\\d' user=x",
            &[("password", r"a b'c\d"), ("user", "x")],
        );
        is(
            r"password=a\ b\'c dbname=''",
            &[("dbname", ""), ("password", "a b'c")],
        );
        is("host=a host=b", &[("host", "b")]);
    }

    #[test]
    fn an_invalid_string_is_refused_without_repeating_it() {
        for text in [
            "postgres://u:secret%4@h",
            "postgres://u:secret%00@h",
            "postgres://u:secret%ff@h",
            "postgres://u:secret@[::1/x",
            "postgres://u:secret@h?host",
            "secret",
            "password='secret",
            "password=secret x",
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Usage);
            assert!(!format!("{error:?}").contains("secret"), "{error:?}");
        }
        assert_eq!(
            parse("hots=a").unwrap_err().what,
            "there is no connection parameter \"hots\""
        );
        assert_eq!(
            parse("postgres://a?hots=a").unwrap_err().what,
            "there is no connection parameter \"hots\""
        );
        assert_eq!(parse("sslcrl=a").unwrap_err().kind, ErrorKind::Unsupported);
    }
}
